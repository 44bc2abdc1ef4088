"""What is sent in passes that are not planned, where planning takes a good part of a pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from localspec.drafters.cascade import Cascade, Stage
from localspec.engine.acceptance import Table, Tracker
from localspec.engine.adaptive import AdaptivePlan
from localspec.engine.costs import PassCosts
from localspec.engine.guard import Account
from localspec.engine.habits import Habits
from localspec.engine.interfaces import EMPTY_DRAFT, DraftRequest, History
from localspec.engine.loop import Loop
from localspec.engine.option import best_choice
from localspec.engine.plan import NO_REVIEW, FixedPlan
from localspec.engine.request import Request
from localspec.engine.routine import Routines
from localspec.engine.shadow import Shadow
from localspec.engine.shadow import ask as ask_all
from localspec.engine.situation import Served, Situation, prices
from localspec.types import Noise, SamplingParams
from tests.engine.simulator import TARGET, Clock, Curve, Guesser, Process, Run, World, make, seconds, simulate
from tests.fakes import FakeDrafter, FakeTarget, FakeVocabulary, HashModel, answer, parrot, prompt

PLAIN = 0.001
LOOK = 2e-5
"""Seconds that go by each time somebody looks at the clock: a planned pass does so a dozen times."""
ANSWERS = 12
TOKENS = 300 * ANSWERS + 600


def flat(plain: float) -> Curve:
    """Passes that cost hardly more where they are wide."""
    return lambda width, length: plain * (1.0 + 0.05 * (width - 1))


@dataclass
class BusyClock(Clock):
    """Whatever is timed takes time."""

    look: float = LOOK

    def __call__(self) -> float:
        self.now += self.look
        return self.now


def world(chances: dict[str, np.ndarray], plain: float = PLAIN) -> World:
    """Drafters without cost that are right with these chances, position by position."""
    processes = {name: Process.of(each, seed) for seed, (name, each) in enumerate(chances.items())}
    return World(flat(plain), processes, noise=0.0)


def started(of: World, widths: frozenset[int] | None = None) -> Run:
    run = make(of, draft_costs={}, widths=widths)
    clock = BusyClock()
    run.clock = clock
    for guesser in run.guessers:
        guesser.clock = clock
    # the plan was made with the other clock
    return Run(of, type(run.plan)(run.guessers, widths, costs=run.plan.costs, clock=clock), clock, run.guessers)


def asked(run: Run) -> list[int]:
    return [len(guesser.asked) for guesser in run.guessers]


def test_where_passes_are_short_most_are_not_planned_and_nearly_all_carry_a_draft() -> None:
    """Who is asked alone was asked without a plan."""
    run = simulate(started(world({"good": np.full(TOKENS, 0.8), "bad": np.full(TOKENS, 0.1)})), range(ANSWERS))
    good, bad = asked(run)
    assert bad < 0.3 * good
    assert run.drafts(100) > 0.95 * len(run.widths[100:])
    best, _ = run.world.best_fixed(range(4, ANSWERS))
    assert seconds(run, range(4, ANSWERS)) < 1.15 * best, "and it takes little more than the best fixed choice"


def test_where_passes_are_long_all_are_planned() -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.8), "bad": np.full(TOKENS, 0.1)}, 0.1)), range(2))
    good, bad = asked(run)
    assert good == bad >= len(run.widths) - 2, "all but the last token of each answer"


def test_a_routine_that_brings_nothing_any_more_is_given_up() -> None:
    half = TOKENS // 2
    chances = np.concatenate((np.full(half, 0.9), np.full(TOKENS - half, 0.03)))
    run = simulate(started(world({"once": chances})), range(ANSWERS))
    late = range(ANSWERS - 4, ANSWERS)
    assert seconds(run, range(2, 5)) < 0.5 * run.world.plain(range(2, 5))
    assert seconds(run, late) < 1.06 * run.world.plain(late)


def test_one_that_begins_to_pay_is_found() -> None:
    half = TOKENS // 2
    chances = np.concatenate((np.full(half, 0.03), np.full(TOKENS - half, 0.9)))
    run = simulate(started(world({"late": chances})), range(ANSWERS))
    assert seconds(run, range(4)) < 1.06 * run.world.plain(range(4))
    late = range(ANSWERS - 4, ANSWERS)
    assert seconds(run, late) < 0.6 * run.world.plain(late)


@pytest.mark.parametrize("widths", [{1, 2, 4}, {1, 3}, {1}])
def test_passes_that_are_not_planned_have_exact_widths_too(widths: set[int]) -> None:
    run = simulate(started(world({"good": np.full(TOKENS, 0.8)}), frozenset(widths)), range(4))
    assert set(run.widths) <= widths
    assert len(widths) == 1 or run.drafts() > 0.8 * len(run.widths)


@pytest.mark.parametrize("widths", [None, {1, 2, 3, 4, 8}, {1, 3}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_text_is_that_of_plain_decoding(
    monkeypatch: pytest.MonkeyPatch, temperature: float, widths: set[int] | None
) -> None:
    """On the real loop."""
    monkeypatch.setattr("localspec.engine.loop.perf_counter", BusyClock(look=PLAIN / 4))
    model = HashModel(24)
    request = Request(prompt(3, 1, 4), SamplingParams(temperature=temperature), 5, max_tokens=120, ignore_end=True)
    vocabulary = FakeVocabulary(24)
    known = answer(Loop(FakeTarget(model, 24), Cascade([]), FixedPlan(0, None), vocabulary), request).tokens
    guessers = [
        FakeDrafter(parrot([3, 1, 4, *known], right, np.random.default_rng(seed), 24))
        for seed, right in enumerate((0.9, 0.1))
    ]
    guessers[1].name = "other"
    target = FakeTarget(model, 24, exact_widths=widths, same_bits=widths)
    costs = PassCosts({100: {width: PLAIN * (1.0 + 0.02 * width) for width in range(1, 9)}})
    plan = AdaptivePlan(guessers, target.exact_widths, costs=costs, clock=BusyClock())
    loop = Loop(target, Cascade([Stage(one) for one in guessers]), plan, vocabulary)
    for _ in range(4):
        found = answer(loop, request)
        assert found.tokens == known
    good, bad = (len(one.requests) for one in guessers)
    assert bad < 0.7 * good, "passes were not planned"
    assert found.stats.drafted > 0


class Followed:
    """Routines of one drafter that has been right, and a request."""

    def __init__(self, most: int = 32, drafter: str | None = None) -> None:
        guesser = Guesser("good", Process.of(np.full(200, 0.95), 0, spread=0.0), Clock())
        self.account, self.habits = Account(), Habits()
        self.account.scale(PLAIN)
        self.account.begin()
        shadows = [Shadow(0, guesser, Clock())]
        self.routines = Routines(shadows, None, self.habits, self.account, Clock())
        self.request = DraftRequest(0, History([1] * 20), most, most, SamplingParams(), Noise(1), drafter=drafter)
        self.served = Served(self.request.history, 20, [known()])
        row = [0.0, *(PLAIN * (1.0 + 0.05 * rows) for rows in range(16))]
        for _ in range(40):
            self.served.begin()
            by_nodes = prices(TARGET, [self.request], [1], row, 15, None)
            now = Situation([self.request], [1], [self.served], 20, row, by_nodes, 1.0 / PLAIN)
            ask_all(shadows, now, 15)
            self.worth = self.routines.weighed(now, best_choice(now.ready, now.prices, now.rate))

    def sent(self) -> int:
        """Nodes of the next draft that is not planned."""
        (draft,) = self.routines.draft([self.request], [1], {0: self.served})
        return len(draft)


def known() -> Tracker:
    """Of a drafter that is right 19 times in 20."""
    tracker = Tracker(Table())
    for trial in range(200):
        for depth in range(1, 8):
            tracker.table.learn(0.95, depth, trial % 20 > 0)
    return tracker


def test_it_sends_what_the_plan_sends_and_planning_is_worth_nothing() -> None:
    followed = Followed()
    assert followed.sent() == 7
    assert abs(followed.worth) < 1e-9


def test_no_more_than_the_guard_allows() -> None:
    followed = Followed()
    followed.account.risk = followed.account.proof = 0.0
    assert followed.sent() == 0
    followed.account.proof = 0.125 * PLAIN
    assert followed.sent() == 2


def test_no_more_than_the_request_wants() -> None:
    assert Followed(most=3).sent() == 3
    other = Followed()
    other.request = DraftRequest(0, other.request.history, 9, 9, SamplingParams(), Noise(1), drafter="another")
    assert other.sent() == 0


def test_with_several_slots_passes_that_are_not_planned_are_plain() -> None:
    followed = Followed()
    two = [followed.request, followed.request]
    drafts = followed.routines.draft(two, [1, 1], {0: followed.served, 1: followed.served})
    assert drafts == [EMPTY_DRAFT, EMPTY_DRAFT]
    assert followed.sent() == 0, "until a pass of one slot is planned again"


def test_rows_that_are_decoded_one_by_one_say_nothing() -> None:
    followed = Followed()
    followed.account.risk = followed.account.proof = 0.0
    followed.routines.draft([followed.request], [2], {0: followed.served})
    assert followed.routines.learn([], 0.1, lambda slots, widest: pytest.fail("asked")) is NO_REVIEW
