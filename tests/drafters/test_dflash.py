"""DFlash, DFlash2 and DSpark: rows equal a numpy forward pass, caches follow the history, wrong files are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.heads import blocks as heads
from localspec.drafters.heads.blocks import BlockContext
from localspec.drafters.heads.head import Head
from localspec.engine.interfaces import History
from localspec.errors import LocalspecError, ModelFileError, PairError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model, TensorRows
from localspec.models.facts.heads import reads
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, Noise, Rule, SamplingParams, Tokens
from tests.drafters import dflash_files as files
from tests.drafters.dflash_forward import DFlashForward, Matrix
from tests.fakes import draft_request

KINDS = ("dflash", "dflash2", "dspark")
LAYERS = (1, 3, 5)
TEXT = np.arange(300, 420, dtype=np.int32)


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> Iterator[Context]:
    """Two slots of the bundled target, which keep what the heads read."""
    with Model.load(tiny_target) as model:
        settings = ContextSettings(n_ctx=256, n_slots=2, threads=1, type_v="bf16")
        yield Context(model, settings, tap=Tap(LAYERS))


@pytest.fixture(scope="module")
def embeddings(tiny_target: Path) -> Matrix:
    header = read_header(tiny_target)
    (tensor,) = (tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    return TensorRows(header, tensor).read(slice(None)).astype(np.float64)


def attached(path: Path, target: Context) -> tuple[Head, DraftModel, BlockContext]:
    head = heads.load_dflash(path, target.model.header)
    drafter = head.attach(target, 1)
    return head, drafter, context_of(drafter)


def context_of(drafter: DraftModel) -> BlockContext:
    assert isinstance(drafter._context, BlockContext)
    return drafter._context


def states_of(target: Context, length: int, slot: int = 0) -> Matrix:
    assert target.states is not None
    found = [target.states.read(slot, layer, 0, length) for layer in LAYERS]
    return np.concatenate(found, axis=1).astype(np.float64)


def rows(context: BlockContext, history: Tokens, *guesses: list[int], slot: int = 0) -> list[Float32Array]:
    """What the head says after a history and after guesses that follow it."""
    context.begin()
    (first,) = context.decode([Feed(slot, history, len(history))])
    paths = [np.append(history, guess).astype(np.int32) for guess in guesses]
    return [first[0].copy()] + [
        said[0].copy() for said in context.decode([Feed(slot, path, len(path)) for path in paths])
    ]


def close_to(found: Float32Array, wanted: Matrix) -> None:
    """The same logits where both have some, up to the target's tables in 8 bits and keys in 16."""
    known = np.isfinite(found)
    assert known.sum() >= min(256, len(found))
    close = 0.05 * np.abs(wanted[np.isfinite(wanted)]).max()
    np.testing.assert_allclose(found[known], wanted[known], atol=close)
    assert wanted[found.argmax()] > wanted.max() - close


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own tables": {"tables": True},
    "few tokens": {"guessed": sorted(np.random.default_rng(5).choice(4096, 600, replace=False).tolist())},
    "causal": {"causal": True},
    "window": {"window": 12},
    "short block": {"block": 5},
    "in place": {"anchor": False},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_forward_pass(
    kind: str, option: str, target: Context, tiny_target: Path, embeddings: Matrix, tmp_path: Path
) -> None:
    change = dict(OPTIONS[option])
    metadata = files.facts(kind)
    block = metadata["block_size"] = change.pop("block", files.BLOCK)
    causal, window, anchor = change.pop("causal", False), change.pop("window", 0), change.pop("anchor", True)
    if kind == "dflash2" and "guessed" in change:
        pytest.skip("its candidates are ids of its own output matrix")
    if causal:
        metadata["attention.causal"] = True
    if window:
        metadata |= {"attention.sliding_window": window, "attention.sliding_window_pattern": [True, False]}
    if kind == "dspark":
        metadata["sample_from_anchor"] = anchor
    weights = files.weights(kind, **change)
    path = files.write(tmp_path / "head.gguf", tiny_target, metadata, weights)
    table = weights.get("token_embd.weight", embeddings).astype(np.float64)
    truth = DFlashForward(weights, table, weights.get("output.weight", embeddings).astype(np.float64), causal, window)
    target.prefill(0, TEXT[:60], 60)
    head, drafter, context = attached(path, target)
    history, guess = TEXT[:60], [77, 78, 79]
    masks = np.full(block - 1, 16)
    hidden, logits = truth.block(states_of(target, 59), np.concatenate([history[-1:], masks]))
    found = rows(context, history, guess[:1], guess[:2])
    first = 0 if kind == "dspark" and anchor else 1
    for level, said in enumerate(found):
        previous = guess[level - 1] if level else int(history[-1])
        if kind == "dflash2":
            check_candidates(truth, said, hidden, logits, level, previous)
            continue
        wanted = logits[first + level] if kind == "dflash" else truth.biased(logits[first + level], previous)
        spread = np.full(len(said), -np.inf)
        spread[weights.get("d2t", np.arange(len(said)))] = wanted
        close_to(said, spread)
    assert not np.isfinite(rows(context, history, [5] * (block - first))[-1]).any(), "a block has so many levels"
    drafter.close()
    head.close()


