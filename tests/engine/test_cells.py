"""Contents that follow one another, in cells of eight answers of 64 tokens: what one of them taught costs the next
little."""

from __future__ import annotations

import numpy as np
import pytest

from tests.planning.simulator import CURVES, Process, World, make, seconds, simulate

ANSWERS, TOKENS = 8, 64


def process(chances: tuple[float, ...], seed: int) -> Process:
    return Process.of(np.repeat([*chances, chances[-1]], ANSWERS * TOKENS), seed)


def world(curve: str, lookup: tuple[float, ...], draft: tuple[float, ...], luck: int = 0) -> World:
    processes = {"draft": process(draft, 50 + luck)}
    if lookup:
        processes["lookup"] = process(lookup, 10 + luck)
    return World(CURVES[curve], processes, answer=TOKENS)


def cell(number: int) -> range:
    return range(number * ANSWERS, (number + 1) * ANSWERS)


@pytest.mark.parametrize("curve", ["Q8_0", "Q4_K_M", "wide passes"])
@pytest.mark.parametrize("lookup", [(0.9, 0.05), (0.95, 0.05), ()], ids=str)
def test_bad_content_behind_good_content_loses_little(curve: str, lookup: tuple[float, ...]) -> None:
    plain = spent = 0.0
    for luck in range(4):
        given = world(curve, lookup, (0.85, 0.15), luck)
        plain += given.plain(cell(1))
        spent += seconds(simulate(make(given), range(2 * ANSWERS), seed=luck), cell(1))
    assert plain / spent >= 0.95  # 64 tokens may lose one and a half; three prompts are read in vain


@pytest.mark.parametrize("curve", ["Q8_0", "Q4_K_M", "wide passes"])
def test_copying_behind_bad_content_is_as_fast_as_lookup_alone(curve: str) -> None:
    given = world(curve, (0.1, 0.96), (0.3, 0.9))
    run = simulate(make(given), range(2 * ANSWERS))
    assert given.best_fixed(cell(1))[0] / seconds(run, cell(1)) >= 0.90  # ten passes an answer: the first are too long
