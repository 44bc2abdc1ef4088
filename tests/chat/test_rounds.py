"""An answer with calls is one text with places; a model is shown it as the messages that it was."""

from __future__ import annotations

from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall, Message, rounds

TIME, DAY, ADD = (ToolCall(f"id{number}", name, "{}") for number, name in enumerate(("time", "day", "add")))


def test_an_answer_without_calls_is_what_it_says() -> None:
    assert rounds("Hello\n\nyou", "hm", ()) == ([], "Hello\n\nyou", "hm")


def test_each_round_has_its_text_its_calls_and_their_results() -> None:
    content, reasoning = "I look.\n\nI add.\n\nIt is 5.", "when?sum"
    calls = [
        MadeCall(TIME, "3 pm", 0, len("I look."), len("when?")),
        MadeCall(DAY, "Monday", 0, len("I look."), len("when?")),
        MadeCall(ADD, "5", 1, len("I look.\n\nI add."), len("when?")),
    ]
    messages, text, thoughts = rounds(content, reasoning, calls)
    assert messages == [
        Message("assistant", "I look.", (TIME, DAY), reasoning="when?"),
        Message("tool", "3 pm", tool_call_id="id0", name="time"),
        Message("tool", "Monday", tool_call_id="id1", name="day"),
        Message("assistant", "I add.", (ADD,)),
        Message("tool", "5", tool_call_id="id2", name="add"),
    ]
    assert (text, thoughts) == ("It is 5.", "sum")


def test_rounds_that_say_nothing_have_no_paragraphs() -> None:
    messages, text, _ = rounds("\n\nDone.", "", [MadeCall(TIME, "3 pm", 0), MadeCall(DAY, "Monday", 1)])
    assert [message.content for message in messages] == ["", "3 pm", "", "Monday"]
    assert text == "\n\nDone."  # the model's own