def check_candidates(
    truth: DFlashForward, said: Float32Array, hidden: Matrix, logits: Matrix, level: int, previous: int
) -> None:
    """A row of DFlash2 names the likeliest tokens; after what was no candidate it names none."""
    if level:  # 77 and 78 are no candidates of random weights
        assert not np.isfinite(said).any()
        return
    wanted = truth.chosen(hidden[1], logits[1], previous)
    assert set(np.flatnonzero(np.isfinite(said))) == wanted.keys()
    for token, worth in wanted.items():
        assert said[token] == pytest.approx(worth, abs=0.05 * np.abs(logits).max())


def test_the_choice_of_dflash2_follows_what_was_drawn(
    target: Context, tiny_target: Path, embeddings: Matrix, tmp_path: Path
) -> None:
    path, weights = files.head(tmp_path / "head.gguf", tiny_target, "dflash2")
    truth = DFlashForward(weights, embeddings, embeddings)
    target.prefill(0, TEXT[:60], 60)
    head, drafter, context = attached(path, target)
    hidden, logits = truth.block(states_of(target, 59), np.concatenate([TEXT[59:60], np.full(files.BLOCK - 1, 16)]))
    for first in truth.chosen(hidden[1], logits[1], int(TEXT[59])):
        said = rows(context, TEXT[:60], [first])[1]
        wanted = truth.chosen(hidden[2], logits[2], first)
        assert set(np.flatnonzero(np.isfinite(said))) == wanted.keys()
        assert int(said.argmax()) == max(wanted, key=lambda token: wanted[token])
    drafter.close()
    head.close()


# -- the cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_depends_on_its_history_alone(kind: str, target: Context, tiny_target: Path, tmp_path: Path) -> None:
    """Whatever was guessed, taken back, edited or computed beside it before."""
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, kind)
    head, drafter, used = attached(path, target)
    for length, edit in ((30, 0), (31, 0), (36, 0), (33, 0), (90, 0), (60, 1), (61, 1)):
        history = TEXT[:length].copy()
        history[20:] += edit
        target.prefill(0, history, length)
        fresh = head.attach(target, 1)
        for mine, other in zip(rows(used, history, [5]), rows(context_of(fresh), history, [5]), strict=True):
            known = np.isfinite(mine)
            assert (known == np.isfinite(other)).all()
            np.testing.assert_allclose(mine[known], other[known], atol=1e-3)
        fresh.close()
    drafter.close()
    head.close()


@pytest.mark.parametrize("kind", KINDS)
def test_two_slots_in_one_pass_are_each_alone(kind: str, target: Context, tiny_target: Path, tmp_path: Path) -> None:
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, kind)
    head, drafter, context = attached(path, target)
    histories = [TEXT[:40].copy(), TEXT[50:110].copy()]
    for slot, history in enumerate(histories):
        target.prefill(slot, history, len(history))
    alone = [rows(context, history, slot=slot)[0] for slot, history in enumerate(histories)]
    passes = count_passes(context)
    context.begin()
    together = context.decode([Feed(slot, history, len(history)) for slot, history in enumerate(histories)])
    assert passes == [2], "one pass for both blocks, and no cell was missing"
    for one, both in zip(alone, together, strict=True):
        known = np.isfinite(one)
        np.testing.assert_allclose(one[known], both[0][known], atol=1e-3)
    drafter.close()
    head.close()


