"""A drafter without cost that guesses in every pass, right or wrong, as habits do."""

from __future__ import annotations

import numpy as np

from tests.planning.simulator import WIDE, Process, World, make, seconds, simulate

TOKENS, ANSWERS = 48, 20


def process(chance: float, confidence: float) -> Process:
    """Right with this chance, and always as sure as that."""
    found = Process.of(np.full((ANSWERS + 1) * TOKENS, chance), 7, spread=0.0)
    return Process(found.right, np.full_like(found.confidence, confidence))


def test_a_draft_model_that_promises_more_has_its_turn_beside_it() -> None:
    """The free guesses are worth a pass of their own: reading the prompt is worth more."""
    processes = {"habits": process(0.6, 0.6), "draft": process(0.95, 0.95)}
    given = World(WIDE, processes, level=0.002, read=0.0003, prompt=200, answer=TOKENS, noise=0.0)
    run = simulate(make(given), range(ANSWERS))
    late = range(ANSWERS // 2, ANSWERS)
    assert seconds(run, late) < 0.85 * given.fixed("habits", 3, late)
