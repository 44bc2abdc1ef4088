"""EAGLE-3 on its real head: the text is plain's, its cache is one of the history, and wrong files are refused."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.heads.eagle import Eagle3Context, load_eagle3
from localspec.drafters.heads.head_cache import HeadModel
from localspec.errors import LocalspecError, ModelFileError, PairError, UsageError
from localspec.gguf import Array, read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, SamplingParams, Tokens
from tests.drafters.eagle3_forward import Eagle3Forward

HEAD = Path(__file__).parents[1] / "data" / "heads" / "tiny-eagle3-q8_0.gguf"
PROMPTS = [
    "<|user|>Copy this: On May 12 the quick fox met Ada Lopez near Paris, and they ate 3 apples.<|end|><|assistant|>",
    "<|user|>John has 12 apples and buys 3 more each day. How many has he after 5 days?<|end|><|assistant|>",
    "<|user|>Write a function that adds two numbers.<|end|><|assistant|>",
]
WAYS = 4


@pytest.fixture(scope="module", params=[1, 3], ids=["chain", "tree"])
def engine(tiny_target: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    branches: int = request.param
    with Engine.load(
        tiny_target,
        heads=[HEAD],
        threads=1,
        exact="strict",
        kernels="plain",
        context=512,
        branches=branches,
        max_draft_tokens=6,
    ) as loaded:
        yield loaded


def texts(engine: Engine, drafter: str, temperature: float) -> tuple[list[str], int, int]:
    """Answers, drafts sent, and tokens accepted of them."""
    sampling = SamplingParams(temperature=temperature)
    answers = [
        engine.generate(prompt, sampling=sampling, seed=7, max_tokens=40, ignore_end=True, drafter=drafter)
        for prompt in PROMPTS
    ]
    found = [answer.text() for answer in answers]
    assert all(answer.stats.exact for answer in answers)
    return found, sum(answer.stats.draft_passes for answer in answers), sum(answer.stats.accepted for answer in answers)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_text_is_plains_and_guesses_are_no_chance(engine: Engine, temperature: float) -> None:
    plain, _, _ = texts(engine, "none", temperature)
    drafted, passes, accepted = texts(engine, "eagle3", temperature)
    assert drafted == plain
    assert passes > 20
    assert accepted > 0.3 * passes, "guessing among 1,536 tokens would be right once in 1,536 passes"


def test_a_chat_may_switch_drafters_and_be_edited(engine: Engine) -> None:
    def chat(drafters: list[str]) -> list[str]:
        said, found = PROMPTS[1], []
        for number, drafter in enumerate(drafters):
            text = engine.generate(said, seed=number, max_tokens=25, ignore_end=True, drafter=drafter).text()
            found.append(text)
            # The third turn takes an earlier one back: another question behind the same beginning.
            said = PROMPTS[1] + found[0] + "<|end|><|user|>And why?<|end|><|assistant|>" if number == 1 else said + text
        return found

    assert chat(["eagle3", "lookup", "eagle3", "auto", "eagle3"]) == chat(["none"] * 5)


def test_a_regenerated_answer_is_plains(engine: Engine) -> None:
    for seed in (1, 2, 1):
        plain, drafted = (
            engine.generate(PROMPTS[2], seed=seed, max_tokens=25, ignore_end=True, drafter=drafter).text()
            for drafter in ("none", "eagle3")
        )
        assert drafted == plain


def test_slots_side_by_side(tiny_target: Path) -> None:
    with Engine.load(
        tiny_target, heads=[HEAD], threads=1, exact="strict", kernels="plain", context=512, slots=3, max_draft_tokens=4
    ) as engine:

        def together(drafter: str) -> list[str]:
            running = [
                engine.generate(prompt, seed=5, max_tokens=25, ignore_end=True, drafter=drafter) for prompt in PROMPTS
            ]
            found = [answer.text() for answer in running]
            assert drafter == "none" or all(answer.stats.drafted > 0 for answer in running)
            return found

        assert together("eagle3") == together("none")


# -- the cache ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tiny_target: Path) -> Iterator[Context]:
    head = load_eagle3(HEAD, read_header(tiny_target))
    with Model.load(tiny_target) as model:
        yield Context(model, ContextSettings(n_ctx=512, max_leaves=WAYS, threads=1), tap=head.tap)


@pytest.fixture(scope="module")
def head_model() -> Iterator[Model]:
    with HeadModel.load(HEAD) as model:
        yield model


def rows(context: Eagle3Context, paths: list[Tokens]) -> list[Float32Array]:
    return [found[0].copy() for found in context.decode([Feed(0, path, len(path)) for path in paths])]


def test_rows_are_what_the_layer_says(target: Context, head_model: Model) -> None:
    truth, context = Eagle3Forward(HEAD, target.model.path), Eagle3Context(head_model, target, (1, 3, 5))
    text = target.model.tokenize(PROMPTS[0], special=True, add_bos=True)
    for history, paths in ((text[:20], [[], [7]]), (text[:24], [[5], [6], [6, 8]])):
        target.prefill(0, history, len(history))
        assert target.states is not None
        states = [target.states.read(0, layer, 0, len(history) - 1).astype(np.float64) for layer in (1, 3, 5)]
        tokens = [np.append(history, path).astype(np.int32) for path in paths]
        for path, found in zip(tokens, rows(context, tokens), strict=True):
            wanted = truth.row(np.concatenate(states, axis=1), path)
            assert np.isfinite(found).sum() == len(wanted)
            np.testing.assert_allclose(found[truth.ids], wanted, atol=0.05 * np.abs(wanted).max())
    context.close()


def test_any_path_is_computed_as_from_scratch(target: Context, head_model: Model) -> None:
    """Whatever was guessed, taken back or read before, a row depends on its path alone."""
    rng = np.random.default_rng(3)
    text = rng.integers(40, 4000, 200).astype(np.int32)
    used = Eagle3Context(head_model, target, (1, 3, 5))
    for length in (30, 34, 34, 33, 150, 90):
        history = text[:length].copy()
        if length == 90:
            history[60:] += 1  # an edit
        target.prefill(0, history, length)
        behind = [[], [5], [6], [5, 7], [6, 8], [5, 7, 9], [6, 8, 4], [5, 11]]
        for few in (behind[:3], behind[3:6], behind[5:], [[1], [2], [3], [4]]):
            paths = [np.append(history, tail).astype(np.int32) for tail in few]
            fresh = Eagle3Context(head_model, target, (1, 3, 5))
            for mine, other in zip(rows(used, paths), rows(fresh, paths), strict=True):
                assert np.isfinite(mine).sum() == 1536
                known = np.isfinite(mine)
                np.testing.assert_allclose(mine[known], other[known], atol=0.3)
            fresh.close()
    with pytest.raises(UsageError, match="5 ways"):
        rows(used, [np.append(history, [token]).astype(np.int32) for token in range(5)])
    used.close()


def test_a_guess_gives_way_to_what_the_target_saw(target: Context, head_model: Model) -> None:
    history = np.arange(50, 90, dtype=np.int32)
    target.prefill(0, history, 40)
    context = Eagle3Context(head_model, target, (1, 3, 5))
    longer = np.append(history, [7, 8]).astype(np.int32)
    (guessed,) = rows(context, [longer])
    assert context.reusable(0, longer, 42) == 41
    target.prefill(0, longer, 42)
    assert context.reusable(0, longer, 42) == 40, "two cells are to be computed anew"
    (seen,) = rows(context, [longer])
    known = np.isfinite(seen)
    assert np.abs(seen[known] - guessed[known]).max() > 0.2
    context.close()


def test_reading_goes_in_chunks_and_without_states_nothing_is_guessed(target: Context, head_model: Model) -> None:
    target.forget(0)
    history = np.arange(100, 400, dtype=np.int32)
    context = Eagle3Context(head_model, target, (1, 3, 5))
    assert not np.isfinite(rows(context, [history])[0]).any()
    assert context.reusable(0, history, 300) == context.prefill_chunk(0, history, 300) == 299
    target.prefill(0, history, 300)
    assert context.reusable(0, history, 300) == 1
    assert context.prefill_chunk(0, history, 300) == 299
    assert np.isfinite(rows(context, [history])[0]).any()
    context.close()


# -- wrong files --------------------------------------------------------------------------------------------------


def number(key: str, old: int, new: int) -> tuple[bytes, bytes]:
    """A whole number in the metadata, before and after."""
    return key.encode() + struct.pack("<II", 4, old), key.encode() + struct.pack("<II", 4, new)


def layers(*ids: int) -> bytes:
    return struct.pack("<IIQ3i", 9, 5, 3, *ids)


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        (*number("eagle3.target_hidden_size", 256, 512), PairError, "hidden size is 256 in the target and 512 in the"),
        (layers(1, 3, 5), layers(1, 3, 9), PairError, "number of layers is 6 in the target"),
        (layers(1, 3, 5), layers(1, 3, 6), PairError, "does not show what goes into layers of the architecture llama"),
        (layers(1, 3, 5), layers(1, 3, -5), ModelFileError, "names target layers"),
        (b"blk.0.ffn_up.weight", b"blk.0.ffn_uq.weight", ModelFileError, r"lacks the tensor blk\.0\.ffn_up\.weight"),
        (b"fc.weight", b"fd.weight", ModelFileError, r"lacks the tensor fc\.weight"),
        (*number("eagle3.block_count", 1, 2), ModelFileError, "has one layer, this has 2"),
        (*number("eagle3.attention.key_length", 64, 32), ModelFileError, "keys have 32 numbers, and values 64"),
        (*number("eagle3.rope.dimension_count", 64, 128), ModelFileError, "turns 128 of 64 numbers of a key"),
        (*number("eagle3.rope.dimension_count", 64, 63), ModelFileError, "turns 63 of 64 numbers of a key"),
        (*number("eagle3.attention.head_count_kv", 2, 3), ModelFileError, "4 heads cannot share 3 keys and values"),
        (b"<|spare_7|>", b"<|spars_7|>", PairError, "token 24 is"),
    ],
)
def test_a_wrong_file_is_refused(
    old: bytes, new: bytes, error: type[LocalspecError], words: str, tiny_target: Path, tmp_path: Path
) -> None:
    data = HEAD.read_bytes()
    assert data.count(old) == 1
    (tmp_path / "wrong.gguf").write_bytes(data.replace(old, new))
    with pytest.raises(error, match=words):
        load_eagle3(tmp_path / "wrong.gguf", read_header(tiny_target))


@pytest.mark.parametrize(("token", "words"), [(4096, "guesses token 4096"), (None, "names a token twice")])
def test_tokens_that_would_end_the_process_are_refused(
    token: int | None, words: str, tiny_target: Path, tmp_path: Path
) -> None:
    (ids,) = (tensor for tensor in read_header(HEAD).tensors if tensor.name == "d2t")
    data = bytearray(HEAD.read_bytes())
    first = data[ids.offset : ids.offset + 8] if token is None else struct.pack("<q", token)
    data[ids.offset + 8 : ids.offset + 16] = first
    (tmp_path / "wrong.gguf").write_bytes(data)
    with pytest.raises(LocalspecError, match=words):
        load_eagle3(tmp_path / "wrong.gguf", read_header(tiny_target))


def text(words: str) -> bytes:
    """As a header holds it."""
    return struct.pack("<Q", len(words)) + words.encode()


def test_tokens_without_an_embedding_are_refused(tiny_target: Path, tmp_path: Path) -> None:
    about = read_header(HEAD).text("general.description")
    data = HEAD.read_bytes().replace(text("output.weight"), text("token_embd.weight"))
    (tmp_path / "wrong.gguf").write_bytes(data.replace(text(about), text(about[:-4])))  # as long as before
    with pytest.raises(ModelFileError, match="has embeddings of 1536 tokens, and 4096 tokens"):
        load_eagle3(tmp_path / "wrong.gguf", read_header(tiny_target))


def test_the_targets_output_matrix_must_be_of_the_heads_tokens(tiny_target: Path, tmp_path: Path) -> None:
    path, header = tmp_path / "without.gguf", read_header(tiny_target)
    data = HEAD.read_bytes().replace(text("output.weight"), text("outpux.weight"))
    path.write_bytes(data.replace(text("d2t"), text("d2x")))
    assert load_eagle3(path, header).tap == Tap((1, 3, 5))
    kinds = header.metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, Array)
    kinds = dataclasses.replace(kinds, count=kinds.count - 1, size=kinds.size - 4)
    shorter: dict[str, Any] = {"tokenizer.ggml.tokens": header.tokens[:-1], "tokenizer.ggml.token_type": kinds}
    fewer = dataclasses.replace(header, metadata={**header.metadata, **shorter})
    with pytest.raises(PairError, match="there are 4095 tokens in the target and 4096 in the head"):
        load_eagle3(path, fewer)


def test_a_target_whose_state_llama_cpp_takes_back_may_have_a_head(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    for architecture, fits in (("lfm2", True), ("minimax-01", False)):
        metadata = {key.replace("llama.", f"{architecture}."): value for key, value in header.metadata.items()}
        metadata |= {"general.architecture": architecture, f"{architecture}.shortconv.l_cache": 3}
        other = dataclasses.replace(header, metadata=metadata)
        if fits:
            assert load_eagle3(HEAD, other).tap == Tap((1, 3, 5))
            continue
        with pytest.raises(PairError, match=r"keeps a recurrent state \(minimax-01\).*answers without drafts"):
            load_eagle3(HEAD, other)


def test_what_is_no_head_and_what_shows_no_layers(tiny_target: Path, tiny_draft: Path) -> None:
    header = read_header(tiny_target)
    with pytest.raises(ModelFileError, match=r"localspec reads it as GGUF\. Convert it with llama\.cpp"):
        load_eagle3(tiny_draft.parent, header)
    with pytest.raises(PairError, match="is a draft model, not an EAGLE-3 head"):
        load_eagle3(tiny_draft, header)
    metadata = {key.replace("llama.", "gemma3."): value for key, value in header.metadata.items()}
    other = dataclasses.replace(header, metadata={**metadata, "general.architecture": "gemma3"})
    with pytest.raises(PairError, match="does not show what goes into layers of the architecture gemma3"):
        load_eagle3(HEAD, other)
