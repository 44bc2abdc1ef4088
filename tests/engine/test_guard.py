"""The account and the investments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.guard import OPENING_PASSES, SHARE, Account, Investment


def account(pass_seconds: float = 0.03) -> Account:
    opened = Account()
    assert not opened.open, "nothing is known of a pass yet"
    opened.scale(pass_seconds)
    return opened


def test_it_opens_with_some_passes_once() -> None:
    opened = account()
    assert opened.open
    assert opened.balance == pytest.approx(OPENING_PASSES * 0.03)
    assert opened.affords(opened.trials)
    assert not opened.affords(1.01 * opened.trials)
    opened.book(0.03, 0.09)
    opened.scale(0.04)
    assert opened.balance < OPENING_PASSES * 0.03


def test_what_was_lost_in_a_stall_is_no_debt_of_a_lifetime() -> None:
    """A pass took twenty times as long for a while; four of those would be eighty when the machine is quiet again."""
    opened = account()
    opened.scale(0.6)
    for _ in range(30):
        opened.book(0.6, 1.2)
        opened.book(0.6, 1.2, trial=True)
    assert opened.passes == pytest.approx(-4.0)
    opened.scale(0.03)
    assert opened.passes == pytest.approx(-4.0)
    opened.begin()
    passes = 0
    while not opened.open:
        opened.book(0.03, 0.03)
        passes += 1
    assert passes == pytest.approx(4 / SHARE, abs=1)
    for _ in range(20):
        opened.begin()
    assert opened.full


@given(
    vain=st.floats(0.0, 40.0),
    lost=st.floats(0.0, 40.0),
    saved=st.floats(0.0, 40.0),
    shorter=st.floats(0.01, 1.0),
)
def test_debts_shrink_with_passes_and_no_more_than_that(vain: float, lost: float, saved: float, shorter: float) -> None:
    """A balance that such passes could have left is what it was, and so is what others read in vain."""
    opened, unit = account(), 0.03 * shorter
    opened.book(0.0, lost * 0.03)
    opened.write_off(vain * 0.03)
    opened.book(saved * 0.03, 0.0)
    balance, risk, unproven, proof = opened.balance, opened.risk, opened.unproven, opened.proof
    opened.scale(unit)
    assert balance <= opened.balance <= max(balance, -4.0 * unit)
    assert risk <= opened.risk <= max(risk, -4.0 * unit)
    assert opened.proof == proof
    if balance >= -4.0 * unit:
        assert opened.balance == balance
        assert opened.unproven <= unproven
    assert opened.balance >= -12.0 * unit - 1e-12
    if not vain:
        assert opened.balance >= -4.0 * unit - 1e-12


def test_a_prompt_read_in_vain_stays_one_where_passes_are_a_little_shorter() -> None:
    opened = account()
    opened.write_off(1e9)
    opened.prove(0.15)
    before = opened.unproven
    assert before > 0.0
    opened.scale(0.029)
    assert opened.passes == pytest.approx(-12.0)
    assert opened.unproven == pytest.approx(before, rel=0.1)


def test_what_an_earlier_run_left_is_all_there_is() -> None:
    opened = Account(opening=-2.0)
    opened.scale(0.03)
    assert not opened.open
    assert opened.passes == pytest.approx(-2.0)
    assert Account(opening=3.0).passes == 3.0


@given(passes=st.lists(st.tuples(st.integers(1, 8), st.floats(0.02, 0.3), st.booleans(), st.booleans()), max_size=300))
def test_whatever_drafts_do_the_time_is_bounded(passes: list[tuple[int, float, bool, bool]]) -> None:
    """No pass could lose more than is allowed; what passes save is kept up to a limit only."""
    opened = account()
    plain = spent = 0.0
    for tokens, seconds, trial, begins in passes:
        if begins:
            opened.begin()
        allowed = opened.trials if trial else opened.risk
        if seconds - 0.03 > allowed:
            tokens, seconds = 1, 0.03
        opened.book(0.03 * tokens, seconds, trial)
        plain, spent = plain + 0.03 * tokens, spent + seconds
        assert spent <= (1 + SHARE) * plain + OPENING_PASSES * 0.03 + 1e-9
    assert (opened.plain, opened.spent) == (plain, spent)


def test_a_good_hour_pays_for_little_of_a_bad_one() -> None:
    opened = account()
    for _ in range(10_000):
        opened.book(0.09, 0.03)
    lost = 0.0
    while opened.open or opened.trials > 0.0:
        opened.book(0.03, 0.06, trial=not opened.open)
        lost += 0.03
    assert lost < 14 * 0.03


def test_an_answer_loses_a_few_passes_and_what_it_has_saved_itself() -> None:
    opened = account()
    for _ in range(1000):
        opened.book(0.09, 0.03)
    opened.begin()
    fresh = opened.risk
    assert 0.0 < fresh < opened.balance
    opened.book(0.06, 0.03)
    assert opened.risk > fresh
    while opened.open:
        opened.book(0.03, 0.06)
    assert opened.balance > 0.0, "the next answer may try"
    opened.begin()
    assert opened.open
    while opened.open:
        opened.book(0.03, 0.06)
    passes = 0
    while not opened.open and passes < 100:
        opened.book(0.03, 0.03)
        passes += 1
    assert opened.open, "a long answer may again and again"


def test_trials_leave_an_answer_what_it_may_lose() -> None:
    opened = account()
    risk = opened.risk
    while opened.affords(0.03):
        opened.book(0.03, 0.06, trial=True)
    assert opened.risk >= risk
    assert opened.balance < OPENING_PASSES * 0.03


@pytest.mark.parametrize("trial", [True, False])
def test_one_pass_that_takes_very_long_does_not_end_speculation(trial: bool) -> None:
    """While it is closed nothing is sent, and so nothing saved."""
    opened = account()
    opened.book(0.03, 10.0, trial)
    assert opened.trials == 0.0
    passes = 0
    while not opened.open and passes < 2000:
        opened.book(0.03, 0.03)
        passes += 1
    assert 64 < passes < 550


def test_a_reading_that_was_lost_weighs_more_than_a_pass_and_no_booking_makes_it_less() -> None:
    opened = account()
    opened.write_off(1e9)
    owed = opened.balance
    opened.book(0.03, 0.06)
    assert opened.balance == owed < -10 * 0.03


def test_trials_are_allowed_for_once() -> None:
    """A share of what will be decoded, however it is cut into stretches."""
    opened = account()
    opened.book(0.0, opened.allowance, trial=True)
    opened.begin(1.0, 300.0)
    allowed = opened.allowance
    for _ in range(300):
        before = opened.allowance
        opened.book(0.03, 0.03)
        allowed += opened.allowance - before
        opened.book(0.0, opened.allowance, trial=True)
    assert allowed < 0.03 * 0.03 * 300


def test_a_copy_that_proves_itself_is_sent_in_a_stretch_that_has_lost_its_risk() -> None:
    opened = account()
    while opened.open:
        opened.book(0.03, 0.06)
    assert opened.unproven <= 0.0
    opened.prove(0.08)
    assert opened.unproven == pytest.approx(0.08)
    opened.prove(1e9)
    assert opened.unproven == pytest.approx(min(opened.proof, opened.balance + 3 * 0.03))


def test_a_copy_that_proves_itself_is_sent_though_the_account_is_in_debt() -> None:
    opened, before = account(), math.inf
    while opened.balance > -3.9 * 0.03:
        opened.book(0.03, 0.032)
        opened.proof = 0.0
        assert opened.unproven <= max(0.0, opened.balance), "nothing has proved itself"
        opened.proof = 2 * 0.03
        assert opened.unproven <= before, "the more is lost, the less may be"
        assert (opened.unproven > 0.0) == (opened.balance > -3.0 * 0.03)
        before = opened.unproven


def test_a_copy_that_proves_itself_is_sent_though_a_prompt_was_read_in_vain() -> None:
    opened, unit = account(), 0.03
    opened.write_off(1e9)
    opened.prove(2 * unit)
    assert opened.unproven == pytest.approx(2 * unit)
    for _ in range(10):
        opened.book(unit, unit + opened.unproven)
        opened.prove(2 * unit)
    assert opened.balance < -10 * unit
    assert opened.spent - (1.0 + SHARE) * opened.plain == pytest.approx(3.0 * unit, abs=0.1 * unit), "as without it"


@given(seed=st.integers(0, 2**32))
def test_drafts_that_prove_themselves_and_then_are_wrong_lose_no_more_than_is_said(seed: int) -> None:
    """Each pass a drafter that is right as long as it is not sent, or sends nothing, or is right for once; beside one
    that reads in vain, which is none of its business.
    """
    opened, rng, unit = account(), np.random.default_rng(seed), 0.03
    for _ in range(400):
        what = rng.random()
        if what < 0.02:
            opened.write_off(float(rng.exponential(20.0)) * unit)
        elif what < 0.4:
            opened.prove(float(rng.exponential(2.0)) * unit)
            opened.book(unit, unit)
        elif what < 0.8:
            opened.book(unit, unit + max(0.0, opened.risk, opened.unproven))
        else:
            opened.begin()
            opened.book(2 * unit, unit)
    assert opened.spent <= (1.0 + SHARE) * opened.plain + (OPENING_PASSES + 3.0) * unit + 1e-9


def test_an_overdrawn_account_opens_again_by_itself() -> None:
    opened = account()
    opened.write_off(1e9)
    assert not opened.open
    passes = 0
    while not opened.open:
        opened.book(0.03, 0.03)
        passes += 1
    assert passes < 2000


def test_an_investment_is_paid_back_before_anything_is_gained() -> None:
    investment = Investment()
    investment.invest(0, 1.0)
    assert investment.repay([0], 0.4) == 0.0
    assert investment.repay([0], -0.1) == -0.1, "losses are losses"
    assert investment.repay([0], 0.9) == 0.9 - 0.6
    assert investment.close(0) == 0.0
    assert investment.patience == 1.0


def test_every_slot_pays_for_its_own_reading() -> None:
    investment = Investment()
    investment.invest(0, 1.0)
    assert investment.repay([0, 1], 1.0) == 0.5
    assert investment.close(1) == 0.0, "another request owes nothing of it"
    assert investment.close(0) == 0.5


def test_investments_that_fail_make_it_patient_and_good_ones_trusting() -> None:
    investment = Investment()
    for expected in (1.5, 2.25, 3.375):
        investment.invest(0, 1.0)
        assert investment.close(0) == 1.0
        assert investment.patience == expected
    investment.invest(0, 1.0)
    investment.repay([0], 2.0)
    assert investment.close(0) == 0.0
    assert investment.patience == 3.375 / 2.0


@given(
    lost=st.floats(0.0, 20.0),
    booked=st.integers(0, 62),  # 64 times 0.03 is above 64 * 0.03, and ends the stretch
    loss=st.floats(0.01, 1.19),
)
def test_it_is_known_how_long_a_draft_that_proved_nothing_must_wait(lost: float, booked: int, loss: float) -> None:
    """Or until a stretch is over, where that is sooner."""
    opened, unit = account(), 0.03
    opened.book(unit, (1.0 + lost) * unit)
    for _ in range(booked):
        opened.book(unit, unit)
    opened.proof = 0.0
    passes, stretch = opened.passes_until(loss * unit), 63 - booked  # of 64, one of which is booked
    assert 0.0 <= passes <= stretch + 1e-6
    for _ in range(math.floor(passes - 1e-6)):
        opened.book(unit, unit)
        opened.proof = 0.0
        assert min(opened.balance, opened.risk) < loss * unit
    for _ in range(2):
        opened.book(unit, unit)
    if passes < stretch - 1e-6:
        assert min(opened.balance, opened.risk) >= loss * unit


def test_it_waits_for_nothing_before_it_is_open() -> None:
    assert Account().passes_until(1.0) == 0.0


def test_what_must_be_proved_no_waiting_helps() -> None:
    assert account().passes_until(1.3 * 0.03) == math.inf
