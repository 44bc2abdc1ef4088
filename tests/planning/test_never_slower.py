"""The promise in worlds of a virtual clock: at every token what was lost is within the budget."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.planning.budget import LOOK_SHARE, LOSS_PASSES, LOSS_SHARE
from localspec.planning.costs import READING_ALLOWANCE
from tests.planning.simulator import Curve, Process, World, make, seconds, simulate
from tests.planning.worlds import figures

ANSWERS = range(4)


def gpu(width: int, length: int) -> float:
    """5 ms up to 8 rows and 9 ms from 9 on."""
    return 0.005 if width <= 8 else 0.009


def slow_rows(width: int, length: int) -> float:
    """8 rows cost three plain passes."""
    return 0.03 * (1.0 + 2.0 * (width - 1) / 7.0)


def useless(curve: Curve, level: float) -> World:
    places = 300 * len(ANSWERS) + 500
    processes = {
        "lookup": Process.of(np.full(places, 0.03), 2),
        "draft": Process.of(np.full(places, 0.02), 1),
    }
    return World(curve, processes, level=level, read=level / 10, noise=0.0)


@pytest.mark.parametrize(("curve", "level"), [(gpu, 0.0012), (slow_rows, 0.003)], ids=["gpu", "slow rows"])
@pytest.mark.parametrize("seed", [1, 2])
def test_at_every_token_the_loss_is_within_the_budget(curve: Curve, level: float, seed: int) -> None:
    world = useless(curve, level)
    run = simulate(make(world), ANSWERS, seed=seed)
    plain_pass = curve(1, world.prompt)
    plain = plain_pass * np.arange(1, len(run.seconds) + 1)
    lost = np.array(run.seconds) - plain
    answers = 1 + np.arange(len(run.seconds)) // world.answer
    allowed = (LOSS_SHARE + LOOK_SHARE) * plain + plain_pass * (LOSS_PASSES * answers + READING_ALLOWANCE)
    assert (lost <= allowed + plain_pass).all(), "one pass more than was expected, at most"
    tokens = 1000
    assert plain[tokens - 1] / run.seconds[tokens - 1] >= 0.97


@pytest.mark.parametrize(
    ("name", "curve", "over_plain"),
    [
        ("useless draft model", "Q8_0", 0.98),
        ("draft model right in 0.9", "GPU", 2.3),
        ("draft model switching", "GPU", 1.2),
        ("lookup switching fast", "wide passes", 1.3),
        ("both", "GPU", 2.1),
        ("far too sure", "Q4_K_M", 0.98),
    ],
)
def test_what_pays_is_drafted(name: str, curve: str, over_plain: float) -> None:
    assert figures(name, curve, 7).over_plain >= over_plain


def test_settled_answers_cost_nothing_more() -> None:
    world = useless(gpu, 0.0012)
    run = simulate(make(world), range(4), seed=1)
    late = seconds(run, range(2, 4)) / world.plain(range(2, 4))
    assert late <= 1.0 + LOSS_SHARE + 2 * LOSS_PASSES / world.answer + 0.01
