"""Figures of many answers: sums by the glossary's formulas, and the page that shows them."""

from __future__ import annotations

import pytest

from localspec.engine.stats import RequestStats
from localspec.tui.screens.stats import AnswerFigures, positions, stats_page
from localspec.tui.text.origin_lines import AnswerPass, DraftGuess, OriginCell
from localspec.tui.widgets.meter import bar, columns, duration, graph


def answer(drafts: list[tuple[str, int, int]], plain: float = 0.0, exact: bool = True) -> RequestStats:
    """drafts: (drafter, drafted, accepted) of each pass."""
    stats = RequestStats(draft_seconds=0.1, verify_seconds=0.3, host_seconds=0.1, plain_seconds=plain, exact=exact)
    for drafter, drafted, accepted in drafts:
        stats.add_pass(drafter, drafted, accepted, accepted + 1)
    return stats


ANSWERS = [
    answer([("draft", 4, 3), ("lookup", 2, 0), ("", 0, 0)], plain=1.0),
    answer([("draft", 4, 1), ("draft", 4, 4)], plain=0.25, exact=False),
    answer([("draft", 1, 0), ("", 0, 0)]),
]


def test_sums_are_those_of_all_passes_together() -> None:
    figures = AnswerFigures.of([one.as_dict() for one in ANSWERS])
    together = RequestStats()
    for one in ANSWERS:
        together.drafted += one.drafted
        together.accepted += one.accepted
        together.passes += one.passes
        together.draft_passes += one.draft_passes
        together.generated += one.generated
    assert (figures.answers, figures.generated, figures.passes) == (3, together.generated, together.passes)
    assert figures.acceptance_rate == together.acceptance_rate
    assert figures.mean_accepted_length == together.mean_accepted_length
    assert figures.tokens_per_pass == together.tokens_per_pass
    assert figures.accepted_per_position == [3, 2, 2, 1]
    assert figures.drafted_by_drafter == {"draft": 13, "lookup": 2}
    assert figures.inexact == 1


def test_time_saved_counts_only_answers_that_know_plain_time() -> None:
    figures = AnswerFigures.of([one.as_dict() for one in ANSWERS])
    assert figures.plain_seconds == pytest.approx(1.25)
    assert figures.compared_seconds == pytest.approx(1.0)
    assert figures.estimated_speedup == pytest.approx(1.25)
    assert figures.saved_seconds == pytest.approx(0.25)
    assert figures.decode_seconds == pytest.approx(1.5)


def test_an_answer_without_drafts_lost_nothing_whatever_was_estimated() -> None:
    kept = answer([("", 0, 0)], plain=0.25).as_dict() | {"plain_seconds": 0.25}  # an older version's estimate
    figures = AnswerFigures.of([kept, kept])
    assert (figures.saved_seconds, figures.plain_answers) == (0.0, 2)
    page = stats_page(figures, [], 80).plain
    assert "plain decoding: nothing was drafted" in page
    assert "lost" not in page
    figures.add(ANSWERS[0].as_dict())
    assert figures.saved_seconds == pytest.approx(0.5)
    assert figures.estimated_speedup == pytest.approx(2.0 / 1.5)


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"generated_tokens": 0},
        {"generated_tokens": "many"},
        {"generated_tokens": 3, "accepted_per_position": "x", "drafted_by_drafter": 4, "plain_seconds": None},
        {"generated_tokens": 3, "accepted_per_position": [1, None, "a"], "accepted_by_drafter": {"draft": None}},
    ],
)
def test_old_or_strange_stats_do_no_harm(stats: dict[str, object]) -> None:
    figures = AnswerFigures.of([stats])
    assert figures.answers in (0, 1)
    assert stats_page(figures, [], 80).plain


def guessed(*accepted: bool) -> AnswerPass:
    guesses = tuple(DraftGuess("a", depth - 2, depth, good) for depth, good in enumerate(accepted, 1))
    return AnswerPass("draft", guesses, (OriginCell("b", "", 0),), 1 + len(guesses), 0.01)


def test_acceptance_by_position_is_of_the_guesses_made_there() -> None:
    found = positions([guessed(True, True), guessed(True, False), guessed(False), guessed()])
    assert found == [(1, 3, 2), (2, 2, 1)]
    assert " 50%  1 of 2" in stats_page(AnswerFigures.of([one.as_dict() for one in ANSWERS]), found, 80).plain


def test_only_passes_whose_plain_time_is_known_are_compared() -> None:
    one = answer([("draft", 4, 3)])
    one.compare(0.4, 4, 0.2)
    figures = AnswerFigures.of([one.as_dict()])
    assert figures.plain_seconds == pytest.approx(0.4)
    assert figures.compared_seconds == pytest.approx(0.2)
    assert figures.decode_seconds == pytest.approx(0.5)
    assert figures.estimated_speedup == one.estimated_speedup == pytest.approx(2.0)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_page_says_it_all_and_fits(width: int) -> None:
    figures = AnswerFigures.of([one.as_dict() for one in ANSWERS])
    found = positions([guessed(True, True), guessed(True, False)])
    for known in ([], found):
        page = stats_page(figures, known, width).plain
        for words in ("1.25x", "250 ms saved", "draft model", "prompt lookup", "verifying", "Tokens a second"):
            assert words in page
        bars = [line for line in page.splitlines() if "█" in line]
        assert bars
        assert all(len(line) <= max(width, 60) for line in bars)


def test_a_loss_is_called_one() -> None:
    figures = AnswerFigures.of([answer([("draft", 4, 0)], plain=0.25).as_dict()])
    assert "250 ms lost" in stats_page(figures, [], 80).plain


def test_no_answers_no_bars() -> None:
    assert stats_page(AnswerFigures(), [], 80).plain == "No answer yet: there is nothing to count."


def test_plots() -> None:
    assert bar(0.5, 8) == "████    "
    assert bar(0.51, 8).rstrip() == "████▏"
    assert (bar(-1, 4), bar(7, 4)) == ("    ", "████")
    assert columns([0, 1, 2]) == "▁▅█"
    assert columns([]) == ""
    assert columns([0, 0]) == "▁▁"
    assert graph([1, 2], 10, 2) == [" █", "██"]
    assert len(graph(list(range(100)), 10, 3)[0]) == 10
    seconds = [0.0004, 0.84, 3.21, 59.96, 125, 3725]
    assert list(map(duration, seconds)) == ["0.4 ms", "840 ms", "3.2 s", "1 min 00 s", "2 min 05 s", "1 h 02 min"]
