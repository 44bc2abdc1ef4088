"""Where a rejected draft costs much, drafts without cost prove themselves first; trials share what they may cost."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.costs import PassCosts
from localspec.engine.guard import OPENING_PASSES, Account
from localspec.engine.imagined import imagine, judged
from localspec.engine.interfaces import Draft, DraftRequest, History
from localspec.engine.option import Choice, Option, best_choice
from localspec.engine.situation import Imagined, Served, Situation
from localspec.types import Noise, SamplingParams
from tests.engine.simulator import Process, World, make, seconds, simulate, steps

STEEP = steps(1.0, 2.4, 2.4, 2.8, 3.6, 4.2, 4.9, 5.6)
"""Q4_K_M without kernels for wide passes."""
TOKENS, ANSWERS = 48, range(12)


def world(chances: np.ndarray, **more: float) -> World:
    process = Process.of(np.append(chances, chances[-200:]), 3)
    return World(STEEP, {"lookup": process}, prompt=80, answer=TOKENS, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("chance", [0.1, 0.4, 0.6])
def test_where_it_does_not_pay_nothing_is_lost(chance: float) -> None:
    given = world(np.full(ANSWERS.stop * TOKENS, chance))
    run = simulate(make(given), ANSWERS)
    assert given.plain(ANSWERS) / seconds(run, ANSWERS) >= 0.98


def test_a_copy_is_drafted_once_it_is_proved() -> None:
    given = world(np.full(ANSWERS.stop * TOKENS, 0.99))
    run = simulate(make(given), ANSWERS)
    assert given.plain(ANSWERS) / seconds(run, ANSWERS) > 1.1
    assert run.widths[0] == 1


def served(draft: Draft) -> Served:
    found = Served(History([7, 7]), 2, [])
    found.imagined = Imagined(draft, 2, 0.05, 0.03)
    return found


@pytest.mark.parametrize(
    ("emitted", "saved"), [([], None), ([1], None), ([1, 2], None), ([1, 2, 3], 0.04), ([1, 9], -0.02), ([9], -0.05)]
)
def test_what_a_draft_would_have_saved(emitted: list[int], saved: float | None) -> None:
    found = served(Draft.chain([1, 2, 3]))
    assert judged(found, History([7, 7, *emitted])) == pytest.approx(saved or 0.0)
    assert (found.imagined is None) == (saved is not None)


def test_of_a_tree_the_way_the_target_took_counts() -> None:
    tree = Draft(np.array([1, 2, 3], dtype=np.int32), np.array([-1, -1, 1], dtype=np.int32))
    assert judged(served(tree), History([7, 7, 2, 3])) == pytest.approx(0.01)
    assert judged(served(tree), History([7, 7, 1])) == pytest.approx(-0.02)


def test_where_a_part_is_sent_nothing_is_imagined_and_else_the_whole_is() -> None:
    history = History([7, 7])
    request = DraftRequest(0, history, 3, 3, SamplingParams(), Noise(1))
    kept = Served(history, 2, [])
    kept.begin()
    now = Situation([request], [1], [kept], 2, [0.0, 1.0], [1.0, 1.1, 1.2, 1.3], 1.0)
    now.ready = [[Option([0.0, 0.9, 1.7, 2.4], Draft.chain([1, 2, 3]), True)]]
    now.bound(0.15)
    wish = best_choice(now.ready, now.prices, now.rate)
    now.cut()
    sent = best_choice(now.ready, now.prices, now.rate)
    assert (wish.nodes, sent.nodes) == (3, 1)
    imagine(now, wish, sent)
    assert kept.imagined is None
    imagine(now, wish, Choice(0.0, 0, [None]))
    assert kept.imagined is not None
    assert len(kept.imagined.draft) == 3
    assert kept.imagined.plain_seconds == 1.0
    assert kept.imagined.extra_seconds == pytest.approx(0.3)


def test_proof_is_what_may_be_lost_and_an_answers_own() -> None:
    account = Account()
    account.scale(0.03)
    least = account.unproven
    account.prove(-1.0)
    assert account.unproven == least
    account.prove(0.08)
    assert account.unproven == pytest.approx(0.08)
    account.book(0.03, 0.06)
    assert account.unproven == pytest.approx(0.05)
    account.begin()
    assert account.unproven == least


def test_short_answers_try_little_and_trials_are_paid_for_once() -> None:
    account = Account()
    account.begin(1.0, 48.0)
    account.scale(0.03)
    assert account.trials < 0.03 * 0.03 * 48
    account.book(0.03, 0.05, trial=True)
    left = account.trials
    account.book(0.03, 0.03)
    assert account.trials == left, "it does not grow back within a short answer"
    for _ in range(100):
        account.begin(1.0, 48.0)
    assert account.trials <= 0.03 * OPENING_PASSES


def test_what_is_forgotten_goes_back_to_ratios_and_not_to_the_speed_of_an_hour() -> None:
    slow = PassCosts({128: {1: 0.06, 4: 0.15}}, 4)
    usual = PassCosts({128: {1: 0.03, 4: 0.07}}, 4)
    slow.recall(usual)
    for _ in range(2000):
        slow.observe(1, 128, 0.03)
    assert slow.seconds(4, 128) == pytest.approx(0.075, rel=0.05), "the ratio it was calibrated with"
