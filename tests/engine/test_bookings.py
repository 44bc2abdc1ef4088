"""What the plan books in the guard's account, and what it asks for while that holds little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.drafters.cascade import Cascade
from localspec.engine.guard import Account
from localspec.engine.interfaces import DraftRequest, History
from localspec.types import Noise, SamplingParams
from tests.engine.simulator import CURVES, STREAMS, Process, World, make, seconds, simulate
from tests.engine.test_adaptive import experienced
from tests.engine.worlds import ANSWERS, LATER, PROCESSES

RIGHT = PROCESSES["draft model right in 0.9"]


def test_a_draft_that_stalls_ends_no_speculation() -> None:
    """0.7 s, 23 plain passes: a page of the draft model had to be fetched from the disk."""
    world = World(CURVES["GPU"], RIGHT, stalls={100: 0.7})
    run = simulate(make(world), ANSWERS, seed=7)
    assert run.guessers[0].stalled == 0.7
    best, name = world.best_fixed(LATER)
    assert best / seconds(run, LATER) >= 0.95, f"the best is {name}"


@pytest.mark.parametrize("stalls", [{100: 0.7}, {100: 0.7, 101: 0.7}], ids=["one", "two"])
def test_of_a_stall_little_is_booked_and_of_another_one_soon_after_all(stalls: dict[int, float]) -> None:
    world = World(CURVES["GPU"], RIGHT, noise=0.0, stalls=stalls)
    run = simulate(make(world), range(4))
    assert run.guessers[0].stalled == sum(stalls.values())
    assert run.clock.now - run.plan.account.spent == pytest.approx(0.7 - 2 * 0.03, abs=0.15)


def test_nobody_is_asked_for_a_draft_that_could_not_be_sent() -> None:
    """What may be lost is less than one wrong guess: the draft model waits until it is enough."""
    world = World(CURVES["GPU"], RIGHT, read=0.0001)
    run = simulate(make(world, acceptance=experienced(), account=Account(opening=0.0)), range(2))
    assert min(run.guessers[0].asked) >= 1
    assert run.drafts() > 20
    assert run.plan.account.balance > 0.0


def test_a_request_that_comes_writes_off_nothing_that_was_read_for_another() -> None:
    plan = make(World(CURVES["GPU"], RIGHT, level=9.0)).plan  # too dear to be asked
    (one,) = plan.costly
    first, second = (
        DraftRequest(slot, History([1] * 100), 7, 7, SamplingParams(), Noise(1), room=200) for slot in range(2)
    )
    plan.draft(Cascade([]), STREAMS, [first], [1])
    one.investment.invest(0, 0.2)
    before = plan.account.balance
    plan.draft(Cascade([]), STREAMS, [first, second], [1, 1])
    assert plan.account.balance == before
    plan.draft(Cascade([]), STREAMS, [replace(first, history=History([1] * 100)), second], [1, 1])
    assert plan.account.balance == pytest.approx(before - 0.2)


def test_tries_that_were_to_go_on_do_not_in_the_next_request() -> None:
    (one,) = make(World(CURVES["GPU"], RIGHT)).plan.costly
    one.turn.idle, one._burst, one._probes = 5, 2, 3
    assert one.waited > 5
    one.begin(0)
    assert one.waited == 5


@pytest.mark.parametrize("plain", [0.001, 0.02])
def test_what_was_lost_in_a_stall_does_not_end_drafting_for_all_behind_it(plain: float) -> None:
    """Passes took fifty times as long when it was booked: 200 plain passes of a quiet machine, for which 25,000 tokens
    would have to be decoded plain.
    """
    world = World(
        lambda width, length: plain * (1.0 + 0.05 * (width - 1)), {"good": Process.of(np.full(3000, 0.9), 1)}, noise=0.0
    )
    run = simulate(make(world), range(2))
    account = run.plan.account
    account.scale(50.0 * plain)
    account.book(0.0, 1e6 * plain)
    assert account.balance == pytest.approx(-200.0 * plain)
    passes = len(run.widths)
    simulate(run, range(2, 5))
    assert run.drafts(passes) > 0.3 * len(run.widths[passes:])
    passes = len(run.widths)
    simulate(run, range(5, 8))
    assert run.drafts(passes) > 0.95 * len(run.widths[passes:])
