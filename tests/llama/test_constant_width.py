"""Passes of one width give every row the same bits, across the steps of 256 cells: texts do not fork; others do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.interfaces import Drafter, Request
from localspec.engine.loop import Loop
from localspec.errors import ModelError, UsageError
from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.exact.choice import choose
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.planning.plan import FixedPlan
from localspec.types import Feed, SamplingParams, Tokens
from tests.fakes import FakeDrafter, answer, answer_all, parrot
from tests.llama.conftest import chain, same_bits

SETTINGS = ContextSettings(n_ctx=640, grid=64, threads=2, reuse="chunks")
"""Two threads: llama.cpp then splits the attention of one-row passes from 512 cells on."""
LENGTHS = (60, 244, 490)
"""Prompts; answers of 40 tokens cross the steps at 256 and 512 cells."""
WIDTHS = (2, 4, 8, 16)


@pytest.fixture(scope="module")
def repacked(tiny_target: Path) -> Iterator[Model]:
    """The bundled target on llama.cpp's own kernels, which are chosen by the width of a pass."""
    with Model.load(tiny_target, kernels="repacked") as model:
        yield model


@pytest.fixture(scope="module")
def words() -> Tokens:
    return np.random.default_rng(3).integers(64, 4000, 640).astype(np.int32)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_has_the_bits_of_its_own_pass(width: int, repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, SETTINGS, width)
    for length in (60, 250, 256, 257, 509):
        most = context.longest_draft(length)
        assert most == min(width - 1, -(length - 1 + width) % 256)
        own = [context.decode([Feed(0, words[: length + row], 40)])[0][0].copy() for row in range(most + 1)]
        context.forget(0, length - 1)
        (rows,) = context.decode([Feed(0, words[:length], 40, words[length : length + most], chain(most))])
        assert len(rows) == most + 1
        assert all(same_bits(rows[row], one) for row, one in enumerate(own))
        assert context.cached(0) == length + most, "rows that count for nothing are gone"
    context.close()


def test_what_a_rejected_draft_leaves_does_not_count(repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, SETTINGS, 8)
    plain = [context.decode([Feed(0, words[:length], 40)])[0][0].copy() for length in range(240, 262)]
    context.forget(0)
    for length in range(240, 262):
        nodes = context.longest_draft(length)
        (rows,) = context.decode([Feed(0, words[:length], 40, words[:nodes], chain(nodes))])
        assert same_bits(rows[0], plain[length - 240])
    context.close()


def test_slots_have_the_bits_of_a_context_of_their_own(repacked: Model, words: Tokens) -> None:
    """Three slots at lengths of other blocks of 256 cells; what one holds and drafts changes no row of another."""
    alone = ConstantWidth(repacked, replace(SETTINGS, n_ctx=400), 4)
    together = ConstantWidth(repacked, replace(SETTINGS, n_ctx=400, n_slots=3), 4)
    texts = [np.roll(words, 31 * slot) for slot in range(3)]
    for lengths in ((60, 250, 380), (61, 251, 381), (255, 62, 257)):
        feeds, own = [], []
        for slot, length in enumerate(lengths):
            nodes = alone.longest_draft(length)
            feed = Feed(slot, texts[slot][:length], 40, texts[slot][length : length + nodes], chain(nodes))
            (rows,) = alone.decode([replace(feed, slot=0)])
            own.append([rows[row].copy() for row in range(1 + nodes)])
            feeds.append(feed)
        for feed, expected, rows in zip(feeds, own, together.decode(feeds), strict=True):
            assert len(rows) == len(expected)
            assert all(same_bits(rows[row], one) for row, one in enumerate(expected))
            assert together.cached(feed.slot) == len(feed.tokens) + len(feed.draft_tokens)
    assert together.pass_widths({0: 2, 2: 4}) == [2, 4]
    assert together.same_bits()
    alone.close()
    together.close()


def test_texts_of_several_slots_do_not_fork(repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, replace(SETTINGS, n_ctx=320, n_slots=2), 8)
    requests = {}
    for slot, length in enumerate((60, 244)):
        sampling = SamplingParams(temperature=0.7 * slot)
        requests[slot] = Request(
            words[slot : slot + length].copy(), sampling=sampling, seed=slot, max_tokens=40, ignore_end=True
        )
    plain = {slot: answer(Loop(context, FixedPlan([], 7, None), context.model), one) for slot, one in requests.items()}
    for slot in requests:
        context.forget(slot)
    known = {slot: [*one.prompt.tolist(), *plain[slot].tokens] for slot, one in requests.items()}
    script = parrot(known[0], 0.8, np.random.default_rng(0), context.n_vocab)
    loop = Loop(context, FixedPlan([FakeDrafter(script)], 7, None), context.model)
    together = answer_all(loop, requests)
    assert {slot: one.tokens for slot, one in together.items()} == {slot: one.tokens for slot, one in plain.items()}
    assert together[0].stats.accepted > 5
    context.close()