def count_passes(context: BlockContext) -> list[int]:
    """Blocks of each block pass from now on."""
    found: list[int] = []
    blocks = context._context.blocks

    def counted(histories: dict[int, Tokens]) -> Any:
        found.append(len(histories))
        return blocks(histories)

    context._context.blocks = counted
    return found


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_one_pass_for_each_draft(kind: str, branches: int, tiny_target: Path, tmp_path: Path) -> None:
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, kind)
    with Model.load(tiny_target) as model:
        alone = Context(model, ContextSettings(n_ctx=256, threads=1, max_leaves=8), tap=Tap(LAYERS))
        head = heads.load_dflash(path, model.header)
        drafter = head.attach(alone, branches)
        passes = count_passes(context_of(drafter))
        for length in (40, 41, 45):
            alone.prefill(0, TEXT[:length], length)
            request = draft_request(0, History(TEXT[:length]), 6, 6, SamplingParams(temperature=1.0), Noise(length))
            for _ in range(3):
                (draft,) = drafter.draft([request])
            assert len(draft) > 1
        assert passes == [1] * 9
        drafter.close()
        head.close()
        alone.close()


def test_reading_goes_in_chunks_and_without_states_nothing_is_guessed(
    target: Context, tiny_target: Path, tmp_path: Path
) -> None:
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, "dspark")
    head, drafter, context = attached(path, target)
    target.forget(0)
    history = TEXT[:100]
    assert context.reusable(0, history, 100) == context.prefill_chunk(0, history, 100) == 99
    assert not np.isfinite(rows(context, history)[0]).any()
    target.prefill(0, history, 100)
    assert context.reusable(0, history, 100) == 1
    assert context.prefill_chunk(0, history, 100) == 99
    assert np.isfinite(rows(context, history)[0]).any()
    drafter.close()
    head.close()


@pytest.mark.parametrize("branches", [1, 3], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_plains(kind: str, branches: int, tiny_target: Path, tmp_path: Path) -> None:
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, kind)
    with Engine.load(
        tiny_target, heads=[path], threads=1, exact="strict", kernels="plain", context=512, branches=branches,
        max_draft_tokens=5,
    ) as engine:  # fmt: skip
        for temperature in (0.0, 1.0):
            for rule in Rule:
                if rule == Rule.BLOCK and branches > 1:
                    continue
                sampling = SamplingParams(temperature=temperature)
                said = {
                    drafter: engine.generate(
                        "Count to ten:",
                        sampling=sampling,
                        seed=3,
                        max_tokens=24,
                        ignore_end=True,
                        drafter=drafter,
                        rule=rule,
                    )
                    for drafter in ("none", kind)
                }
                texts = {drafter: answer.text() for drafter, answer in said.items()}
                assert said[kind].stats.drafted > 20
                assert texts[kind] == texts["none"] or (rule != Rule.COUPLED and temperature > 0)


# -- wrong files --------------------------------------------------------------------------------------------------


def without(name: str, kind: str = "dflash") -> files.Weights:
    return {key: value for key, value in files.weights(kind).items() if key != name}


WRONG: list[tuple[str, dict[str, Any], files.Weights | None, type[LocalspecError], str]] = [
    ("dflash", {"target_layers": [1, 3, 6]}, None, PairError, "number of layers is 6 in the target"),
    ("dflash", {"target_layers": [1, 3, -5]}, None, ModelFileError, "names target layers"),
    ("dflash", {"target_layers": None}, None, ModelFileError, r"names target layers \[\]"),
    ("dflash", {"embedding_length": 512}, None, PairError, "hidden size is 256 in the target and 512 in the"),
    ("dflash", {"attention.value_length": 32}, None, ModelFileError, "keys have 64 numbers, and values 32"),
    ("dflash", {"rope.dimension_count": 63}, None, ModelFileError, "turns 63 of 64 numbers of a key"),
    ("dflash", {"rope.dimension_count": 128}, None, ModelFileError, "turns 128 of 64 numbers of a key"),
    ("dflash", {"attention.head_count_kv": 3}, None, ModelFileError, "4 heads cannot share 3"),
    ("dflash", {"attention.head_count": 0}, None, ModelFileError, "no attention heads"),
    ("dflash", {"attention.sliding_window": 8}, None, ModelFileError, "which of its layers have a sliding window"),
    (
        "dflash", {"attention.sliding_window": 8, "attention.sliding_window_pattern": [False, False]}, None,
        ModelFileError, "which of its layers have a sliding window",
    ),
    ("dflash", {"block_size": 1}, None, ModelFileError, "has blocks of 1 tokens; localspec needs .* at least 2"),
    ("dspark", {"block_size": None}, None, ModelFileError, "does not say how long its blocks are"),
    ("dspark", {"block_size": 0}, None, ModelFileError, "has blocks of 0 tokens"),
    ("dflash", {"hyper_connection.count": 4}, None, PairError, "hyper-connections"),
    ("dflash2", {"selector_top_k": 0}, None, ModelFileError, "selector_top_k is 0"),
    ("dflash2", {"conv_group_size": 33}, None, ModelFileError, "groups of 33"),
    ("dflash2", {"selector_top_k": 16}, None, ModelFileError, "16 candidates do not fit 256 numbers"),
    ("dflash", {}, without("fc.weight"), ModelFileError, r"lacks the tensor fc\.weight"),
    ("dflash", {}, without("blk.1.ffn_up.weight"), ModelFileError, r"lacks the tensor blk\.1\.ffn_up\.weight"),
    ("dspark", {}, without("markov_w2.weight", "dspark"), ModelFileError, r"lacks the tensor markov_w2\.weight"),
    (
        "dspark", {}, files.weights("dspark") | {"markov_w2.weight": np.zeros((4096, 8), dtype=np.float32)},
        ModelFileError, "Markov tables are",
    ),
    (
        "dflash", {}, files.weights("dflash", guessed=[5, 4096]), PairError, "guesses token 4096",
    ),
    ("dflash", {}, files.weights("dflash", guessed=[5, 5]), ModelFileError, "names a token twice"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "tensors", "error", "words"), WRONG)
