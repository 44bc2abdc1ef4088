"""Thinking apart from the answer, and together again, for endpoints that are to go on."""

from __future__ import annotations

import pytest

from localspec.chat.reply import ReplyParser
from localspec.chat.thinking import MARKS, apart, joined


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("thinking", "text"),
    [("hm", "yes"), ("hm", ""), ("", "yes"), ("", ""), ("a </thin b", "a <think>c</think>"), ("", "<thin ice")],
)
def test_joined_is_what_is_taken_apart_whatever_the_cuts(thinking: str, text: str, size: int) -> None:
    whole = joined(thinking, text)
    reply = ReplyParser(thought=MARKS)
    parts = [part for at in range(0, len(whole), size) for part in reply.push(whole[at : at + size])]
    assert apart([*parts, *reply.finish()]) == (text, thinking)
