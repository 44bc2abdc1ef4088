"""How much of a chat is drawn, while its path changes and messages are looked for."""

from __future__ import annotations

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import StoredMessage
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.transcript import Bubble, Transcript
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.test_answer_text import LONG

pytestmark = pytest.mark.asyncio

FEW = Preferences(messages_shown=2)


def chat(archive: Archive, turns: int) -> list[StoredMessage]:
    """A new chat's path."""
    chat_id = archive.new_chat(title="Questions").id
    for number in range(turns):
        writer = archive.begin_answer(archive.append_user(chat_id, f"Question {number}").id)
        writer.extend(f"Answer {number}")
        writer.finish()
    return archive.path(chat_id)


def drawn(transcript: Transcript) -> list[str]:
    return [bubble.message.content for bubble in transcript.bubbles]


def focused(app: ChatApp) -> str:
    return app.focused.message.content if isinstance(app.focused, Bubble) else ""


async def test_a_message_is_looked_for_while_more_is_being_drawn(
    make_app: MakeApp, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, app = chat(archive, 10), make_app("unused", preferences=FEW)
    async with app.run_test() as pilot:
        transcript, steps = front(app).transcript, list[int]()
        await until(pilot, lambda: len(transcript.bubbles) == 2)
        draw = transcript._draw_earlier

        async def counted() -> None:
            steps.append(transcript._first)
            assert len(steps) < len(path), "it turns in circles"
            await draw()

        monkeypatch.setattr(transcript, "_draw_earlier", counted)
        transcript.show_earlier()
        transcript.reveal(path[0].id)
        await until(pilot, lambda: focused(app) == "Question 0")
        assert drawn(transcript) == [message.content for message in path]


async def test_the_chat_may_become_shorter_while_a_message_is_looked_for(make_app: MakeApp, archive: Archive) -> None:
    path, app = chat(archive, 10), make_app("unused", preferences=FEW)
    async with app.run_test() as pilot:
        transcript = front(app).transcript
        await until(pilot, lambda: len(transcript.bubbles) == 2)
        transcript.reveal(path[10].id)
        await transcript.show(path[:3])
        await until(pilot, lambda: not any(worker.group == "reveal" for worker in app.workers))
        assert drawn(transcript) == ["Answer 0", "Question 1"]


async def test_the_question_stays_when_a_long_answer_gives_way(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.transcript._KEPT_PAGES", 1)  # a shorter answer shows it, too
    app = make_app(LONG, "short")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        transcript = front(app).transcript
        await until(pilot, lambda: transcript.virtual_size.height > 4 * 24)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: front(app).path[-1].content == "short")
        await answered(pilot)
        assert drawn(transcript) == ["Go", "short"]


async def test_another_version_is_found_however_much_follows_it(make_app: MakeApp, archive: Archive) -> None:
    archive.edit(chat(archive, 2)[0].id, "Other question")
    app = make_app("unused", preferences=FEW)
    async with app.run_test() as pilot:
        transcript = front(app).transcript
        await until(pilot, lambda: drawn(transcript) == ["Other question"])
        transcript.bubbles[0].focus()
        await pilot.press("left")
        await until(pilot, lambda: focused(app) == "Question 0")
