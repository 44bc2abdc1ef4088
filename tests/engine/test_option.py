"""The choice among drafts, and when a drafter goes on: compared with trying everything."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.interfaces import Draft
from localspec.engine.option import NEVER, Option, best_choice, depth_of, promised
from localspec.engine.price import DraftPrice

gains_lists = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5).map(
    lambda chances: [0.0, *itertools.accumulate(sorted(chances, reverse=True))]
)
prices_lists = st.lists(st.none() | st.floats(0.01, 0.2), min_size=8, max_size=8).map(lambda rest: [0.03, *rest])


@given(gains=st.lists(gains_lists, max_size=3), prices=prices_lists, rate=st.floats(0.0, 300.0))
def test_of_one_slot_it_finds_the_best(gains: list[list[float]], prices: list[float | None], rate: float) -> None:
    values = [
        one[nodes] - rate * (price - 0.03)
        for one in gains
        for nodes, price in enumerate(prices[: len(one)])
        if nodes and price is not None
    ]
    found = best_choice([[Option(one) for one in gains]], prices, rate)
    assert found.value == pytest.approx(max([0.0, *values]))
    assert bool(found.nodes) == (max([0.0, *values]) > 0.0)
    forced = best_choice([[Option(one) for one in gains]], prices, rate, NEVER)
    if values:
        assert forced.value == pytest.approx(max(values))


def test_slots_share_the_price() -> None:
    """One slot alone would not pay for a wider pass; two do."""
    prices: list[float | None] = [0.03, 0.06]
    assert best_choice([[Option([0.0, 0.6])], []], prices, 30.0).nodes == 0
    both = best_choice([[Option([0.0, 0.6])], [Option([0.0, 0.5]), Option([0.0, 0.7])]], prices, 30.0)
    assert both.nodes == 1
    assert both.value == pytest.approx(1.3 - 0.9)
    assert both.picks[1] is not None
    assert both.picks[1].gains[1] == 0.7


def test_a_forced_number_takes_shorter_drafts_too() -> None:
    prices: list[float | None] = [0.03, 0.06, 0.09, 0.12]
    found = best_choice([[Option([0.0, 0.1])]], prices, 100.0, NEVER, only=3)
    assert (found.nodes, found.value < 0.0) == (3, True)
    assert best_choice([[]], prices, 100.0, NEVER, only=3).nodes == 0


def test_what_is_promised_of_chains_and_trees() -> None:
    assert promised([0.5, 0.5], 1.0, 2) == [0.0, 0.5, 0.75]
    assert promised([0.5, 0.5, 0.5, 0.5], 2.0, 4) == [0.0, 0.0, 0.5, 0.5, 0.75]


def test_depths() -> None:
    assert depth_of(Draft()) == 0
    assert depth_of(Draft.chain([1, 2, 3])) == 3
    assert depth_of(Draft(np.arange(4, dtype=np.int32), np.array([-1, -1, 0, 2], dtype=np.int32))) == 3


# -- stopping --------------------------------------------------------------------------------------------------------


def price_of(prices: list[float | None], level: float = 0.003, rate: float = 33.0, typical: float = 0.7) -> DraftPrice:
    return DraftPrice(rate, prices, level, lambda confidence, depth: confidence, [typical] * (len(prices) - 1))


def test_a_draft_goes_on_while_it_is_likely_and_stops_when_it_is_not() -> None:
    flat: list[float | None] = [0.03 + 0.001 * nodes for nodes in range(8)]
    price = price_of(flat)
    assert price.pays([0.9], 1)
    assert price.pays([0.9, 0.9, 0.9], 3)
    assert not price.pays([0.05], 1)
    assert not price.pays([0.9, 0.9, 0.05], 3)
    assert not price.pays([0.9] * 7, 7), "no more fit"


def test_a_bad_width_is_crossed_to_reach_a_good_one() -> None:
    """Behind one guess the next alone does not pay, the next two do."""
    bridge: list[float | None] = [0.030, 0.048, 0.080, 0.050]
    assert price_of(bridge).pays([0.9], 1)
    assert not price_of(bridge[:3]).pays([0.9], 1)
    assert price_of([0.030, None, None, 0.050]).pays([0.9], 1), "nor is one that may not run in the way"
    assert not price_of([0.030, 0.04, None, None]).pays([0.9], 1)


def test_a_slow_drafter_stops_earlier() -> None:
    flat: list[float | None] = [0.03] * 8
    assert price_of(flat, 0.001).pays([0.5], 1)
    assert not price_of(flat, 0.030).pays([0.5], 1)


def test_siblings_count_as_rows() -> None:
    steep: list[float | None] = [0.03 + 0.012 * nodes for nodes in range(9)]
    assert price_of(steep, typical=0.8).pays([0.9], 1)
    assert not price_of(steep, typical=0.8).pays([0.9], 2)


def test_a_draft_shorter_than_the_pass_brings_all_it_has() -> None:
    """Slots share one width: one slot's draft may end before it."""
    short, long = Option([0.0, 0.9]), Option([0.0, 0.9, 1.7, 2.4])
    assert [short.gain(nodes) for nodes in (0, 1, 3)] == [0.0, 0.9, 0.9]
    choice = best_choice([[short], [long]], [0.0, 0.1, 0.2, 0.3], 1.0, 0.0, 0)
    assert choice.nodes == 3
    assert [pick.gain(choice.nodes) for pick in choice.picks if pick] == [0.9, 2.4]
