"""The draft that is worth most, and what is learned from what came of it."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.interfaces import Draft
from localspec.planning.acceptance import (
    CONFIDENCE_CELLS,
    LEVEL_CELLS,
    Candidate,
    Table,
    Tracker,
    cell_of,
    learn,
    shifted,
    weigh,
)

chains = st.lists(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=5), min_size=1, max_size=3)


def odds(*rates: float) -> Tracker:
    """A tracker whose ten cells of probabilities hold these rates, or their middles."""
    table = Table()
    table.rates[:10] = rates or [(cell + 0.5) / 10.0 for cell in range(10)]
    return Tracker(table)


def chain(place: int, tracker: Tracker, confidence: list[float], free: bool = True) -> Candidate:
    draft = Draft.chain(np.ones(len(confidence), np.int32), confidence=np.array(confidence, np.float32))
    return Candidate(place, tracker, draft, free)


def expected(option: Candidate, nodes: int) -> float:
    """Tokens that the first nodes of a chain bring."""
    rates = [option.tracker.table.rates[cell_of(one)] for one in option.confidence[:nodes]]
    return float(np.cumprod(rates).sum()) if rates else 0.0


@given(drafts=chains, steps=st.lists(st.floats(0.0, 0.6), min_size=5, max_size=5), rate=st.floats(0.5, 3.0))
def test_the_best_of_all_choices_is_found(drafts: list[list[float]], steps: list[float], rate: float) -> None:
    tracker = odds()
    options = [chain(0, tracker, one) for one in drafts]
    prices = np.concatenate([[1.0], 1.0 + np.cumsum(steps)]).tolist()
    best = weigh(options, 1, prices, rate)
    values = [0.0]
    for one, nodes in product(options, range(1, 6)):
        if nodes <= len(one.draft):
            values.append(expected(one, nodes) - rate * (prices[nodes] - prices[0]))
    assert best.value == pytest.approx(max(values), abs=1e-6)
    if best.nodes:
        found = options[best.picks[0]]
        value = expected(found, best.nodes) - rate * (prices[best.nodes] - prices[0])
        assert value == pytest.approx(best.value, abs=1e-6)


def test_every_request_of_a_pass_sends_as_many_nodes() -> None:
    tracker = odds()
    options = [chain(0, tracker, [0.95, 0.95, 0.95]), chain(1, tracker, [0.95])]
    best = weigh(options, 2, [1.0, 1.1, 1.2, 1.3], 1.0)
    assert (best.nodes, best.picks) == (3, [0, 1])
    assert best.gain == pytest.approx(expected(options[0], 3) + expected(options[1], 1))


def test_a_width_that_may_not_run_is_never_chosen() -> None:
    tracker = odds()
    best = weigh([chain(0, tracker, [0.95] * 4)], 1, [1.0, math.inf, 1.1, math.inf, math.inf], 1.0)
    assert best.nodes == 2
    assert weigh([chain(0, tracker, [0.95])], 1, [1.0, math.inf], 1.0).nodes == 0


def test_siblings_share_what_their_parent_reaches() -> None:
    tracker = odds(*[0.5] * 10)
    tokens, confidence = np.array([1, 2], np.int32), np.array([0.5, 0.5], np.float32)
    tree = Candidate(0, tracker, Draft(tokens, np.array([-1, -1], np.int32), None, confidence))
    assert weigh([tree], 1, [1.0, 1.0, 1.0], 0.0).gain == pytest.approx(0.5 + 0.25)
    again = weigh([tree], 1, [1.0, 1.0, 1.0], 0.0, again=0.5)
    assert again.gain == pytest.approx(0.5 + 0.125), "what is accepted beside the main chain is decoded again"


def test_a_promise_hopes_less_the_more_is_known() -> None:
    tracker = odds()
    known, unknown = (Candidate(0, Tracker(Table()), levels=3, optimism=0.5) for _ in range(2))
    known.tracker.table.trials[CONFIDENCE_CELLS:] = [300.0] * LEVEL_CELLS
    gains = [weigh([one], 1, [1.0] * 4, 1.0).gain for one in (known, unknown)]
    assert gains[0] < gains[1] < 3.0
    assert tracker.typical(3) == pytest.approx([0.6] * 3)


def test_only_what_is_known_is_learned() -> None:
    """The first wrong guess says nothing of what lies after it."""
    tracker = odds(*[0.5] * 10)
    option = chain(0, tracker, [0.05, 0.15, 0.25], free=False)
    option.draft.tokens[:] = (7, 8, 9)
    before, cells = list(tracker.table.rates), list(tracker.table.trials)
    learn(option, [7, 1, 1])
    changed = [cell for cell, (one, was) in enumerate(zip(tracker.table.rates, before, strict=True)) if one != was]
    assert changed == [0, 1, CONFIDENCE_CELLS, CONFIDENCE_CELLS + 1]
    assert changed == [cell for cell, was in enumerate(cells) if tracker.table.trials[cell] != was]
    assert tracker.table.rates[0] > 0.5 > tracker.table.rates[1]
    learn(option, [])
    assert tracker.table.trials[0] == cells[0] + 1, "nothing was said"


def test_a_request_drifts_from_its_table_and_comes_back() -> None:
    tracker = odds(*[0.5] * 10)
    for _ in range(30):
        option = chain(0, tracker, [0.55])
        option.draft.tokens[:] = 3
        learn(option, [3])
    assert tracker.probability(0.55) > 0.8
    other = Tracker(tracker.table)
    assert other.probability(0.55) < tracker.probability(0.55), "another request begins with what all have in common"
    tracker.fade(1.0)
    assert tracker.shift == other.shift


@given(st.floats(0.0, 40.0))
def test_cells_rise_with_the_confidence(confidence: float) -> None:
    assert 0 <= cell_of(confidence) < CONFIDENCE_CELLS
    assert cell_of(confidence) <= cell_of(confidence + 0.5)


def test_a_table_is_kept_and_nonsense_is_not() -> None:
    table = Table()
    table.rates[3], table.breadth = 0.25, 2.0
    found = Table.from_json(asdict(table))
    assert (found.rates, found.trials) == (table.rates, table.trials)
    assert found.breadth == 2.0
    for change in (
        {"rates": [2.0] * (CONFIDENCE_CELLS + LEVEL_CELLS)},
        {"trials": [0.0] * (CONFIDENCE_CELLS + LEVEL_CELLS)},
        {"breadth": 0.5},
    ):
        with pytest.raises(ValueError, match="not a table"):
            Table.from_json({**asdict(table), **change})
    assert shifted(0.5, 1.0) == 0.5
