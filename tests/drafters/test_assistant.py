"""Gemma 4's assistants: a pass is that of a numpy forward pass over the target's cache; wrong files are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec.drafters.heads.mtp import AssistantContext, load_assistant
from localspec.errors import LocalspecError, ModelFileError, PairError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import NEXTN, ContextSettings, Tap
from localspec.llama.model import Model, TensorRows
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, SamplingParams, Tokens
from tests.drafters import assistant_files as files
from tests.drafters.dflash_files import Weights
from tests.llama import architectures

Matrix = npt.NDArray[np.float64]
LAYERS = 3
TEXT = np.arange(300, 420, dtype=np.int32)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, the last without a window."""
    return architectures.write("gemma4", tmp_path_factory.mktemp("gemma"), layers=LAYERS)


@pytest.fixture(scope="module")
def target(gemma: Path) -> Iterator[Context]:
    """Two slots, which keep what an assistant starts from, and what goes into the last two layers."""
    with Model.load(gemma) as model:
        yield Context(model, ContextSettings(n_ctx=256, n_slots=2, threads=1), tap=Tap((1, 2), nextn=True))


class Forward:
    """One pass of an assistant in numpy, over keys and values that the target's last two layers make."""

    def __init__(self, weights: Weights, windows: list[bool], gemma: Path) -> None:
        self.weights, self.windows = weights, windows
        self.target = {}
        header = read_header(gemma)
        for tensor in header.tensors:
            name = tensor.name
            if name == "token_embd.weight" or (name.startswith(("blk.1.", "blk.2.")) and ".attn_" in name):
                self.target[name] = self._read(header, tensor)
            if name == "rope_freqs.weight":
                self.target[name] = np.frombuffer(header.read(tensor.offset, tensor.size), dtype="<f4")

    @staticmethod
    def _read(header: Any, tensor: Any) -> Matrix:
        if len(tensor.shape) == 1:
            return np.frombuffer(header.read(tensor.offset, tensor.size), dtype="<f4").astype(np.float64)
        return TensorRows(header, tensor).read(slice(None)).astype(np.float64)

    def run(self, token: int, state: Matrix, at: int, inputs: dict[int, Matrix]) -> tuple[Matrix, Matrix]:
        """(state, logits) after a token.

        Args:
            state: float64[target's hidden size], before it.
            at: its position.
            inputs: float64[at, hidden] of the target's layers 1 and 2, of all tokens before it.
        """
        embedded = self.target["token_embd.weight"][token] * np.sqrt(files.TARGET_HIDDEN)
        x = self._of("nextn.pre_projection") @ np.concatenate([embedded, state])
        for layer, window in enumerate(self.windows):
            start = f"blk.{layer}."
            mixed = self._attend(self._norm(x, f"{start}attn_norm"), start, window, at, inputs)
            mixed = x + self._norm(mixed, f"{start}post_attention_norm")
            h = self._norm(mixed, f"{start}ffn_norm")
            gate = self._of(f"{start}ffn_gate") @ h
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            h = self._of(f"{start}ffn_down") @ (gate * (self._of(f"{start}ffn_up") @ h))
            x = (mixed + self._norm(h, f"{start}post_ffw_norm")) * self._of(f"{start}layer_output_scale")[0]
        x = self._norm(x, "output_norm")
        return self._of("nextn.post_projection") @ x, self._of("token_embd") @ x

    def _attend(self, h: Matrix, start: str, window: bool, at: int, inputs: dict[int, Matrix]) -> Matrix:
        size, source = files.SIZES[window], 1 if window else 2
        query = (self._of(f"{start}attn_q") @ h).reshape(files.HEADS, size)
        query = _turned(self._norm(query, f"{start}attn_q_norm"), at, self._frequencies(window, self.weights))
        seen = _normed(inputs[source]) * self.target[f"blk.{source}.attn_norm.weight"]
        key = (seen @ self.target[f"blk.{source}.attn_k.weight"].T).reshape(at, -1, size)
        held = self.target.get(f"blk.{source}.attn_v.weight")
        value = key if held is None else (seen @ held.T).reshape(at, -1, size)
        key = _normed(key) * self.target[f"blk.{source}.attn_k_norm.weight"]
        frequencies = self._frequencies(window, self.target)
        key = np.stack([_turned(one, place, frequencies) for place, one in enumerate(key)])
        groups = files.HEADS // key.shape[1]
        key, value = key.repeat(groups, axis=1), _normed(value).repeat(groups, axis=1)
        scores = np.einsum("hd,nhd->hn", query, key)
        if window:
            scores[:, : max(0, at - 63)] = -np.inf
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        found: Matrix = self._of(f"{start}attn_output") @ np.einsum("hn,nhd->hd", shares, value).reshape(-1)
        return found

    @staticmethod
    def _frequencies(window: bool, weights: Any) -> Matrix:
        half = files.SIZES[window] // 2
        found: Matrix = (1e4 if window else 1e6) ** (-np.arange(half) / half)
        return found if window else np.divide(found, weights["rope_freqs.weight"])

    def _of(self, name: str) -> Matrix:
        return self.weights[f"{name}.weight"].astype(np.float64)

    def _norm(self, x: Matrix, name: str) -> Matrix:
        return _normed(x) * self._of(name)


