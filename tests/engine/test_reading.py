"""A long prompt beside running answers, on a clock that passes and tokens move: what they wait for is counted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import ModuleType

import numpy as np
import pytest

from localspec.engine import loop as loop_module
from localspec.engine.interfaces import Request
from localspec.engine.loop import ALONE_SECONDS, FIRST_PIECE, LEAST_ALONE, LEAST_PIECE, PASSES_BETWEEN, Loop, PieceSize
from localspec.engine.slot import FinishReason
from localspec.planning.plan import FixedPlan
from localspec.types import Feed, LogitRows, Tokens
from tests.engine.recital import VOCABULARY
from tests.fakes import FakeTarget, HashModel, answer, prompt

MODEL = HashModel(10)
GRID = 512


class Timed(FakeTarget):
    """A pass takes a second; a piece of n tokens `base` and n times `token`. Prompts may be cut anywhere."""

    grid, any_cut = GRID, True

    def __init__(self, base: float, token: float) -> None:
        super().__init__(MODEL, 10, 16384, range(1, 5), streams=True)
        self.base, self.token, self.now = base, token, 0.0

    def cost(self, tokens: int) -> float:
        return self.base + self.token * tokens

    def prefill_chunk(
        self,
        slot: int,
        tokens: Tokens,
        prompt_length: int,
        cancel: Callable[[], bool] | None = None,
        most: int | None = None,
    ) -> int:
        before = self.reusable(slot, tokens, prompt_length)
        done = super().prefill_chunk(slot, tokens, prompt_length, cancel, most)
        self.now += self.cost(done - before)
        return done

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        self.now += 1.0
        return super().decode(feeds)


def timed(monkeypatch: pytest.MonkeyPatch, base: float, token: float) -> tuple[Timed, Loop]:
    target = Timed(base, token)
    module: ModuleType = loop_module
    monkeypatch.setattr(module, "perf_counter", lambda: target.now)
    return target, Loop(target, FixedPlan((), 0, target.exact_widths), VOCABULARY)


def long_prompt(tokens: int, seed: int = 0) -> Tokens:
    return np.random.default_rng(seed).integers(1, 10, tokens).astype(np.int32)


def running(loop: Loop, slot: int = 0) -> None:
    loop.admit(slot, Request(prompt(1, 2), seed=slot, max_tokens=16000, ignore_end=True))
    for _ in range(4):
        loop.step()


@pytest.mark.parametrize(("base", "token"), [(0.9, 0.02), (0.5, 0.1), (0.9, 0.3), (0.1, 0.5), (0.01, 0.001)])
def test_between_two_tokens_of_an_answer_so_many_tokens_of_a_prompt_are_read(
    monkeypatch: pytest.MonkeyPatch, base: float, token: float
) -> None:
    target, loop = timed(monkeypatch, base, token)
    running(loop)
    loop.admit(1, Request(long_prompt(6000), max_tokens=1, ignore_end=True))
    target.prefilled.clear()
    target.log.clear()
    begun = target.now
    while 1 in loop.active:
        loop.step()
    most = max(LEAST_PIECE, min(GRID, int((PASSES_BETWEEN - 1 - base) / token)))
    pieces = [size for _, size in target.prefilled]
    assert sum(pieces) == 5999
    assert all(left != right for left, right in itertools.pairwise(target.log[:-1])), "a piece, a pass, a piece, ..."
    assert all(size <= most for size in pieces[2:]), f"{most} tokens take less than {PASSES_BETWEEN} passes"
    if most < GRID:
        assert min(pieces[8:-1]) >= most / 2
        reading = sum(target.cost(size) for size in pieces)
        assert reading >= 0.65 * (target.now - begun), "the prompt has the rest of the machine"


def test_no_passes_are_spared_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a piece takes a second, so that a newcomer waits no longer."""
    target, loop = timed(monkeypatch, 0.1, 0.01)
    found = answer(loop, Request(long_prompt(1000), max_tokens=2, ignore_end=True))
    pieces = [size for _, size in target.prefilled]
    assert target.log == ["chunk"] * len(pieces) + ["pass"] * 2
    assert found.finish is FinishReason.LENGTH
    assert all(target.cost(size) <= ALONE_SECONDS for size in pieces)
    assert min(pieces[4:-1]) > 0.8 * (ALONE_SECONDS - target.base) / target.token