def test_a_wrong_file_is_refused(
    kind: str,
    change: dict[str, Any],
    tensors: files.Weights | None,
    error: type[LocalspecError],
    words: str,
    tiny_target: Path,
    tmp_path: Path,
) -> None:
    path = files.write(tmp_path / "head.gguf", tiny_target, files.facts(kind) | change, tensors or files.weights(kind))
    with pytest.raises(error, match=words):
        heads.load_dflash(path, read_header(tiny_target))


@pytest.mark.parametrize("mask", [None, 4096])
def test_a_head_needs_its_mask_token(mask: int | None, tiny_target: Path, tmp_path: Path) -> None:
    path = files.write(tmp_path / "head.gguf", tiny_target, files.facts("dflash"), files.weights("dflash"), mask=mask)
    with pytest.raises(ModelFileError, match="mask"):
        heads.load_dflash(path, read_header(tiny_target))


def test_what_is_no_head_and_what_shows_no_layers(tiny_target: Path, tiny_draft: Path, tmp_path: Path) -> None:
    header = read_header(tiny_target)
    with pytest.raises(ModelFileError, match=r"localspec reads it as GGUF\. Convert it with llama\.cpp"):
        heads.load_dflash(tiny_draft.parent, header)
    with pytest.raises(PairError, match="is a draft model, not a DFlash or DSpark head"):
        heads.load_dflash(tiny_draft, header)
    path, _ = files.head(tmp_path / "head.gguf", tiny_target, "dflash")
    metadata = {key.replace("llama.", "gemma3."): value for key, value in header.metadata.items()}
    other = dataclasses.replace(header, metadata={**metadata, "general.architecture": "gemma3"})
    with pytest.raises(PairError, match="does not show what goes into layers of the architecture gemma3"):
        heads.load_dflash(path, other)


def test_what_a_head_reads_is_said(tiny_target: Path, tmp_path: Path) -> None:
    metadata = files.facts("dspark") | {
        "attention.sliding_window": 32,
        "attention.sliding_window_pattern": [True, False],
    }
    path = files.write(tmp_path / "head.gguf", tiny_target, metadata, files.weights("dspark", tables=True))
    assert reads(read_header(path)) == (
        "what goes into layers 1, 3, 5 of its target, in blocks of 8 tokens, with a window of 32 tokens"
    )
    path, _ = files.head(tmp_path / "shared.gguf", tiny_target, "dflash")
    assert "of its target, its embeddings and output matrix, in blocks" in reads(read_header(path))
    assert reads(read_header(tiny_target)) == ""


def test_a_file_of_a_fork_is_named(tiny_target: Path, tmp_path: Path) -> None:
    weights = {"dflash.fc.weight": np.zeros((256, 768), dtype=np.float32)}
    path = files.write(tmp_path / "head.gguf", tiny_target, files.facts("dflash"), weights, architecture="dflash-draft")
    with pytest.raises(PairError, match=r"in the format of a fork of llama\.cpp \(dflash-draft\)"):
        heads.load_dflash(path, read_header(tiny_target))
