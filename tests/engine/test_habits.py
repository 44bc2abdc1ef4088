"""What outlives a plan."""

from __future__ import annotations

import pytest

from localspec.engine.adaptive import Forced
from localspec.engine.backoff import Backoff
from localspec.engine.habits import Habits, Rate
from tests.engine.simulator import CURVES, World, make, simulate
from tests.engine.worlds import PROCESSES


def test_a_rate_is_tokens_by_seconds_and_a_request_begins_with_little_of_it() -> None:
    rate = Rate()
    assert rate.value == 0.0
    for _ in range(200):
        rate.book(5.0, 0.1)
    rate.begin(50.0)
    assert rate.value == pytest.approx(50.0)
    for _ in range(6):
        rate.book(1.0, 0.1)
    assert rate.value == pytest.approx(30.0, rel=0.05), "six passes weigh as much as all before"


def test_a_rate_that_another_kind_of_text_reached_rules_nothing_out() -> None:
    """A text was copied five times as fast as plain decoding; the next one cannot be."""
    rate = Rate()
    for _ in range(50):
        rate.book(5.0, 0.1)
    rate.begin(10.0)
    assert rate.value == pytest.approx(12.5)
    rate.begin(40.0)
    assert rate.value == pytest.approx(12.5), "it is not raised"


def test_tries_become_rarer_and_no_rarer_than_that() -> None:
    turns = Backoff(8.0, 1.5, 20.0)
    turns.rest(7)
    assert not turns.due
    turns.rest()
    assert turns.due
    for expected in (12.0, 18.0, 20.0, 20.0):
        turns.failed()
        assert turns.wait == expected
    turns.paid()
    assert turns.wait == pytest.approx(20.0 / 1.5)
    turns.restart()
    assert turns.wait == 8.0


def test_copies_are_long_after_two_that_were_and_until_one_was_not() -> None:
    habits = Habits()
    lengths = []
    for copied in (22, 15, None, 3, 15, 15):
        habits.ended(48, 0.5, copied)
        lengths.append(habits.first_copy)
    assert lengths == [7, 15, 15, 7, 15, 15]


def test_a_new_plan_goes_on_where_the_last_one_stopped() -> None:
    world = World(CURVES["wide passes"], PROCESSES["useless draft model"])
    habits = Habits()
    run = simulate(make(world, habits=habits), range(3))
    wait, answer, rate = habits.turn("draft").backoff.wait, habits.answer, habits.rate(1).value
    assert wait > 8.0
    assert answer == pytest.approx(200 + 100 * (1 - 0.8**2))
    again = make(world, habits=habits, acceptance=run.plan.acceptance, account=run.plan.account)
    assert habits.turn("draft").backoff.wait == wait
    before = again.guessers[-1].levels
    simulate(again, range(3, 5))
    assert again.guessers[-1].levels - before < 20, "600 passes"
    forced = make(world, habits=habits, forced=Forced(nodes=3))
    simulate(forced, range(1))
    assert habits.rate(1).value == pytest.approx(rate, rel=0.1), "what settings force says nothing of what pays"
