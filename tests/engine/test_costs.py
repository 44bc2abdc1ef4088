"""Cost curves: seeds, lengths between them, widths nobody saw, outliers, drift, cliffs."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.costs import DraftCosts, PassCosts

SEED = {128: {1: 0.030, 2: 0.048, 4: 0.060, 5: 0.093, 8: 0.099}, 1536: {1: 0.040, 2: 0.060, 4: 0.072, 5: 0.1, 8: 0.11}}

seconds = st.floats(1e-4, 1.0)
seeds = st.dictionaries(
    st.sampled_from([64, 128, 500, 1536, 3584]),
    st.dictionaries(st.integers(1, 12), seconds, min_size=1, max_size=8),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("length", SEED)
def test_what_was_measured_is_what_it_says(length: int) -> None:
    costs = PassCosts(SEED)
    assert {width: costs.seconds(width, length) for width in SEED[length]} == pytest.approx(SEED[length])


def test_lengths_between_and_beyond_lie_on_a_line_and_never_get_cheaper() -> None:
    costs = PassCosts(SEED)
    assert costs.seconds(1, 832) == pytest.approx(0.035)
    assert costs.seconds(1, 4352) == pytest.approx(0.060)
    assert costs.seconds(1, 5) == pytest.approx(0.030)
    lengths = [costs.seconds(4, length) for length in range(0, 9000, 50)]
    assert lengths == sorted(lengths)


@given(measured=seeds, length=st.integers(0, 5000))
def test_an_unknown_width_is_no_cheaper_than_the_next_wider_known_one(
    measured: dict[int, dict[int, float]], length: int
) -> None:
    costs, known = PassCosts(measured, 16), sorted({width for row in measured.values() for width in row})
    row = costs.row(length)
    assert len(row) == 17
    for width in range(1, 17):
        assert row[width] == pytest.approx(costs.seconds(width, length))
        wider = [other for other in known if other >= width]
        if wider:
            assert row[width] >= row[wider[0]] * (1 - 1e-9)
        else:
            assert row[width] == pytest.approx(row[known[-1]] * width / known[-1])


def test_cliffs_are_kept() -> None:
    """A width of 5 is half as dear again as 4 and stays so, whatever 4 and 8 do."""
    costs = PassCosts(SEED)
    for _ in range(200):
        costs.observe(4, 128, 0.060)
        costs.observe(8, 128, 0.099)
    row = costs.row(128)
    assert row[5] / row[4] == pytest.approx(0.093 / 0.060, rel=0.02)


def test_a_wrong_seed_is_corrected_by_the_passes_that_run() -> None:
    costs = PassCosts({128: {1: 0.03, 4: 0.06}})
    for _ in range(60):
        costs.observe(1, 128, 0.03)
        costs.observe(4, 128, 0.12)
    row = costs.row(128)
    assert row[4] / row[1] == pytest.approx(4.0, rel=0.08)


def test_widths_nobody_saw_follow_the_one_they_are_taken_from() -> None:
    costs = PassCosts({128: {1: 0.03, 4: 0.06}})
    for _ in range(200):
        costs.observe(1, 128, 0.03)
        costs.observe(4, 128, 0.12)
    row = costs.row(128)
    assert row[2] == row[3] == row[4] == pytest.approx(0.12, rel=0.08)
    assert row[8] == pytest.approx(2 * row[4])


def test_outliers_move_it_little() -> None:
    costs = PassCosts(SEED)
    for _ in range(30):
        costs.observe(1, 128, 0.030)
    costs.observe(1, 128, 3.0)
    assert costs.seconds(1, 128) == pytest.approx(0.030, rel=0.06)
    rng = np.random.default_rng(1)
    for _ in range(400):
        costs.observe(1, 128, 0.030 * (20.0 if rng.random() < 0.05 else 1.0))
    assert costs.seconds(1, 128) == pytest.approx(0.030, rel=0.08)


def test_a_machine_that_slows_down_slows_down_all_widths() -> None:
    """Plain decoding is compared fairly although only wide passes run."""
    costs = PassCosts(SEED)
    for _ in range(50):
        costs.observe(1, 128, 0.030)
        costs.observe(4, 128, 0.060)
    assert not costs.doubtful(1)
    for _ in range(60):
        costs.observe(4, 128, 0.072)
    row = costs.row(128)
    assert row[4] == pytest.approx(0.072, rel=0.03)
    assert row[1] == pytest.approx(0.036, rel=0.08)


def test_a_width_that_was_wrong_three_times_in_a_row_is_believed() -> None:
    costs = PassCosts({128: {1: 0.03, 4: 0.06}})
    for _ in range(50):
        costs.observe(1, 128, 0.030)
        costs.observe(4, 128, 0.060)
    for _ in range(8):
        costs.observe(4, 128, 0.200)
    assert costs.seconds(4, 128) == pytest.approx(0.2, rel=0.15)
    assert costs.doubtful(1)
    for _ in range(3):
        costs.observe(1, 128, costs.seconds(1, 128))
    assert not costs.doubtful(1)


def test_unlucky_passes_do_not_rule_out_a_width_for_ever() -> None:
    costs = PassCosts(SEED)
    for _ in range(40):
        costs.observe(1, 128, 0.030)
    for _ in range(6):
        costs.observe(4, 128, 0.300)
    assert costs.seconds(4, 128) > 0.15
    for _ in range(1600):
        costs.observe(1, 128, 0.030)
    assert costs.seconds(4, 128) < 0.072
    assert costs.seconds(1, 128) == pytest.approx(0.030, rel=0.03)


def test_an_earlier_run_is_gone_on_with_from_this_calibration() -> None:
    old = PassCosts({128: {1: 0.03, 4: 0.06}})
    for _ in range(60):
        old.observe(1, 128, 0.03)
        old.observe(4, 128, 0.09)
    new = PassCosts(SEED)
    new.recall(old)
    assert new.seconds(4, 128) == pytest.approx(old.seconds(4, 128))
    assert new.seconds(8, 128) == pytest.approx(0.099)


def test_the_first_pass_of_a_width_tells_its_cost() -> None:
    costs = PassCosts(SEED)
    assert costs.seconds(3, 128) == pytest.approx(0.060)
    costs.observe(3, 128, 0.051)
    assert costs.seconds(3, 128) == pytest.approx(0.051)
    assert costs.seconds(3, 1536) > costs.seconds(3, 128)


def test_without_a_seed_the_passes_are_the_seed() -> None:
    costs = PassCosts()
    assert not costs.known
    assert not any(costs.row(100))
    costs.observe(1, 100, 0.02)
    assert costs.known
    assert costs.seconds(1, 100) == pytest.approx(0.02)
    assert costs.seconds(4, 100) == pytest.approx(0.08)


@pytest.mark.parametrize(("width", "taken"), [(0, 1.0), (99, 1.0), (1, 0.0), (1, float("inf")), (1, float("nan"))])
def test_impossible_passes_are_ignored(width: int, taken: float) -> None:
    costs = PassCosts(SEED)
    costs.observe(width, 128, taken)
    assert costs.row(128) == PassCosts(SEED).row(128)


@given(measured=seeds)
def test_what_is_kept_on_disk_says_the_same(measured: dict[int, dict[int, float]]) -> None:
    costs = PassCosts(measured)
    costs.observe(1, 200, 0.05)
    again = PassCosts(PassCosts.measured_from_json(json.loads(json.dumps(costs.to_json()))))
    for length in (1, 300, 2000):
        assert again.row(length)[: costs.widest + 1] == pytest.approx(costs.row(length))


@pytest.mark.parametrize("data", [None, 3, {"a": {}}, {"1": {"1": -1.0}}, {"1": {"1": "nan"}}, {"1": {"0": 1.0}}])
def test_what_is_no_curve_is_refused(data: object) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        PassCosts.measured_from_json(data)


def test_a_copy_is_refined_apart() -> None:
    costs = PassCosts(SEED)
    copy = costs.copy()
    assert copy.row(200) == costs.row(200)
    copy.observe(1, 128, 0.05)
    assert costs.row(200) == PassCosts(SEED).row(200)


def test_wider_passes_than_were_measured_cost_more_and_are_learned_of() -> None:
    costs = PassCosts(SEED)
    before = costs.row(200)
    costs.widen(20)
    assert costs.row(200)[:9] == before
    assert costs.row(200)[16] == pytest.approx(2 * before[8])
    costs.observe(20, 128, 0.3)
    assert costs.seconds(20, 128) == pytest.approx(0.3)
    costs.widen(4)
    assert costs.widest == 20


# -- drafters --------------------------------------------------------------------------------------------------------


def test_a_draft_costs_its_levels_and_what_must_be_read_first() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001)
    assert costs.seconds(4, 1, 1, 128) == pytest.approx(0.012)
    assert costs.seconds(4, 51, 1, 128) == pytest.approx(0.062)


def test_levels_and_reading_are_learned_apart() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001)
    for _ in range(60):
        costs.observe(4, 1, 1, 128, 4 * 0.005)
        costs.observe(2, 101, 1, 128, 2 * 0.005 + 100 * 0.002)
    assert costs.level_seconds(1, 128) == pytest.approx(0.005, rel=0.03)
    assert costs.read_seconds == pytest.approx(0.002, rel=0.03)


def test_a_drafter_nobody_timed_is_timed_by_its_first_drafts() -> None:
    costs = DraftCosts()
    costs.observe(0, 1, 1, 10, 0.1)
    assert not costs.levels.known, "it drew nothing"
    costs.observe(3, 1, 1, 10, 0.006)
    costs.observe(1, 101, 1, 10, 0.102)
    assert costs.seconds(3, 1, 1, 10) == pytest.approx(0.006)
    assert costs.read_seconds == pytest.approx(0.001)


def test_a_part_of_a_prompt_that_is_read_before_anything_is_guessed_tells_what_reading_costs() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001)
    for _ in range(40):
        costs.observe(0, 512, 1, 512, 511 * 0.002)
    assert costs.read_seconds == pytest.approx(0.002, rel=0.01)
    assert costs.level_seconds(1, 128) == pytest.approx(0.003)


def test_a_stall_says_nothing_of_further_levels() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001)
    for count in range(40):
        levels = 1 + count % 4
        costs.observe(levels, 1, 1, 128, 0.003 * levels)
    costs.observe(1, 1, 1, 128, 1.0)
    assert costs.further > 0.8
    assert costs.level_seconds(1, 128) < 0.004


def test_first_levels_are_told_apart_from_further_ones_for_each_number_of_slots() -> None:
    """Two slots draft one level, one slot drafts five: levels cost the same, whoever drafts."""
    costs = DraftCosts({128: {1: 0.003, 2: 0.014}}, 0.001, 2)
    for _ in range(40):
        costs.observe(1, 2, 2, 128, 0.014)
        costs.observe(5, 1, 1, 128, 0.015)
    assert costs.further == 1.0


def test_more_slots_than_were_measured_cost_more() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001)
    assert costs.level_seconds(4, 128) == pytest.approx(0.012), "in proportion, until it is known"
    for _ in range(3):
        costs.observe(2, 4, 4, 128, 2 * 0.005)
    assert costs.level_seconds(4, 128) == pytest.approx(0.005)
    assert costs.level_seconds(1, 128) == pytest.approx(0.003)


def test_draft_costs_survive_on_disk() -> None:
    costs = DraftCosts({128: {1: 0.003}}, 0.001, 2)
    again = DraftCosts.from_json(json.loads(json.dumps(costs.to_json())), 2)
    assert again.seconds(3, 40, 2, 500) == pytest.approx(costs.seconds(3, 40, 2, 500))
    for wrong in ({}, {"levels": {}, "read_seconds": -1}, {"levels": {"1": {"1": 0.0}}, "read_seconds": 0.0}):
        with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
            DraftCosts.from_json(wrong, 1)


def test_a_row_is_cheap_to_ask_for() -> None:
    """The plan's share of the 0.2 ms that the host may take for a pass."""
    costs = PassCosts(SEED)
    best = min(_time(lambda: costs.row(700)) for _ in range(20))
    assert best < 50e-6


def _time(call: object) -> float:
    start = time.perf_counter()
    for _ in range(50):
        call()  # type: ignore[operator]
    return (time.perf_counter() - start) / 50