def forks(context: Context, words: Tokens, runs: int) -> tuple[int, int]:
    """Texts that differ from plain decoding's, and guesses that were accepted."""
    differ = accepted = 0
    for run in range(runs):
        length, temperature = LENGTHS[run % 3], (0.0, 0.7, 1.0)[run // 3 % 3]
        prompt = np.roll(words, run)[:length].copy()
        texts, known = [], list[int]()
        for drafted in (False, True):
            script = parrot([*prompt.tolist(), *known], 0.8, np.random.default_rng(run), context.n_vocab)
            guesses: list[Drafter] = [FakeDrafter(script)] if drafted else []
            loop = Loop(context, FixedPlan(guesses, 7, None), context.model)
            request = Request(
                prompt, sampling=SamplingParams(temperature=temperature), seed=run, max_tokens=40, ignore_end=True
            )
            said = answer(loop, request)
            known = said.tokens
            texts.append(said.tokens)
            accepted += said.stats.accepted
            context.forget(0)
        differ += texts[0] != texts[1]
    return differ, accepted


@pytest.mark.parametrize(("width", "runs"), [(2, 9), (8, 18)])
def test_texts_do_not_fork(width: int, runs: int, repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, SETTINGS, width)
    differ, accepted = forks(context, words, runs)
    assert differ == 0
    assert accepted > 5 * runs
    context.close()


@pytest.mark.trial
@pytest.mark.parametrize("width", WIDTHS)
def test_no_fork_in_two_hundred_runs(width: int, repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, SETTINGS, width)
    differ, accepted = forks(context, words, 200)
    assert differ == 0
    assert accepted > 1000
    context.close()


def test_passes_of_other_widths_fork(repacked: Model, words: Tokens) -> None:
    """The control: the same texts, drafts and kernels, at the width that each draft has."""
    context = Context(repacked, SETTINGS)
    differ, _ = forks(context, words, 18)
    assert differ > 0
    context.close()


def test_the_end_of_the_context_and_what_does_not_fit(repacked: Model, words: Tokens) -> None:
    context = ConstantWidth(repacked, SETTINGS, 8)
    assert context.n_ctx == 633
    (rows,) = context.decode([Feed(0, words[:633], 600)])
    assert np.isfinite(rows[0]).all()
    with pytest.raises(UsageError, match="a draft has 7 tokens; this pass takes 0"):
        context.decode([Feed(0, words[:249], 40, words[:7], chain(7))])
    with pytest.raises(UsageError, match="a draft has 2 leaves"):
        context.decode([Feed(0, words[:60], 40, words[:2], np.array([-1, -1], dtype=np.int32))])
    context.close()
    with pytest.raises(UsageError, match="need chains"):
        ConstantWidth(repacked, ContextSettings(max_leaves=2), 8)
    for width in (1, 65):
        with pytest.raises(UsageError, match=f"A pass of {width} rows does not fit"):
            ConstantWidth(repacked, SETTINGS, width)


def test_strict_on_a_gpu_has_passes_of_one_width(tiny_target: Path, words: Tokens) -> None:
    """Where no device is found llama.cpp computes the offloaded layers on the CPU, with its own kernels."""
    settings = replace(SETTINGS, n_ctx=400, max_leaves=3)
    chosen = choose(tiny_target, settings, exact="strict", gpu_layers=99)
    context = chosen.context
    assert isinstance(context, ConstantWidth)
    assert (context.n_ctx, context.exact_widths) == (400, frozenset(range(1, 9)))
    differ, accepted = forks(context, words[:330], 2)
    assert (differ, accepted > 5) == (0, True)
    chosen.model.close()
    several = choose(tiny_target, replace(SETTINGS, n_slots=2, n_ctx=64), exact="strict", gpu_layers=99)
    assert isinstance(several.context, ConstantWidth)
    assert several.context.exact_widths is not None
    several.model.close()
    for slots, exact in ((1, "auto"), (2, "off"), (2, "auto")):
        other = choose(tiny_target, replace(SETTINGS, n_slots=slots), exact=exact, gpu_layers=99)  # type: ignore[arg-type]
        assert not isinstance(other.context, ConstantWidth)
        other.model.close()


def test_one_width_that_does_not_help_is_no_exactness(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConstantWidth, "same_bits", lambda self: False)
    with pytest.raises(ModelError, match=r"differ on this GPU even in passes of one width.*--gpu-layers 0 is exact"):
        choose(tiny_target, SETTINGS, exact="strict", gpu_layers=99)


def test_rows_that_differ_are_noticed(repacked: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ConstantWidth(repacked, SETTINGS, 8)
    assert context.same_bits()
    assert context.cached(0) == 0
    monkeypatch.setattr(context, "_pass_bits", lambda tokens, prompt_length: b"other")
    assert not context.same_bits()
    context.close()
