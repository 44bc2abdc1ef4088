"""The plain time that people are told is the true one, on machines whose clock is virtual."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import pytest

from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, Request
from localspec.engine.loop import Loop
from localspec.engine.stats import Comparison, RequestStats
from localspec.planning.costs import Knowledge, PassCosts
from localspec.planning.plan import AdaptivePlan
from localspec.types import Feed, LogitRows, SamplingParams
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, answer_all, prompt

N_VOCAB, TOKENS = 24, 200
PARTS = tuple((begin, begin + 12) for begin in range(12, TOKENS, 25))
"""Tokens of an answer that are guessed, and right: about half of them."""
ALL = ((0, TOKENS),)

NOISE = Path(__file__).parents[1] / "data" / "pass_noise.json"

Slowness = Callable[[int, int, float], float]


class Machine(FakeTarget):
    """A pass takes the seconds of a curve, times what `slowness` says of its width, the number of such passes by then,
    and the share of the answer that is there."""

    def __init__(self) -> None:
        super().__init__(HashModel(N_VOCAB, order=3), N_VOCAB, n_ctx=512)
        self.now = 0.0
        self.slowness: Slowness = lambda width, number, share: 1.0

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        found = super().decode(feeds)
        width, (feed, *_) = self.widths[-1], feeds
        share = (len(feed.tokens) - feed.prompt_length) / TOKENS
        self.now += (0.01 + 0.0008 * (width - 1)) * self.slowness(width, self.widths.count(width), share)
        return found


class Copier(FakeDrafter):
    """Guesses parts of a text that it knows; every call takes some time."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(self.guess)
        self.machine, self.text, self.parts = machine, list[int](), PARTS

    def guess(self, wanted: DraftRequest) -> Draft:
        self.machine.now += 0.0004
        place = len(wanted.history) - len(wanted.asked.prompt)
        end = max((end for begin, end in self.parts if begin <= place), default=0)
        tokens = self.text[place : min(end, place + wanted.max_nodes)]
        return Draft.chain(tokens, origin=self.name) if tokens else EMPTY_DRAFT


class Bench:
    """A loop that answers plain or with guesses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine()
        self.drafter = Copier(self.machine)
        monkeypatch.setattr("localspec.engine.loop.perf_counter", self.clock)

    def clock(self) -> float:
        return self.machine.now

    def loop(self) -> Loop:
        costs = PassCosts({64: {width: 0.02 + 0.002 * width for width in range(1, 20)}}, estimated=True)
        plan = AdaptivePlan([self.drafter], None, Knowledge(costs), clock=self.clock)
        return Loop(self.machine, plan, FakeVocabulary(N_VOCAB))

    def request(self, number: int, drafter: str | None = None) -> Request:
        greedy = SamplingParams(temperature=0.0)
        return Request(prompt(1, 2, 3, number), sampling=greedy, max_tokens=TOKENS, ignore_end=True, drafter=drafter)

    def answer(self, loop: Loop, number: int, drafter: str | None = None) -> RequestStats:
        self.machine.widths.clear()
        found = answer(loop, self.request(number, drafter))
        self.drafter.text = found.tokens
        return found.stats

    def plain(self, number: int) -> float:
        """Seconds of plain decoding, in a loop of its own; the drafter knows the text from then on."""
        return self.answer(self.loop(), number, "none").decode_seconds


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


class Played:
    """Slowness as it was recorded, pass by pass."""

    def __init__(self, noise: Sequence[float]) -> None:
        self.noise, self.ran = noise, 0

    def __call__(self, width: int, number: int, share: float) -> float:
        self.ran += 1
        return self.noise[self.ran - 1]


def stalls(width: int, number: int, share: float) -> float:
    return 5.0 if width == 1 and number % 10 == 5 else 1.0


def twice(width: int, number: int, share: float) -> float:
    return 2.0


def twice_from_the_middle(width: int, number: int, share: float) -> float:
    return 2.0 if share >= 0.5 else 1.0


@pytest.mark.parametrize(("slowness", "error"), [(twice, 0.001), (twice_from_the_middle, 0.03), (stalls, 0.02)])
def test_the_ratio_is_the_true_one_whatever_else_runs(bench: Bench, slowness: Slowness, error: float) -> None:
    """After two answers on the quiet machine, which the plan's belief still tells of."""
    loop = bench.loop()
    for number in (1, 2):
        bench.plain(number)
        bench.answer(loop, number)
    bench.machine.slowness = slowness
    for number in (3, 4):
        plain = bench.plain(number)
        stats = bench.answer(loop, number)
        assert stats.draft_passes >= 7
        assert stats.compared == TOKENS
        assert stats.estimated_speedup == pytest.approx(plain / stats.decode_seconds, rel=error)


