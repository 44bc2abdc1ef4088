"""The clairvoyant limit, reckoned by hand and against every choice there is."""

from __future__ import annotations

import itertools
import random

import pytest

from localspec.bench.contest.run import Answer, Pass
from localspec.bench.results.cells import best_seconds, guesses, limit

ROW = [0.0, 10.0, 11.0, 13.0, 20.0]


def answer(tokens: int, passes: list[Pass], row: list[float] | None = None) -> Answer:
    costs = {} if row is None else {"passes": row, "levels": {"draft": 1.0}}
    return Answer("x", tokens, 1.0, [(1.0, tokens)], passes=passes, costs=costs)


def test_the_log_says_which_guesses_were_right() -> None:
    log = [Pass("draft", 3, 1, 1.0), Pass("", 0, 0, 1.0), Pass("lookup", 2, 2, 1.0), Pass("draft", 1, 0, 1.0)]
    assert guesses([answer(7, log)]) == {"draft": {0: True, 1: False, 6: False}, "lookup": {3: True, 4: True}}


def test_runs_of_one_text_add_to_each_other() -> None:
    first, second = [Pass("draft", 2, 1, 1.0)], [Pass("draft", 1, 1, 1.0), Pass("draft", 1, 1, 1.0)]
    assert guesses([answer(2, first), answer(4, second)]) == {"draft": {0: True, 1: False, 2: True}}


def test_nothing_right_is_plain_decoding() -> None:
    assert best_seconds(5, ROW, {}, {"draft": {0: False, 3: False}}) == 50.0


def test_free_guesses_make_wide_passes() -> None:
    seen = {"lookup": dict.fromkeys(range(8), True)}
    assert best_seconds(8, ROW, {}, seen) == 13.0 + 13.0 + 11.0  # 3 + 3 + 2 tokens; 4 and 4 would cost 40


def test_levels_of_a_draft_are_paid() -> None:
    seen = {"draft": dict.fromkeys(range(4), True)}
    assert best_seconds(4, ROW, {"draft": 4.0}, seen) == 2 * 11.0 + 2 * 4.0
    assert best_seconds(4, ROW, {"draft": 20.0}, seen) == 40.0


def test_widths_that_are_not_allowed_are_no_choice() -> None:
    seen = {"lookup": dict.fromkeys(range(4), True)}
    assert best_seconds(4, [0.0, 10.0, 0.0, 13.0, 0.0], {}, seen) == 13.0 + 10.0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    length = rng.randint(1, 8)
    row = [0.0, *sorted(rng.uniform(5, 30) for _ in range(4))]
    seen = {name: {p: rng.random() < 0.7 for p in range(length) if rng.random() < 0.9} for name in ("a", "b")}
    levels = {"a": rng.uniform(0, 3)}
    best = float("inf")
    for lengths in itertools.chain.from_iterable(itertools.product(range(4), repeat=n) for n in range(1, length + 1)):
        best = min(best, _taken(lengths, length, row, levels, seen))
    assert best_seconds(length, row, levels, seen) == pytest.approx(best)


def _taken(
    lengths: tuple[int, ...],
    length: int,
    row: list[float],
    levels: dict[str, float],
    seen: dict[str, dict[int, bool]],
) -> float:
    """Seconds of passes with these draft lengths, by the cheapest drafter of each; infinite if a guess is wrong."""
    position, seconds = 0, 0.0
    for count in lengths:
        if position >= length:
            return float("inf")
        able = [
            levels.get(name, 0.0)
            for name, right in seen.items()
            if all(position + i < length and right.get(position + i) for i in range(count))
        ]
        if count and not able:
            return float("inf")
        seconds += row[1 + count] + (count * min(able) if count else 0.0)
        position += count + 1
    return seconds if position >= length else float("inf")


def test_the_limit_of_several_turns_is_the_ratio_of_the_sums() -> None:
    right = answer(4, [Pass("lookup", 3, 3, 1.0)], ROW)
    wrong = answer(4, [Pass("lookup", 1, 0, 1.0)] * 4, ROW)
    found = limit([[right], [wrong]])
    assert found is not None
    assert found.plain_seconds == 80.0
    assert found.clairvoyant_seconds == min(20.0, 13.0 + 10.0, 22.0) + 40.0
    assert found.known == 7 / 8
    assert limit([[answer(4, [])]]) is None
