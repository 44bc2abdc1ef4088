"""What the model sees, titles, and chats that outgrow their context: pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.chats import LONGEST_TITLE, title_from
from localspec.chat.archive.message import Attachment
from localspec.chat.prompt.prompt import (
    drop_oldest,
    fenced,
    prompt_messages,
    sampling_params,
    summary_request,
    with_attachments,
)
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.types import SamplingParams
from tests.chat.conftest import made, say


def shown(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


def test_the_model_sees_system_window_and_files_but_no_reasoning(archive: Archive) -> None:
    chat = archive.new_chat(system="Be brief.")
    say(archive, chat.id, "one", "1")
    question = archive.append_user(chat.id, "two", attachments=[Attachment("a b.py", "x = 1")])
    writer = archive.begin_answer(question.id)
    writer.extend("2", reasoning="thinking")
    writer.finish()
    path = archive.path(chat.id)
    file = "File a b.py:\n```\nx = 1\n```\n\ntwo"
    assert shown(prompt_messages(archive.chat(chat.id), path)) == [
        ("system", "Be brief."),
        ("user", "one"),
        ("assistant", "1"),
        ("user", file),
        ("assistant", "2"),
    ]
    archive.update_chat(chat.id, window_first=question.id, window_summary="They counted to one.")
    windowed = prompt_messages(archive.chat(chat.id), path)
    summary = "Be brief.\n\nSummary of the conversation so far:\nThey counted to one."
    assert shown(windowed) == [("system", summary), ("user", file), ("assistant", "2")]
    assert len(prompt_messages(archive.chat(chat.id), path[:2])) == 3  # another branch: the window does not hold
    archive.edit(question.id, "three", attachments=())  # another version of the window's first message
    assert shown(prompt_messages(archive.chat(chat.id), archive.path(chat.id))) == [
        ("system", summary),
        ("user", "three"),
    ]
    archive.choose(question.id)
    empty = archive.begin_answer(question.id)
    assert shown(prompt_messages(chat, archive.path(chat.id)))[-1] == ("user", file)
    empty.finish("stopped")


@given(st.text(st.sampled_from("`~ \nab"), max_size=40))
def test_nothing_closes_a_files_fence(content: str) -> None:
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(fenced(Attachment("n", content)))
    assert [token.type for token in tokens][3:] == ["fence"]
    assert tokens[3].content.rstrip("\n") == content.rstrip("\n")


def test_a_message_of_files_alone() -> None:
    assert with_attachments("", [Attachment("a", "b\n")]) == "File a:\n```\nb\n```"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("", ""),
        ("\n\n  # Hello **World**!\nmore", "Hello World!"),
        ("- `ls -la` what is it?", "ls -la what is it?"),
        ("2) second things", "second things"),
        ("```\ncode()\n```", "code()"),
        ("🎉", "🎉"),
        ("東京はどこ", "東京はどこ"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("word " * 30, "word word word word word word word word word word word…"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_from(text) == title


@given(st.text())
def test_a_title_is_one_short_line(text: str) -> None:
    title = title_from(text)
    assert len(title) <= LONGEST_TITLE
    assert len(title.splitlines()) <= 1


def test_sampling_params_of_a_chat() -> None:
    params = {"temperature": 0, "top_k": 5.0, "logit_bias": [[3, -1]], "thinking": True, "stop": ["x"]}
    assert sampling_params(params) == SamplingParams(temperature=0.0, top_k=5, logit_bias=((3, -1.0),))
    for bad in ({"top_p": "high"}, {"top_k": 1.5}, {"min_p": True}, {"logit_bias": 5}, {"temperature": -1}):
        with pytest.raises(UsageError, match=next(iter(bad))):
            sampling_params(bad)


conversations = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=12)


def counted(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


@given(conversations, st.integers(0, 200), st.booleans())
def test_the_longest_end_that_fits_is_kept(turns: list[tuple[int, int]], limit: int, with_system: bool) -> None:
    system = [Message("system", "sys")] if with_system else []
    told: list[Message] = []
    for length, answers in turns:
        told += [Message("user", "u" * length), *([Message("assistant", "a" * length)] * answers)]
    found = drop_oldest([*system, *told], limit, counted)
    assert found.messages == [*system, *told[found.dropped :]]
    assert found.tokens == counted(found.messages)
    assert found.fits == (found.tokens <= limit)
    assert told[found.dropped].role == "user"
    starts = [at for at, message in enumerate(told) if message.role == "user"]
    longer = [at for at in starts if at < found.dropped]
    assert all(counted([*system, *told[at:]]) > limit for at in longer)
    assert found.fits or found.dropped == starts[-1]


def test_a_summary_is_asked_for_in_turn() -> None:
    answered = [Message("user", "a"), Message("assistant", "b")]
    assert [message.role for message in summary_request(answered)] == ["user", "assistant", "user"]
    asked = summary_request([*answered, Message("user", "c")])
    assert asked[-1].content.startswith("c\n\nSummarise")


def test_an_answer_with_calls_is_shown_as_its_rounds_without_thoughts(archive: Archive) -> None:
    chat = archive.new_chat(system="Be brief.")
    writer = archive.begin_answer(archive.append_user(chat.id, "When?").id)
    writer.extend("I look.", reasoning="hm")
    writer.add_call(made("time", "3 pm"))
    writer.extend("\n\nIt is late.")
    writer.finish()
    silent = archive.begin_answer(archive.append_user(chat.id, "Where?").id)
    silent.add_call(made("place", "Rome"))
    silent.finish("stopped")
    path = archive.path(chat.id)
    messages = prompt_messages(chat, path)
    assert messages == [
        Message("system", "Be brief."),
        Message("user", "When?"),
        Message("assistant", "I look.", (made("time", "").call,)),
        Message("tool", "3 pm", tool_call_id="id-time", name="time"),
        Message("assistant", "It is late."),
        Message("user", "Where?"),
        Message("assistant", "", (made("place", "").call,)),
        Message("tool", "Rome", tool_call_id="id-place", name="place"),
    ]
    for limit in range(60):
        found = drop_oldest(messages, limit, counted)
        assert [message.role for message in found.messages[:2]] == ["system", "user"]