def test_a_slow_model_reads_its_weights_seldom_while_it_is_alone() -> None:
    """A pass of a second, most of it for the weights: pieces of a second would have few tokens each."""
    reading = PieceSize(GRID)
    reading.read(32, 0.9 + 32 * 0.05)
    assert reading.piece(False) == LEAST_ALONE
    reading.passes.append(1.0)
    reading.read(LEAST_ALONE, 0.9 + LEAST_ALONE * 0.05)
    assert 200 < reading.piece(False) <= 320
    assert reading.piece(True) < 80
    assert PieceSize(16).piece(False) == 16


def test_a_prompt_that_is_cut_keeps_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    target, loop = timed(monkeypatch, 0.1, 0.01)
    text, gone = long_prompt(2000), list[int]()
    kept = 0
    for steps in range(1, 11):
        gone.clear()
        slot = loop.admit(0, Request(text, max_tokens=1, ignore_end=True), cancel=lambda: bool(gone))
        assert slot.stats.reused_tokens == kept, "what was read is cached"
        for _ in range(steps % 3 + 1):
            loop.step()
        kept = slot.cached
        gone.append(1)
        (event,) = loop.step()
        assert event.finish is FinishReason.CANCELLED
    assert kept == sum(size for _, size in target.prefilled) > 0


def test_a_short_prompt_goes_before_the_rest_of_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target, loop = timed(monkeypatch, 0.5, 0.05)
    running(loop)
    loop.admit(1, Request(long_prompt(3000), max_tokens=1, ignore_end=True))
    for _ in range(5):
        loop.step()
    loop.admit(2, Request(long_prompt(100, 1), max_tokens=1, ignore_end=True))
    target.prefilled.clear()
    while 2 in loop.active:
        loop.step()
    of_short = [size for slot, size in target.prefilled if slot == 2]
    assert [slot for slot, _ in target.prefilled][: len(of_short)] == [2] * len(of_short)
    assert sum(of_short) == 99
    assert 1 in loop.active


def test_several_short_prompts_share_a_piece_and_none_makes_answers_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    target, loop = timed(monkeypatch, 0.9, 0.01)
    running(loop)
    for slot in (1, 2, 3):
        loop.admit(slot, Request(long_prompt(30, slot), max_tokens=1, ignore_end=True))
    loop.step()
    waits = []
    while loop.active.keys() & {1, 2, 3}:
        before = target.now
        loop.step()
        waits.append(target.now - before)
    assert max(waits, default=0.0) <= PASSES_BETWEEN + 1
    assert sum(size for slot, size in target.prefilled if slot) == 3 * 29


@pytest.mark.parametrize("exact", [None, range(1, 5)])
def test_without_the_proof_for_prompts_the_grid_stays_where_answers_are_exact(
    monkeypatch: pytest.MonkeyPatch, exact: range | None
) -> None:
    target, loop = timed(monkeypatch, 0.5, 0.1)
    target.any_cut = False
    target.exact_widths = None if exact is None else frozenset(exact)
    running(loop)
    loop.admit(1, Request(long_prompt(1200), max_tokens=1, ignore_end=True))
    target.prefilled.clear()
    while 1 in loop.active:
        loop.step()
    sizes = [size for _, size in target.prefilled]
    if exact is None:
        assert max(sizes) < 50, "nothing is claimed, so pieces are free"
    else:
        assert sizes == [512, 512, 175]


def test_a_stall_makes_the_next_piece_half_as_long_and_no_less() -> None:
    reading = PieceSize(GRID)
    assert reading.piece(True) == reading.piece(False) == FIRST_PIECE
    reading.passes.append(0.1)
    reading.read(32, 0.032)
    assert reading.piece(True) == 400
    reading.read(400, 100.0)
    assert reading.piece(True) == 200
    reading.read(200, 0.2)
    assert reading.piece(True) == 400
    reading.read(400, 0.0)
    assert reading.piece(True) == 400
