"""Thinking apart from the answer, whatever the cuts."""

from __future__ import annotations

import pytest

from localspec.tui.thinking import ThinkingSplit, joined


def split(text: str, size: int, inside: bool = False) -> tuple[str, str]:
    parser = ThinkingSplit(inside)
    pairs = [parser.push(text[at : at + size]) for at in range(0, len(text), size)]
    pairs.append(parser.finish())
    return "".join(pair[0] for pair in pairs), "".join(pair[1] for pair in pairs)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "inside", "answer", "thinking"),
    [
        ("plain text", False, "plain text", ""),
        ("<think>\nhm\n</think>\n\nyes", False, "yes", "hm"),
        ("\n<think>a</think>b <think>c</think>", False, "b <think>c</think>", "a"),
        ("text with <think>tags</think>", False, "text with <think>tags</think>", ""),
        ("still thinking</think>done", True, "done", "still thinking"),
        ("<think>never ends </th", False, "", "never ends </th"),
        ("<thin ice", False, "<thin ice", ""),
        ("<think></think>x", False, "x", ""),
        ("", False, "", ""),
    ],
)
def test_split(text: str, inside: bool, answer: str, thinking: str, size: int) -> None:
    said, thought = split(text, size, inside)
    assert said == answer
    assert thought.strip("\n") == thinking


@pytest.mark.parametrize(("thinking", "text"), [("hm", "yes"), ("hm", ""), ("", "yes")])
def test_joined_is_what_split_takes_apart(thinking: str, text: str) -> None:
    said, thought = split(joined(thinking, text), 3)
    assert (said, thought.strip("\n")) == (text, thinking)
