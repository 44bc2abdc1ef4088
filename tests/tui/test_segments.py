"""Where a long answer is cut: by its text alone, with nothing lost, blocks whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.tui.text.typesetting import code_blocks
from localspec.tui.widgets import answer_text
from localspec.tui.widgets.answer_text import HARD, SOFT, AnswerSegment, cut

PARAGRAPH = "word " * 60
LINES = st.sampled_from(
    ["", "text here", "```", "```python", "~~~", "- item", "    code", "| a | b |", "|---|---|", "# H"]
)


def segments(text: str) -> list[str]:
    return [segment.text for segment in answer_text.segments(text)]


def streamed(text: str, size: int) -> list[str]:
    """What arrives piece by piece, cut as soon as it can be."""
    found, rest = [], ""
    for at in range(0, len(text), size):
        rest += text[at : at + size]
        while (first := cut(rest)) is not None:
            found.append(first.segment)
            rest = first.rest
    return [*found, rest]


def test_a_short_text_is_one_segment() -> None:
    assert segments("short") == ["short"]
    assert segments("") == [""]


def test_paragraphs_are_cut_between_them_and_nothing_is_lost() -> None:
    text = "\n\n".join(PARAGRAPH for _ in range(40))
    found = segments(text)
    assert len(found) > 4
    assert "".join(found) == text
    assert all(part.endswith("\n\n") for part in found[:-1])
    assert all(SOFT <= len(part) <= SOFT + 2 * len(PARAGRAPH) for part in found[:-1])


def test_a_long_code_block_is_reopened_in_each_segment() -> None:
    code = "".join(f"line_{number} = {number}\n" for number in range(2000))
    found = segments(f"```python\n{code}```\n\nafter")
    assert len(found) > 3
    assert all(part.startswith("```python\n") for part in found if "line_" in part)
    assert all(part.rstrip().endswith("```") for part in found[:-1] if "line_" in part)
    lines = [line for part in found for line in part.splitlines() if line.startswith("line_")]
    assert lines == code.splitlines()


def test_a_long_table_gets_its_head_again() -> None:
    rows = "".join(f"| {number} | x |\n" for number in range(2000))
    found = segments(f"| a | b |\n|---|---|\n{rows}")
    assert all(part.startswith("| a | b |\n|---|---|\n") for part in found)
    assert sum(part.count("| x |") for part in found) == 2000


def test_one_endless_line_is_cut_at_a_blank_or_anywhere() -> None:
    assert all(len(part) <= HARD for part in segments("word " * 10_000))
    assert all(len(part) <= HARD for part in segments("x" * 50_000))
    assert "".join(segments("x" * 50_000)) == "x" * 50_000


def test_blank_lines_inside_a_code_block_are_no_place_to_cut() -> None:
    text = "```\n" + "a\n\n" * 900 + "```\n\nend " + PARAGRAPH
    assert segments(text)[0].startswith("```")
    assert segments(text)[0].count("```") == 2


@given(st.lists(LINES, max_size=60), st.integers(1, 400))
def test_cuts_do_not_depend_on_how_the_text_arrives(lines: list[str], size: int) -> None:
    text = "\n".join(line * 12 for line in lines) * 8
    assert streamed(text, size) == segments(text)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_code_block_that_streams_is_cut_where_the_whole_one_is(size: int) -> None:
    text = "```c\n" + "int x = 1;\n" * 1500 + "```\n"
    assert streamed(text, size) == segments(text)


def numbers(found: list[AnswerSegment]) -> list[int]:
    """Of the blocks of code, as they are drawn."""
    return [segment.number + place for segment in found for place in range(segment.blocks)]


@given(st.lists(LINES, max_size=60))
def test_blocks_of_code_are_counted_as_in_the_whole(lines: list[str]) -> None:
    longer = {"text here": "text here " * 40, "    code": "    code\n" * 40 + "    code", "~~~": "~~~\n" + "a\n\n" * 99}
    text = "\n".join(longer.get(line, line) for line in lines)
    assert numbers(answer_text.segments(text)) == list(range(1, len(code_blocks(text)) + 1))


def test_the_rest_of_a_cut_block_of_code_has_no_number() -> None:
    code = "    line = 1\n" * 500
    deep = "- a\n  - b\n\n        ```\n" + "        b\n" * 500 + "        ```\n"
    for block in (f"```\n{code}```\n", code, deep, "x" * 9000):
        text = f"{block}\nwords\n\n```sh\nls\n```\n\n{PARAGRAPH * 4}\n\n{block}"
        found = answer_text.segments(text)
        assert numbers(found) == list(range(1, len(code_blocks(text)) + 1))
    assert any(segment.goes_on for segment in answer_text.segments(code))
