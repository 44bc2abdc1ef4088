"""What happens before a chat outgrows its context: the person decides, and the archive remembers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual.message import Message as TextualMessage
from textual.widget import Widget

from localspec.engine.request import FinishReason
from localspec.errors import LocalspecError
from localspec.tui.answerer import AnswerEnded, Answerer, AnswerPart, Question
from localspec.tui.conversation import Window, summary_question, window
from localspec.tui.dialogs import Choice
from localspec.tui.inbox import Inbox

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen
    from localspec.tui.widgets.pane import ChatPane

_ANSWERS = (
    ("drop", "Go on without the oldest messages", "They stay in the chat; the model no longer sees them."),
    ("summarise", "Go on with a summary of them", "The model writes it first; that takes a moment."),
    ("new", "Ask in a new chat", "With your last message alone."),
    ("edit", "Let me shorten it", "Your message comes back into the input."),
)


def offer(screen: ChatScreen, event: ChatPane.Full) -> None:
    """Asks what to do about a question that does not fit, and does it."""
    screen.run_worker(_offer(screen, event), group="overflow")


async def _offer(screen: ChatScreen, event: ChatPane.Full) -> None:
    app, pane = screen.app, event.pane
    question = f"This chat has {event.tokens:,} tokens, the model's context holds {event.limit:,}. How to go on?"
    chosen = await app.push_screen_wait(Choice(question, _ANSWERS))
    try:
        if chosen in ("drop", "summarise"):
            await _make_room(screen, event, chosen == "summarise")
        elif chosen == "new":
            last = pane.path[-1]
            fresh = await screen.open_chat()
            app.archive.append_user(fresh.chat_id, last.content, attachments=last.attachments)
            await fresh.transcript.show(fresh.path)
            fresh.ask()
        elif pane.path and pane.path[-1].role == "user":
            pane.edit(pane.path[-1])
    except LocalspecError as error:
        app.say(str(error), problem=True)


async def _make_room(screen: ChatScreen, event: ChatPane.Full, with_summary: bool) -> None:
    app, pane = screen.app, event.pane
    found = await asyncio.to_thread(window, app.answerer, pane.chat, pane.path, event.question)
    if not found.fits:
        app.say("Even your last message alone does not fit; shorten it.", problem=True)
        pane.edit(pane.path[-1])
        return
    summary = await _summary(screen, found, event.question) if with_summary else ""
    app.archive.set_window(pane.chat_id, found.first.id, summary)
    if with_summary:
        app.say("The model goes on with this summary: " + summary)
    pane.ask()


async def _summary(screen: ChatScreen, found: Window, question: Question) -> str:
    """Lets the model write it."""
    screen.app.say("The model writes a summary …")
    answerer = screen.app.answerer
    reader = Reader(answerer, await asyncio.to_thread(summary_question, answerer, found, question))
    await screen.mount(reader)
    try:
        return await reader.text()
    finally:
        await reader.remove()


class Reader(Widget):
    """Asks a question and collects the answer, unseen."""

    DEFAULT_CSS = "Reader { display: none; }"

    def __init__(self, answerer: Answerer, question: Question) -> None:
        super().__init__()
        self._answerer, self._question = answerer, question
        self._parts: list[str] = []
        self._done = asyncio.Event()
        self._error: LocalspecError | None = None

    async def text(self) -> str:
        """Waits for the whole answer.

        Raises:
            LocalspecError: what went wrong.
        """
        answer = self._answerer.answer(self._question, Inbox(self))
        try:
            await self._done.wait()
        finally:
            answer.cancel()
        if self._error is not None:
            raise self._error
        return "".join(self._parts).strip()

    def on_answer_part(self, event: AnswerPart) -> None:
        event.stop()
        self._parts.append(event.text)

    def on_answer_ended(self, event: AnswerEnded) -> None:
        event.stop()
        self._error = event.error if event.finish is FinishReason.ERROR else None
        self._done.set()

    def on_prefilled(self, event: TextualMessage) -> None:
        event.stop()
