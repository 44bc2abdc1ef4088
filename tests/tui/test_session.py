"""What a chat works with, tried without a screen."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from localspec.chat.archive.archive import Archive
from localspec.errors import UsageError
from localspec.remote.answerer import Facts
from localspec.runtime.kept import corpus
from localspec.runtime.kept.caches import CacheFolder
from localspec.tui.talk.session import Preferences, Session, last_turn, question_of, window
from tests.chat.conftest import made
from tests.tools.conftest import demo
from tests.tools.test_connections import ends
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer


def answerer(name: str) -> ReplayAnswerer:
    return ReplayAnswerer(Recording([Recorded.of_text("Yes.")], {}, Facts(name)))


def told(session: Session) -> None:
    """Everything that is said of a model is said of the first one."""
    session.facts, session.failure, session.stranger = Facts("first", key="first.gguf"), "lost", "http://there"


def test_another_model_is_made_with_what_is_liked_and_answers_from_then_on(archive: Archive) -> None:
    asked: list[tuple[str | None, str | None, dict[str, Any]]] = []

    def make(target: str | None, draft: str | None, settings: dict[str, Any]) -> ReplayAnswerer:
        asked.append((target, draft, settings))
        return answerer(str(target))

    first = answerer("first")
    session = Session(first, archive, Preferences(engine={"context": 512, "threads": 1}), make)
    told(session)
    assert session.model == "first.gguf"
    made = session.made("second", "small", context=1024)
    assert asked == [("second", "small", {"context": 1024, "threads": 1})]
    assert session.answerer is first, "it is not loaded yet"
    assert session.use(made) is first
    assert (session.facts, session.failure, session.stranger, session.model) == (None, "", "", "second")
    assert session.named == ("second", "small")
    assert session.piece(7) == b"?"


def test_the_only_one_stays(archive: Archive) -> None:
    session = Session(answerer("first"), archive, Preferences())
    with pytest.raises(UsageError, match="without --endpoint"):
        session.made("second")
    assert session.named == (None, None)


def test_bytes_of_tokens_may_be_unknown(archive: Archive) -> None:
    there = answerer("first")
    there.piece = None
    assert Session(there, archive, Preferences()).piece(7) == b""


@pytest.mark.parametrize(
    ("liked", "given", "begin", "expected"),
    [(True, True, {}, True), (False, True, {}, False), (True, False, {}, False), (True, True, {"system": "S"}, False)],
)
def test_an_earlier_chat_comes_back_unless_something_speaks_against_it(
    archive: Archive, liked: bool, given: bool, begin: dict[str, Any], expected: bool
) -> None:
    found = Session(answerer("first"), archive, Preferences(resume=liked), begin=begin, resume=given)
    assert found.resume is expected


def test_what_was_kept_of_a_deleted_chat_goes_without_an_engine(
    archive: Archive, folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = CacheFolder().path("gone")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"cache")
    Session(answerer("first"), archive, Preferences()).forget("gone")
    assert not path.exists()
    assert not caplog.records


def test_answers_that_cannot_be_deleted_are_warned_of(
    archive: Archive, folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (corpus.folder() / "broken.sqlite").mkdir(parents=True)  # no file, so that nothing can be taken out of it
    Session(answerer("first"), archive, Preferences()).forget("gone")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_answer_with_calls_is_several_messages_and_one_of_the_path(archive: Archive) -> None:
    chat = archive.new_chat(system="Be brief.")
    for number in range(2):
        writer = archive.begin_answer(archive.append_user(chat.id, f"question {number}").id)
        writer.extend("I look.", reasoning="when?")
        for name in ("time", "day"):
            writer.add_call(made(name, "3 pm"))
        writer.extend("\n\nIt is", reasoning="so")
        writer.finish("stopped")
    archive.append_user(chat.id, "last")
    path = archive.path(chat.id)
    question = question_of(chat, path, None)
    assert [message.role for message in question.messages[1:6]] == ["user", "assistant", "tool", "tool", "assistant"]
    found = last_turn(chat, path, question)
    assert found is not None
    assert (found.first, found.dropped) == (path[-1], question.messages[:-1])
    asked = answerer("first")
    asked.facts = Facts("first", context=60)
    asked.count = lambda question: 4 * len(question.messages)  # type: ignore[method-assign]
    small = window(asked, chat, path, question)
    assert (small.first, small.dropped) == (path[2], question.messages[:6])
    gone_on = question_of(chat, path[:-1], None, go_on=True)
    assert (gone_on.prefix, gone_on.reasoning) == ("It is", "so")
    assert [message.content for message in gone_on.messages[-4:]] == ["question 1", "I look.", "3 pm", "3 pm"]
    assert gone_on.messages[-3].reasoning == "when?"


def test_servers_of_all_chats_are_ended_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, archive: Archive
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    all_end = threading.Barrier(5)
    session = Session(answerer("first"), archive, Preferences(), servers=[demo(str(tmp_path))])
    for chat in "abcde":
        toolbox = session.toolbox(chat)
        assert toolbox is not None
        assert "add" in {tool.name for tool in toolbox.tools()}
        end = toolbox.connections.close
        monkeypatch.setattr(toolbox.connections, "close", lambda end=end: (all_end.wait(60), end()))
    session.close()
    assert not all_end.broken
    assert ends(str(tmp_path))