def _normed(x: Matrix) -> Matrix:
    found: Matrix = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)
    return found


def _turned(x: Matrix, at: int, frequencies: Matrix) -> Matrix:
    """Rotary positions on pairs (i, i + half)."""
    half = x.shape[-1] // 2
    first, second, turns = x[..., :half], x[..., half:], at * frequencies
    return np.concatenate(
        [first * np.cos(turns) - second * np.sin(turns), first * np.sin(turns) + second * np.cos(turns)], axis=-1
    )


def made(path: Path, target: Context) -> tuple[Model, AssistantContext]:
    model = Model.load(path, nextn=True)
    return model, AssistantContext(model, target)


def row(context: AssistantContext, tokens: Tokens, slot: int = 0) -> Float32Array:
    (said,) = context.decode([Feed(slot, tokens, len(tokens))])
    found: Float32Array = said[0].copy()
    return found


def test_a_pass_is_that_of_a_forward_pass(gemma: Path, target: Context, tmp_path: Path) -> None:
    path, weights = files.assistant(tmp_path / "assistant.gguf", gemma)
    model, context = made(path, target)
    truth = Forward(weights, [True, False], gemma)
    for length in (2, 40, 100):
        history = TEXT[:length]
        target.prefill(0, history, length)
        assert target.states is not None
        inputs = {layer: target.states.read(0, layer, 0, length - 1).astype(np.float64) for layer in (1, 2)}
        state = target.states.read(0, NEXTN, length - 2, length - 1)[0].astype(np.float64)
        tokens = history
        for guess in (77, 78, None):
            state, logits = truth.run(int(tokens[-1]), state, length - 1, inputs)
            found = row(context, tokens)
            np.testing.assert_allclose(found, logits, atol=0.04 * np.abs(logits).max())
            assert logits[found.argmax()] > logits.max() - 0.04 * np.abs(logits).max()
            tokens = np.append(tokens, guess or 0).astype(np.int32)
    context.close()
    model.close()


def test_a_row_depends_on_its_history_alone(gemma: Path, target: Context, tmp_path: Path) -> None:
    """Whatever was guessed, rejected, edited, or said in the other slot before."""
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma)
    model, used = made(path, target)
    for length, edit in ((30, 0), (33, 0), (31, 0), (80, 1), (60, 1)):
        history = TEXT[:length].copy()
        history[20:] += edit
        guessed = np.append(history, [9]).astype(np.int32)
        target.decode([Feed(0, history, 10, *_chain([5, 6]))])  # leaves rejected guesses in the cache
        target.decode([Feed(1, TEXT[50:90], 10)])
        target.decode([Feed(0, history[:-1], 10, *_chain([int(history[-1]), 6]))])
        mine = [row(used, history), row(used, guessed)]
        fresh = AssistantContext(model, target)
        target.decode([Feed(0, history[:-1], 10)])
        for one, other in zip(mine, [row(fresh, history), row(fresh, guessed)], strict=True):
            np.testing.assert_allclose(one, other, atol=0.1)
        fresh.close()
    used.close()
    model.close()


def test_another_guess_after_a_known_history_sees_no_rejected_ones(
    gemma: Path, target: Context, tmp_path: Path
) -> None:
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma)
    model, used = made(path, target)
    history, other = TEXT[:30], np.append(TEXT[:30], [8]).astype(np.int32)
    target.prefill(0, history, 10)
    row(used, history)
    row(used, np.append(history, [9]).astype(np.int32))
    target.decode([Feed(0, history[:-1], 10, *_chain([5, 6]))])  # leaves them in the cache
    found = row(used, other)
    fresh = AssistantContext(model, target)
    target.prefill(0, history, 10)
    row(fresh, history)
    np.testing.assert_allclose(found, row(fresh, other), atol=0.02)
    fresh.close()
    used.close()
    model.close()


def _chain(tokens: list[int]) -> tuple[Tokens, Tokens]:
    return np.array(tokens, dtype=np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32)


