"""Passes that take longer behind those of another width, as llama.cpp's do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.rebuild import Rebuild
from tests.engine.simulator import Process, Run, World, make, seconds, simulate, steps

PLAIN = 0.03
CURVE = steps(1.0, 1.3, 1.6, 1.9, 2.1, 2.3, 2.5, 3.1)
TOKENS, ANSWERS = 96, 40
ALL, LATE = range(ANSWERS), range(ANSWERS // 2, ANSWERS)


def run(chances: list[float], rebuild: float, luck: int) -> Run:
    """Guesses without cost that are right with these chances, over and over."""
    each = np.resize(np.array(chances), (ANSWERS + 1) * TOKENS)
    world = World(CURVE, {"suffix": Process.of(each, luck, spread=0.0)}, answer=TOKENS, rebuild=rebuild, noise=0.02)
    return simulate(make(world), ALL)


LONE = [0.75, 0.05, 0.05, 0.05]
"""One token that can be guessed, then none."""
COPY = [0.97] * 24 + [0.05] * 24


@pytest.mark.parametrize("luck", [1, 2, 3])
def test_a_draft_that_costs_the_next_pass_more_than_it_brings_is_not_sent(luck: int) -> None:
    """It pays by what its own pass takes, 1.3 plain passes for 1.75 tokens, and loses with the two changes of width."""
    found = run(LONE, 0.6 * PLAIN, luck)
    assert seconds(found, ALL) < 1.03 * found.world.plain(ALL)
    assert seconds(found, LATE) < 1.02 * found.world.plain(LATE)
    free = run(LONE, 0.0, luck)
    assert seconds(free, LATE) < 0.97 * free.world.plain(LATE), "where widths may change, it pays"


@pytest.mark.parametrize("luck", [1, 2, 3])
def test_copies_still_pay(luck: int) -> None:
    found = run(COPY, 0.6 * PLAIN, luck)
    assert seconds(found, LATE) < 0.85 * found.world.plain(LATE)


def test_it_is_due_behind_a_plain_pass_only() -> None:
    """Another draft behind a draft puts off the way back, and costs no second one."""
    rebuild = Rebuild()
    for _ in range(100):
        rebuild.observe(5, 2.0, 1.0)
        assert rebuild.due == 0.0
        rebuild.observe(1, 1.5, 1.0)
    assert rebuild.due == pytest.approx(0.5, rel=0.05)
    rebuild.forget()
    assert rebuild.due == 0.0
    assert rebuild.seconds == pytest.approx(0.5, rel=0.05)


@given(st.lists(st.tuples(st.sampled_from([1, 1, 2, 5, 8]), st.floats(1e-6, 1e3)), max_size=80), st.floats(0.0, 10.0))
def test_whatever_passes_take_it_is_no_more_than_a_plain_pass(passes: list[tuple[int, float]], plain: float) -> None:
    rebuild = Rebuild()
    for rows, taken in passes:
        rebuild.observe(rows, taken, plain)
        assert 0.0 <= rebuild.due <= rebuild.seconds <= plain


def test_little_is_not_counted() -> None:
    """With 1 B parameters it is 4 % of a pass."""
    rebuild = Rebuild()
    for _ in range(100):
        rebuild.observe(5, 2.0, 1.0)
        rebuild.observe(1, 1.04, 1.0)
    assert rebuild.due == 0.0


def test_plain_passes_behind_each_other_say_nothing_of_it() -> None:
    rebuild = Rebuild()
    for _ in range(100):
        rebuild.observe(1, 1.9, 1.0)
    assert rebuild.seconds == 0.0
