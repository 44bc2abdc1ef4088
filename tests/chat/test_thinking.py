"""Thinking apart from the answer, and together again, for endpoints that are to go on."""

from __future__ import annotations

import pytest

from localspec.chat.reply.harmony import MARKS, Retelling, apart, joined
from localspec.chat.reply.reply import ReplyParser


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


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize(("thinking", "text"), [("hm", "yes"), ("", "yes"), ("hm", ""), ("", "")])
def test_headers_are_retold_as_other_models_write_thoughts(thinking: str, text: str, size: int) -> None:
    written = f"<|channel|>analysis<|message|>{thinking}<|end|><|start|>assistant" if thinking else ""
    written += f"<|channel|>final<|message|>{text}" if text else ""
    retelling = Retelling(channels=True)
    told = [retelling.push(written[at : at + size]) for at in range(0, len(written), size)]
    assert "".join([*told, retelling.finish()]) == joined(thinking, text)
    plain = Retelling(channels=False)
    assert (plain.push(written), plain.finish()) == (written, "")
