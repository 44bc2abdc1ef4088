"""The race's arithmetic: clocks, equality, medians; and the step view's words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.tui.screens.race import Lane, likeness, summary
from localspec.tui.screens.stats import headline, so_far, timeline, timing, verdict
from localspec.tui.text.origin_lines import AnswerPass, DraftGuess, OriginCell


def brought(count: int, seconds: float) -> AnswerPass:
    return AnswerPass("", (), tuple(OriginCell("a", "", 0) for _ in range(count)), 1, seconds)


def test_a_clock_adds_up_what_passes_took() -> None:
    lane = Lane("plain")
    lane.add([brought(1, 0.1), brought(3, 0.2)], [1, 2, 3, 4])
    assert (round(lane.seconds, 3), lane.count) == (0.3, 4)
    assert [lane.count_at(second) for second in (0.0, 0.05, 0.1, 0.29, 0.31, 9.0)] == [0, 0, 1, 1, 4, 4]


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.001, 1.0)), max_size=30), st.floats(0, 40))
def test_the_past_of_a_lane_is_a_prefix(steps: list[tuple[int, float]], seconds: float) -> None:
    lane = Lane("x")
    lane.add([brought(count, took) for count, took in steps], [])
    done = lane.at(seconds)
    assert sum(took for _, took in steps[:done]) <= seconds + 1e-9
    assert lane.count_at(seconds) == sum(count for count, _ in steps[:done])


def lanes(one: list[int], other: list[int], over: bool = True) -> tuple[Lane, Lane]:
    return Lane("plain", tokens=one, over=over), Lane("speculative", tokens=other, over=over)


def test_equality_is_of_tokens_and_needs_both_ends() -> None:
    assert likeness(*lanes([1, 2, 3], [1, 2, 3])) == "✓ the same 3 tokens"
    assert likeness(*lanes([1, 2, 3], [1, 2, 3], over=False)) == "3 of 3 tokens compared, all the same"
    assert likeness(*lanes([1, 2, 3], [1, 2], over=False)) == "2 of 2 tokens compared, all the same"
    assert likeness(*lanes([1, 2, 3], [1, 2])) == "✗ they differ from token 3 on"
    one, other = lanes([1, 2, 3], [1, 5, 3], over=False)
    assert likeness(one, other) == "✗ they differ from token 2 on"
    other.exact = False
    assert "--exact strict" in likeness(one, other)
    assert likeness(*lanes([], [], over=False)) == "nothing yet"


def test_races_are_summed_up_by_their_median() -> None:
    assert summary([]) == ""
    assert "2.00x, one race" in summary([2.0])
    assert summary([2.0, 3.0, 1.0]).startswith("speedup 2.00x in the middle of 3")
    assert "2.50x" in summary([2.0, 3.0])


def drafted(*texts: tuple[str, int, bool], own: str = " end") -> AnswerPass:
    """(text, parent, accepted) of each guess."""
    guesses: list[DraftGuess] = []
    for text, parent, accepted in texts:
        guesses.append(DraftGuess(text, parent, 1 if parent < 0 else guesses[parent].depth + 1, accepted))
    emitted = [OriginCell(guess.text, "draft", guess.depth) for guess in guesses if guess.accepted]
    return AnswerPass("draft", tuple(guesses), (*emitted, OriginCell(own, "", 0)), 1 + len(guesses), 0.004)


CHAIN = drafted((" a", -1, True), (" b", 0, False), (" c", 1, False), own=" B")


def test_a_verdict_tells_each_guess_its_fate() -> None:
    lines = verdict(CHAIN, 80).plain.splitlines()
    assert lines[0].startswith("✓  1 “ a”  accepted")
    assert "✗  2" in lines[1]
    assert "rejected" in lines[1]
    assert "of no use" in lines[2]
    assert "→ “ B”" in lines[3]
    assert "instead of the rejected guess" in lines[3]


def test_a_verdict_over_a_tree_and_a_whole_draft() -> None:
    tree = drafted((" x", -1, False), (" a", -1, True), (" b", 1, True))
    assert "on top of the whole draft" in verdict(tree, 80).plain
    assert "rejected" in verdict(tree, 80).plain
    assert "the target's own token" in verdict(brought(1, 0.1), 80).plain
    assert "“[b]↵␛”" in verdict(drafted(("[b]\n\x1b", -1, True)), 80).plain


def test_headline_timing_and_timeline_fit() -> None:
    passes = [CHAIN, *[brought(1, 0.01)] * 200, CHAIN]
    assert headline(passes, 0).plain.startswith("Pass 1 of 202  draft model drafted 3, accepted 1  width 4  2 tokens")
    assert "plain decoding" in headline(passes, 5).plain
    for index in (0, 77, 201):
        plot, marker, _ = timeline(passes, index, 60).plain.splitlines()
        assert len(plot) == 60
        assert plot[marker.index("▲")] == ("█" if passes[index] is CHAIN else "▅")
        assert all(len(line) <= 80 for line in timing(passes, index, 80).plain.splitlines())
    assert so_far(passes, 0) == "2 tokens in 4.0 ms, 500 tok/s"
