"""When planning rests."""

from __future__ import annotations

import math
from copy import deepcopy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.attention import Attention


def planned(attention: Attention, plain: float, passes: int, planning: float = 1e-4) -> list[bool]:
    """Whether each of so many passes that nothing is drafted in was planned."""
    found = []
    for _ in range(passes):
        rests = attention.rests(plain)
        found.append(not rests)
        if not rests:
            attention.planned(fruitful=False)
            attention.took(planning)
    return found


def test_where_passes_are_long_it_never_rests() -> None:
    assert all(planned(Attention(), 0.03, 300))
    assert all(planned(Attention(), 0.015, 300)), "a rest of half a pass is none"


@pytest.mark.parametrize("plain", [0.0003, 0.001, 0.003])
def test_where_they_are_short_it_takes_little_of_them(plain: float) -> None:
    found = planned(Attention(), plain, 3000)
    assert all(found[:3]), "a request begins with all attention"
    assert sum(found[-1000:]) * 1e-4 <= 0.0045 * 1000 * plain


def test_the_longer_nothing_was_found_the_rarer_it_looks() -> None:
    found = planned(Attention(), 0.00001, 300)
    looks = [place for place, one in enumerate(found) if one]
    for last, place in pairwise(looks):
        assert place - last <= 1 + max(1, (place + 1) // 3)


def test_what_it_finds_and_a_new_request_wake_it() -> None:
    attention = Attention()
    planned(attention, 0.0003, 100)
    while attention.rests(0.0003):
        pass
    rested = attention.rested
    for _ in range(4):
        attention.planned(fruitful=True)
        coming = attention.coming(0.0003)
        assert coming <= rested / 2
        while attention.rests(0.0003):
            pass
        rested = coming
    assert rested == 0, "what was in vain is forgotten after some finds"
    planned(attention, 0.0003, 100)
    while attention.rests(0.0003):
        pass
    rested = attention.rested
    attention.planned(fruitful=False)
    attention.begin()
    attention.begin()
    while attention.rests(0.0003):
        pass
    assert attention.rested < 0.8 * rested


@given(passes=st.integers(0, 400), plain=st.sampled_from([0.00001, 0.0003, 0.001, 0.003, 0.03]), worth=st.booleans())
def test_how_long_it_will_rest_is_known_beforehand(passes: int, plain: float, worth: bool) -> None:
    attention = Attention()
    planned(attention, plain, passes)
    if worth:
        attention.planned(fruitful=True, saves=0.01)
    coming, rests = attention.coming(plain), 0
    other = deepcopy(attention)
    while attention.rests(plain):
        rests += 1
    assert rests == coming
    other.skip(coming)
    assert vars(other) == vars(attention)


def test_one_slow_planning_changes_little() -> None:
    attention = Attention()
    planned(attention, 0.03, 50)
    attention.took(1.0)
    assert attention.seconds < 1.2e-4


def test_the_first_planning_says_nothing_of_later_ones() -> None:
    attention = Attention()
    attention.took(0.0015)
    assert attention.seconds == 0.0
    attention.took(0.0002)
    assert attention.seconds == 0.0002


def test_while_it_is_worth_its_time_it_does_not_rest() -> None:
    """A draft in one pass of five that saves more than the planning of all five."""
    finds = np.random.default_rng(0).random(1300) < 0.2
    worth, vain = Attention(), Attention()
    rests = [0, 0]
    for turn, found in enumerate(finds.tolist()):
        for place, (attention, saves) in enumerate(((worth, 1e-3), (vain, 1e-4))):
            if attention.rests(0.005):
                rests[place] += turn >= 300
                continue
            attention.planned(found and place == 0, saves if found and place == 0 else 0.0)
            attention.took(1e-4)
    assert rests[0] < 150, "of 1000, when it is known"
    assert rests[1] > 500


def test_passes_that_were_not_planned_count() -> None:
    """Of a drafter that is asked only where the plan itself does not rest."""
    attention = Attention()
    planned(attention, 0.0003, 30)
    attention.planned(fruitful=False)
    assert attention.rests(0.0003, passes=3)
    assert attention.rested == 3
    assert not attention.rests(0.0003, passes=30), "it was away for long enough"


def test_a_single_find_keeps_it_busy_for_no_longer_than_it_is_worth() -> None:
    busy = []
    for most in (math.inf, 19.0):
        attention = Attention(most)
        planned(attention, 0.0003, 30)
        attention.planned(fruitful=True, saves=1.0)
        busy.append(sum(planned(attention, 0.0003, 40)))
    assert busy[0] == 40
    assert busy[1] < 30
