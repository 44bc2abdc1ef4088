"""Acceptance: calibrated, quick to notice a change, honest about its error, and safe to read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localspec.engine.acceptance import Acceptance, Calibration, Table, Tracker
from localspec.engine.interfaces import Draft
from localspec.engine.shift import Kind


def chain(right: int, count: int, confidence: float = 0.5) -> Draft:
    """`count` guesses, the first `right` of them token 1, which is what the target says."""
    tokens = [1] * right + [0] * (count - right)
    return Draft.chain(tokens, None, np.full(count, confidence, dtype=np.float32))


def feed(tracker: Tracker, chance: float, trials: int, seed: int = 1, confidence: float = 0.5) -> None:
    rng = np.random.default_rng(seed)
    for hit in rng.random(trials) < chance:
        tracker.score(chain(int(hit), 1, confidence), [1])


def test_what_is_typical_is_learned_only_where_somebody_asks() -> None:
    asked, free = Tracker(Table()), Tracker(Table())
    for right in (1, 1, 0, 1):
        asked.score(chain(right, 1), [1])
        free.score(chain(right, 1), [1], levels=False)
    assert (asked.table.trials, free.table.trials) == (4, 0)
    assert asked.probability(0.5, 1) == free.probability(0.5, 1)
    assert free.table.typical(1) == Table().typical(1)


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("confidence", [0.0, 0.45, 0.99, 3.0, 40.0])
def test_it_learns_the_rate_of_any_score(chance: float, confidence: float) -> None:
    tracker = Tracker(Table())
    feed(tracker, chance, 1500, confidence=confidence)
    assert tracker.probability(confidence, 1) == pytest.approx(chance, abs=0.09)
    assert tracker.table.typical(1) == pytest.approx(chance, abs=0.06)


def test_confidences_are_calibrated_one_by_one() -> None:
    """A drafter that is far too sure of itself: right in 0.4 c of the cases in which it says c."""
    tracker, rng = Tracker(Table()), np.random.default_rng(2)
    for _ in range(8000):
        confidence = float(rng.random())
        tracker.score(chain(int(rng.random() < 0.4 * confidence), 1, confidence), [1])
    for confidence in (0.15, 0.55, 0.95):
        assert tracker.probability(confidence, 1) == pytest.approx(0.4 * confidence, abs=0.08)
    tracker.table.calibration = Calibration()
    for _ in range(2000):
        confidence = float(rng.random())
        tracker.score(chain(int(rng.random() < 0.4 * confidence), 1, confidence), [1])
    assert tracker.table.calibration.expected_error < 0.04
    assert tracker.table.calibration.brier < 0.2


def test_depths_are_told_apart() -> None:
    tracker, rng = Tracker(Table()), np.random.default_rng(3)
    for _ in range(1500):
        right = 0 if rng.random() > 0.9 else 1 if rng.random() > 0.2 else 2
        tracker.score(chain(right, 2), [1, 1, 1])
    assert tracker.probability(0.5, 1) > 0.7
    assert tracker.probability(0.5, 2) < 0.4
    assert tracker.typical(2)[0] > 0.7 > 0.4 > tracker.typical(2)[1]


def test_a_change_of_content_is_noticed_within_twenty_nodes() -> None:
    tracker = Tracker(Table())
    feed(tracker, 0.9, 300)
    before = tracker.probability(0.5, 1)
    feed(tracker, 0.05, 20, seed=5)
    assert before > 0.8
    assert tracker.probability(0.5, 1) < 0.4
    feed(tracker, 0.95, 20, seed=6)
    assert tracker.probability(0.5, 1) > 0.6


def test_luck_alone_moves_it_little() -> None:
    tracker, seen = Tracker(Table()), []
    feed(tracker, 0.6, 500)
    for seed in range(200):
        feed(tracker, 0.6, 5, seed=100 + seed)
        seen.append(tracker.probability(0.5, 1))
    assert np.std(seen) < 0.07
    assert np.mean(seen) == pytest.approx(0.6, abs=0.04)


def test_what_was_learned_of_a_request_fades_and_is_not_the_next_ones() -> None:
    table = Table()
    tracker = Tracker(table)
    feed(tracker, 0.7, 400)
    feed(tracker, 0.0, 15)
    low = tracker.probability(0.5, 1)
    for _ in range(40):
        tracker.fade(0.05)
    assert low < tracker.probability(0.5, 1)
    assert Tracker(table).probability(0.5, 1) > 0.55


# -- what a draft teaches --------------------------------------------------------------------------------------------


def test_gains_of_a_chain_and_of_a_tree() -> None:
    tracker = Tracker(Table())
    p = [tracker.probability(0.5, depth) for depth in (1, 2, 3)]
    assert tracker.gains(chain(0, 3)) == pytest.approx([0, p[0], p[0] + p[0] * p[1], p[0] + p[0] * p[1] * (1 + p[2])])
    tree = Draft(
        np.array([1, 2, 3], dtype=np.int32),
        np.array([-1, -1, 1], dtype=np.int32),
        None,
        np.full(3, 0.5, dtype=np.float32),
    )
    second = (1 - p[0]) * p[0]  # tried where the first was wrong
    assert tracker.gains(tree) == pytest.approx([0, p[0], p[0] + second, p[0] + second + second * p[1]])
    assert tracker.gains(Draft()) == [0.0]


def test_nodes_behind_what_was_emitted_are_not_judged() -> None:
    table = Table()
    Tracker(table).score(chain(4, 4), [1, 1])
    assert table.trials == 2
    Tracker(table).score(chain(1, 4), [1, 1, 1])
    assert table.trials == 4, "the first wrong one counts, those behind it do not"
    Tracker(table).score(Draft(), [1])
    Tracker(table).score(chain(1, 1), [])
    assert table.trials == 4


def test_siblings_are_tried_in_order_until_one_is_right() -> None:
    table = Table()
    tree = Draft(
        np.array([5, 1, 9, 7], dtype=np.int32),
        np.array([-1, -1, -1, 1], dtype=np.int32),
        None,
        np.array([0.65, 0.25, 0.05, 0.85], dtype=np.float32),
    )
    Tracker(table).score(tree, [1, 8])
    assert table.calibration.trials == 3, "5 wrong, 1 right, 9 never tried, 7 behind 1 wrong"
    assert table.trials == 2, "two levels"


# -- kept between runs -----------------------------------------------------------------------------------------------


def test_drafters_and_rules_do_not_share_and_temperatures_a_little() -> None:
    acceptance = Acceptance()
    feed(acceptance.tracker("draft", "coupled", 1.0), 0.0, 100)
    usual = Tracker(Table()).probability(0.5, 1)
    assert acceptance.tracker("draft", "coupled", 1.2).probability(0.5, 1) < 0.2
    for drafter, rule in (("lookup", "coupled"), ("draft", "block")):
        assert acceptance.tracker(drafter, rule, 1.0).probability(0.5, 1) == usual
    other = acceptance.tracker("draft", "coupled", 0.0)
    assert other.probability(0.5, 1) < 0.2, "until something is known of that temperature"
    assert other.table.trials < acceptance.tracker("draft", "coupled", 1.0).table.trials / 3
    feed(other, 1.0, 100)
    assert other.probability(0.5, 1) > 0.8


def test_what_was_remembered_without_a_pool_is_taken_as_it_was() -> None:
    acceptance = Acceptance()
    feed(acceptance.tracker("draft", "coupled", 0.7), 0.8, 300)
    data = {key: table for key, table in acceptance.to_json().items() if not key.endswith("any")}
    again = Acceptance.from_json(data).tracker("draft", "coupled", 0.7)
    usual = acceptance.tracker("draft", "coupled", 0.7).probability(0.5, 1)
    assert again.probability(0.5, 1) == pytest.approx(usual, abs=0.01)


def test_it_is_remembered() -> None:
    acceptance = Acceptance()
    feed(acceptance.tracker("draft", "coupled", 0.7), 0.8, 300)
    again = Acceptance.from_json(json.loads(json.dumps(acceptance.to_json())))
    for depth in (1, 3):
        old, new = (one.tracker("draft", "coupled", 0.7) for one in (acceptance, again))
        assert new.probability(0.5, depth) == pytest.approx(old.probability(0.5, depth))
    assert again.report()["draft coupled medium"]["trials"] == 0, "errors are those of this run"


def damaged() -> list[Any]:
    sound = Acceptance()
    feed(sound.tracker("d", "r", 0.0), 0.5, 20)
    found: list[Any] = [None, 3, [], {"d": {}}, {"d": None}]
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda table: table.pop("hits"),
        lambda table: table["hits"].pop(),
        lambda table: table["trials"][0].append(1.0),
        lambda table: table["hits"][0].__setitem__(5, 1e9),
        lambda table: table["trials"][0].__setitem__(5, float("nan")),
        lambda table: table.__setitem__("breadth", -1.0),
    ]
    for change in changes:
        data = json.loads(json.dumps(sound.to_json()))
        change(data["d r zero"])
        found.append(data)
    return found


@pytest.mark.parametrize("data", damaged())
def test_what_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises((ValueError, TypeError, KeyError, AttributeError)):
        Acceptance.from_json(data)


def test_the_calibration_error_of_known_predictions() -> None:
    calibration = Calibration()
    assert (calibration.brier, calibration.expected_error) == (0.0, 0.0)
    for hit in (True, True, False, False):
        calibration.add(0.75, hit)
    assert calibration.brier == pytest.approx((2 * 0.0625 + 2 * 0.5625) / 4)
    assert calibration.expected_error == pytest.approx(0.25)


def asked(table: Table, hits: list[bool]) -> float:
    """What a request promised at first of which so many guesses were scored."""
    tracker = Tracker(table)
    promised = tracker.typical(1)[0]
    for hit in hits:
        tracker.score(chain(int(hit), 1), [1])
    tracker.close()
    return promised


def test_a_few_guesses_each_of_requests_that_follow_one_another_say_what_kind_they_are() -> None:
    table = Table()
    feed(Tracker(table), 0.65, 400)
    usual = asked(table, [False] * 3)
    assert usual == pytest.approx(0.65, abs=0.06)
    once = asked(table, [False] * 3)
    assert 0.2 < once < usual - 0.1, "one such request may have been bad luck"
    assert asked(table, [False] * 3) < once - 0.05, "two are less likely to"
    for _ in range(3):
        asked(table, [True] * 3)
    assert asked(table, []) > 0.5, "and others may follow"


def test_a_kind_nobody_hears_of_any_more_fades() -> None:
    table = Table()
    feed(Tracker(table), 0.65, 400)
    for _ in range(4):
        asked(table, [False] * 3)
    promised = [asked(table, []) for _ in range(60)]
    assert promised == sorted(promised)
    assert promised[0] < 0.35 < 0.6 < promised[-1]


def test_one_guess_moves_a_kind_less_than_three_do() -> None:
    promised = []
    for guesses in (0, 1, 3):
        table = Table()
        feed(Tracker(table), 0.65, 400)
        asked(table, [False] * guesses)
        promised.append(asked(table, []))
    usual, one, three = promised
    assert usual == pytest.approx(0.65, abs=0.06)
    assert usual - one < 0.25
    assert three < one - 0.1


@pytest.mark.parametrize("chance", [0.1, 0.65, 0.9])
def test_a_kind_that_does_not_differ_is_not_moved_on_average(chance: float) -> None:
    rng, kind, shifts = np.random.default_rng(5), Kind(), []
    for hit in rng.random(4000) < chance:
        kind.heard(hit - chance, chance * (1.0 - chance))
        shifts.append(kind.shift)
    assert abs(float(np.mean(shifts))) < 0.1