@pytest.mark.parametrize("slow", [1.0, 2.0, 1.4])
def test_an_answer_that_is_copied_from_its_first_token(bench: Bench, slow: float) -> None:
    """Its passes say how slow the machine has become since plain ones ran."""
    loop = bench.loop()
    for number in (1, 2):
        bench.plain(number)
        bench.answer(loop, number)
    bench.machine.slowness = lambda width, number, share: slow
    bench.drafter.parts = ALL
    for number in (3, 4, 5, 6):
        plain = bench.plain(number)
        stats = bench.answer(loop, number)
        assert stats.passes - stats.draft_passes < 4
        assert stats.estimated_speedup == pytest.approx(plain / stats.decode_seconds, rel=0.08)


def test_slots_that_share_passes_are_compared_with_plain_passes_of_as_many(bench: Bench) -> None:
    bench.machine.streams = True
    both = {slot: bench.request(slot, "none") for slot in (0, 1)}
    plain = answer_all(bench.loop(), both)
    bench.drafter.text = plain[0].tokens
    found = answer_all(bench.loop(), {0: bench.request(0), 1: both[1]})
    ratio = plain[0].stats.decode_seconds / found[0].stats.decode_seconds
    assert found[0].stats.draft_passes > 5
    assert ratio > 1.2
    assert found[0].stats.estimated_speedup == pytest.approx(ratio, rel=0.05)
    assert found[1].stats.estimated_speedup == 0.0, "nothing was drafted for it"


@pytest.mark.parametrize("beside", ["quiet", "shared"])
def test_the_figure_is_near_the_truth_with_the_noise_of_a_real_machine(bench: Bench, beside: str) -> None:
    """Recorded quiet, and beside programs that come and go. In truth plain passes are as slow as those that ran."""
    noise = [slowness for slowness, _ in json.loads(NOISE.read_text("utf-8"))[beside]]
    loop, errors = bench.loop(), list[float]()
    for number in range(24):
        bench.drafter.parts = (PARTS, ((40, 140),), ALL)[number % 3]
        bench.machine.slowness = lambda width, count, share: 1.0
        quiet = bench.plain(number)
        played = Played(noise[37 * number :])
        bench.machine.slowness = played
        stats = bench.answer(loop, number)
        if stats.estimated_speedup:
            true = quiet * fmean(played.noise[: played.ran]) / stats.decode_seconds
            errors.append(stats.estimated_speedup / true - 1.0)
    assert len(errors) >= 22, "nearly every answer has a figure"
    assert fmean(map(abs, errors)) <= 0.05
    assert max(map(abs, errors)) <= 0.2


def test_an_answer_is_compared_as_often_as_people_read_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, totals = list[float](), Comparison.totals

    def counted(comparison: Comparison) -> tuple[float, int, float]:
        calls.append(bench.clock())
        return totals(comparison)

    monkeypatch.setattr(Comparison, "totals", counted)
    seconds = bench.plain(1)
    assert seconds > TOKENS * 0.01, "a pass takes a hundredth of a second"
    assert 15 * seconds * 0.5 < len(calls) <= 15 * seconds + 2


def test_where_no_plain_pass_is_known_there_is_no_figure(bench: Bench) -> None:
    loop = bench.loop()
    bench.drafter.parts = ALL
    bench.plain(1)
    stats = bench.answer(loop, 1)
    assert stats.drafted
    assert (stats.plain_seconds, stats.compared, stats.estimated_speedup) == (0.0, 0, 0.0)


def test_an_answer_without_drafts_has_no_figure(bench: Bench) -> None:
    """Guesses were asked for in every pass; that is plain decoding all the same."""
    loop = bench.loop()
    bench.drafter.parts = ()
    bench.plain(1)
    stats = bench.answer(loop, 1)
    assert bench.drafter.requests
    assert (stats.drafted, stats.plain_seconds, stats.estimated_speedup) == (0, 0.0, 0.0)
