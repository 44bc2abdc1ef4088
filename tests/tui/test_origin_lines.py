"""The origin view's layout: lines of cells that fit, lose nothing, and carry their signs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from localspec.methods import TABLE
from localspec.tui.text.origin_lines import (
    OWN,
    REJECTED,
    AnswerPass,
    DraftGuess,
    Line,
    OriginCell,
    OriginLines,
    kind_of,
    ordered,
    sign,
    sign_line,
    strength,
)


def a_pass(*emitted: tuple[str, str, int], rejected: tuple[str, ...] = (), drafter: str = "draft") -> AnswerPass:
    guesses = tuple(DraftGuess(text, -1, depth, False) for depth, text in enumerate(rejected, 1))
    return AnswerPass(drafter, guesses, tuple(OriginCell(*one) for one in emitted), 1 + len(rejected), 0.01)


def shown(passes: list[AnswerPass], width: int, ghosts: bool = False, line_ends: bool = False) -> list[str]:
    lines = OriginLines(width, ghosts=ghosts, line_ends=line_ends)
    lines.add(passes)
    return ["".join(cell.text for cell in line) for line in lines.lines]


def test_words_stay_whole() -> None:
    passes = [a_pass(("Maria", "draft", 1), (" bo", "draft", 2), ("ught", "", 0)), a_pass((" lanterns", "", 0))]
    assert shown(passes, 12) == ["Maria bought", "lanterns"]
    assert shown(passes, 9) == ["Maria", "bought", "lanterns"]
    assert shown(passes, 4) == ["Mari", "a", "boug", "ht", "lant", "erns"]


def test_line_ends_end_lines() -> None:
    passes = [a_pass(("one\n\ntwo", "", 0))]
    assert shown(passes, 20) == ["one", "", "two"]
    assert shown(passes, 20, line_ends=True) == ["one↵", "↵", "two"]


def test_signs_stand_under_their_tokens() -> None:
    lines = OriginLines(30)
    lines.add([a_pass(("Maria", "lookup", 1), (" sold", "lookup", 2), (",", "", 0))])
    (line,) = lines.lines
    assert "".join(cell.text for cell in line) == "Maria sold,"
    assert sign_line(line).rstrip() == "l    2    ·"


def test_ghosts_are_shown_on_demand_only() -> None:
    passes = [a_pass(("Maria", "draft", 1), (" bought", "", 0), rejected=(" sold\n", " it"))]
    assert shown(passes, 40) == ["Maria bought"]
    assert shown(passes, 40, ghosts=True) == ["Maria sold↵ it bought"]
    lines = OriginLines(40, ghosts=True)
    lines.add(passes)
    assert [cell.ghost for cell in lines.lines[0]] == [False, True, True, False]
    assert sign_line(lines.lines[0]).split() == ["d", "x", "x", "·"]


def test_what_could_harm_a_terminal_is_a_sign() -> None:
    (line,) = shown([a_pass(("\x1b[31mred\u202e\x9b[/b]\t", "", 0))], 40)
    assert line == "␛[31mred��[/b]⇥ "


texts = st.lists(
    st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.sampled_from(["", "draft", "lookup"])),
    max_size=20,
)


@given(texts, st.integers(2, 30), st.booleans())
def test_no_line_is_too_wide_and_adding_is_the_same_as_all_at_once(
    pieces: list[tuple[str, str]], width: int, ghosts: bool
) -> None:
    passes = [a_pass((text, who, 1 if who else 0), rejected=(text[:3],)) for text, who in pieces]
    at_once, bit_by_bit = OriginLines(width, ghosts=ghosts), OriginLines(width, ghosts=ghosts)
    at_once.add(passes)
    for one in passes:
        bit_by_bit.add([one])
        assert bit_by_bit.lines  # asking between does not change what follows
    assert at_once.lines == bit_by_bit.lines
    for line in at_once.lines:
        assert sum(cell.width for cell in line) <= width
        assert cell_len(sign_line(line)) == sum(cell.width for cell in line)


@given(texts, st.integers(2, 30))
def test_no_visible_character_is_lost(pieces: list[tuple[str, str]], width: int) -> None:
    passes = [a_pass((text, who, 1 if who else 0)) for text, who in pieces]
    drawn = "".join(cell.text for line in lines_of(passes, width) for cell in line)
    everything = "".join(cell.text for line in lines_of(passes, 10_000) for cell in line)
    assert drawn.replace(" ", "") == everything.replace(" ", "")


def lines_of(passes: list[AnswerPass], width: int) -> list[Line]:
    lines = OriginLines(width)
    lines.add(passes)
    return lines.lines


def test_every_drafter_has_a_kind_of_its_own() -> None:
    letters = [row.look.letter for row in TABLE]
    assert len(set(letters)) == len(letters)
    assert all(letter.isalpha() and letter not in (REJECTED, OWN) for letter in letters)
    assert [kind_of(row.name).letter for row in TABLE] == letters
    looks = [(row.look.colour, row.look.underline, row.look.italic) for row in TABLE if row.kind != "head"]
    assert len({colour for colour, *_ in looks}) == len(looks)
    assert len({(underline, italic) for _, underline, italic in looks}) == len(looks)
    assert kind_of("").name == "the target's own"
    assert kind_of("zebra").letter == "z"
    assert ordered(["zebra", "lookup", "", "draft", "lookup"]) == ["draft", "lookup", "zebra"]


def test_deeper_guesses_are_stronger() -> None:
    shades = [strength(depth) for depth in range(1, 8)]
    assert shades == sorted(shades)
    assert 0 < shades[0] < shades[-1] < 1
    assert [sign("draft", depth) for depth in (1, 2, 9, 10)] == ["d", "2", "9", "+"]
    assert sign("", 0) == "·"