def test_two_slots_in_one_pass(gemma: Path, target: Context, tmp_path: Path) -> None:
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma)
    model, context = made(path, target)
    histories = [TEXT[:40], TEXT[50:110]]
    for slot, history in enumerate(histories):
        target.prefill(slot, history, len(history))
    alone = [row(context, history, slot) for slot, history in enumerate(histories)]
    context.close()
    context = AssistantContext(model, target)  # which has guessed nothing yet
    for slot, history in enumerate(histories):
        target.prefill(slot, history, len(history))
    feeds = [Feed(slot, history, len(history)) for slot, history in enumerate(histories)]
    for one, both in zip(reversed(alone), context.decode(feeds[::-1]), strict=True):
        np.testing.assert_allclose(one, both[0], atol=1e-3)
    context.close()
    model.close()


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("shape", ["gemma4", "gemma4-edge", "gemma4-moe"])
def test_the_text_is_plains(shape: str, branches: int, tmp_path: Path) -> None:
    gemma = architectures.write(shape, tmp_path)
    change = {"attention.head_count_kv": 1} if shape == "gemma4-edge" else {}
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma, change=change)
    with Engine.load(
        gemma, heads=[path], threads=1, exact="strict", context=256, max_draft_tokens=4, branches=branches, corpus="off"
    ) as engine:
        for temperature in (0.0, 1.0):
            how: dict[str, Any] = {"sampling": SamplingParams(temperature=temperature), "seed": 3, "max_tokens": 24}
            plain, drafted, again = (
                engine.generate("Count to ten", drafter=drafter, ignore_end=True, **how)
                for drafter in ("none", "assistant", "assistant")
            )
            assert drafted.text() == plain.text() == again.text()
            assert drafted.stats.drafted > 8


def test_slots_and_the_end_of_the_context(gemma: Path, tmp_path: Path) -> None:
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma)
    with Engine.load(
        gemma, heads=[path], threads=1, exact="strict", context=128, slots=2, max_draft_tokens=4, corpus="off"
    ) as engine:
        found = {}
        for drafter in ("none", "assistant"):
            running = [
                engine.generate(prompt, seed=5, max_tokens=200, ignore_end=True, drafter=drafter)
                for prompt in ("Count to ten", "Name a fruit")
            ]
            found[drafter] = [one.text() for one in running]
            assert drafter == "none" or all(one.stats.drafted > 0 for one in running)
        assert found["assistant"] == found["none"]


WRONG: list[tuple[dict[str, Any], str, type[LocalspecError], str]] = [
    ({"embedding_length_out": 512}, "", PairError, "hidden size: 256 in the target, 512 in the head"),
    ({"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64}, "", PairError,
     r"size of a key \(attention.key_length\): 128 in the target, 64"),
    ({"attention.head_count_kv": 4}, "", PairError, r"keys of a token \(layer 0 of the head\): 2 in the target, 4"),
    ({"nextn_predict_layers": 1}, "", ModelFileError, "1 of 2 layers predict"),
    ({"attention.sliding_window_pattern": [False, False]}, "", ModelFileError, "which of its layers"),
    ({"attention.sliding_window_pattern": [True]}, "", ModelFileError, "which of its layers"),
    ({"attention.sliding_window": 0}, "", ModelFileError, "its sliding window has no tokens"),
    ({"embedding_length_out": 64}, "", ModelFileError, "how large a state of its target is"),
    ({"attention.value_length": 64}, "", ModelFileError, "keys have 128 numbers, and values 64"),
    ({"rope.dimension_count_swa": 63}, "", ModelFileError, "turns 63 of 64 numbers"),
    ({"attention.head_count_kv": 3}, "", ModelFileError, "4 heads cannot share 3"),
    ({}, "nextn.pre_projection.weight", ModelFileError, r"lacks the tensor nextn\.pre_projection\.weight"),
    ({}, "blk.1.ffn_up.weight", ModelFileError, r"lacks the tensor blk\.1\.ffn_up\.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "without", "error", "words"), WRONG)
def test_a_wrong_file_is_refused(
    change: dict[str, Any], without: str, error: type[LocalspecError], words: str, gemma: Path, tmp_path: Path
) -> None:
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma, change=change, without=without)
    with pytest.raises(error, match=words):
        load_assistant(path, read_header(gemma))


def test_targets_that_it_cannot_sit_on(gemma: Path, tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    path, _ = files.assistant(tmp_path / "assistant.gguf", gemma)
    with pytest.raises(PairError, match=r"cannot draft for tiny-target-q8_0.gguf \(llama\)"):
        load_assistant(path, read_header(tiny_target))
    with pytest.raises(PairError, match="is a draft model, not an assistant"):
        load_assistant(tiny_draft, read_header(gemma))
    windows = {"attention__sliding_window_pattern": [True, False, False]}
    other = architectures.write("gemma4", tmp_path, layers=3, **windows)
    with pytest.raises(PairError, match=r"sliding windows of the last two layers: \[False, False\] in the target"):
        load_assistant(path, read_header(other))
