"""Lines above the input that offer something: the model that answered in this chat before, or a summary of the chat."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from localspec import paths
from localspec.chat.plain_text import one_line
from localspec.engine.request import FinishReason
from localspec.errors import LocalspecError
from localspec.models.installed.installed import find, knows
from localspec.remote.answerer import Answer, Answerer, Question
from localspec.tui.talk.conversation import Fit
from localspec.tui.talk.inbox import Inbox
from localspec.tui.talk.posts import AnswerEnded, AnswerPart, Prefilled

if TYPE_CHECKING:
    from localspec.remote.answerer import Facts


def own_model(model: str, facts: Facts | None) -> str:
    """The model of a chat, if it is another one than the loaded one and can be loaded; else "".

    Args:
        model: as the chat has it.
        facts: of the model that answers; nothing is offered in place of a server's.
    """
    if not model or facts is None or facts.target is None or model == facts.key:
        return ""
    try:
        if not (knows(model) or Path(model).is_absolute()):
            return ""
        target, _ = find(model)
    except LocalspecError:
        return ""
    return model if os.path.isfile(target) and paths.real(target) != paths.real(facts.target) else ""


def short(model: str) -> str:
    """A model's name without the folders of its file."""
    return one_line(model.rpartition("/")[2])


class Hint(Static):
    """One line, hidden while it says nothing."""

    DEFAULT_CSS = """
    Hint { height: 1; padding: 0 2; display: none; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, text: str) -> None:
        """Says it; "" = nothing."""
        self.update(Content(text))
        self.display = bool(text)


class OwnModel(Hint):
    """Says nothing where the chat's own model answers, or has gone. A click does what the line offers."""

    DEFAULT_CSS = "OwnModel { color: $text-accent; }"

    def __init__(self) -> None:
        super().__init__()
        self.model = ""
        """What `/own` loads; "" = nothing is offered."""
        self._asked: tuple[str, Facts | None] = ("", None)

    def offer(self, model: str, facts: Facts | None, begun: bool) -> None:
        """The model of the chat, what is loaded, and whether the chat has answers."""
        asked = (model if begun else "", facts)
        if asked == self._asked:
            return  # looking for files takes a while
        self._asked = asked
        self.model = own_model(*asked)
        self.tell(f"/own lets {short(self.model)} answer, as before in this chat" if self.model else "")

    async def on_click(self) -> None:
        await self.run_action("screen.own_model")


class Compactor(Hint):
    """Offers to compact a chat whose context is nearly full, asks for the summary, and tells how far that is."""

    DEFAULT_CSS = "Compactor { color: $text-warning; }"

    def __init__(self) -> None:
        super().__init__()
        self._offer = ""
        self._parts: list[str] = []
        self._answer: Answer | None = None
        self._done: asyncio.Event | None = None
        """Set at the end of the summary; None = none is being written."""
        self._error: LocalspecError | None = None
        self._stopped = False

    @property
    def writing(self) -> bool:
        """Whether a summary is being written."""
        return self._done is not None

    def offer(self, found: Fit | None) -> None:
        """Offers it if the context is nearly full; None = a summary would not help."""
        self._offer = ""
        if found is not None and found.nearly_full:
            self._offer = f"/compact goes on with a summary: the context is {found.share}"
        if not self.writing:
            self.tell(self._offer)

    async def write(self, answerer: Answerer, question: Question) -> str | None:
        """Asks a question and collects the answer; None = it was stopped.

        Raises:
            LocalspecError: what went wrong.
        """
        done = self._done = asyncio.Event()
        self._parts, self._error, self._stopped = [], None, False
        self.tell("Esc stops the summary, which is being written")
        inbox = Inbox(self)
        answer = self._answer = answerer.answer(question, inbox)
        try:
            await done.wait()
        finally:
            inbox.stop()
            answer.cancel()
            self._done = None
            self.tell(self._offer)
        if self._stopped:
            return None
        if self._error is not None:
            raise self._error
        return "".join(self._parts).strip()

    def stop(self) -> None:
        """Ends the writing; `write` returns None. Nothing if there is none."""
        if self._done is not None:
            self._stopped = True
            self._done.set()

    async def on_click(self) -> None:
        if not self.writing:
            await self.run_action("screen.compact")

    def on_prefilled(self, event: Prefilled) -> None:
        event.stop()
        if self.writing and event.total is not None and event.done < event.total:
            self.tell(f"Esc stops the summary: {event.done:,} of {event.total:,} tokens are read")

    def on_answer_part(self, event: AnswerPart) -> None:
        event.stop()
        if self.writing:
            self._parts.append(event.text)
            self.tell(f"Esc stops the summary: {len(''.join(self._parts).split())} words so far")

    def on_answer_ended(self, event: AnswerEnded) -> None:
        event.stop()
        if event.answer is self._answer and self._done is not None and not self._stopped:
            self._error = event.error if event.finish is FinishReason.ERROR else None
            self._done.set()
