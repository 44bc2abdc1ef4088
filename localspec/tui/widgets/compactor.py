"""The line above the input that offers to compact a chat, and tells how far its summary is."""

from __future__ import annotations

import asyncio

from textual.content import Content
from textual.widgets import Static

from localspec.engine.request import FinishReason
from localspec.errors import LocalspecError
from localspec.tui.talk.answerer import AnswerEnded, Answerer, AnswerPart, Prefilled, Question
from localspec.tui.talk.conversation import Fit
from localspec.tui.talk.inbox import Inbox


class Compactor(Static):
    """One line; hidden unless the context is nearly full or a summary is being written. Asks for the summary, too."""

    DEFAULT_CSS = """
    Compactor { height: 1; padding: 0 2; color: $text-warning; display: none; text-wrap: nowrap;
        text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._offer = ""
        self._parts: list[str] = []
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
            self._show(self._offer)

    async def write(self, answerer: Answerer, question: Question) -> str | None:
        """Asks a question and collects the answer; None = it was stopped.

        Raises:
            LocalspecError: what went wrong.
        """
        done = self._done = asyncio.Event()
        self._parts, self._error, self._stopped = [], None, False
        self._show("Esc stops the summary, which is being written")
        inbox = Inbox(self)
        answer = answerer.answer(question, inbox)
        try:
            await done.wait()
        finally:
            inbox.stop()
            answer.cancel()
            self._done = None
            self._show(self._offer)
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
            self._show(f"Esc stops the summary: {event.done:,} of {event.total:,} tokens are read")

    def on_answer_part(self, event: AnswerPart) -> None:
        event.stop()
        if self.writing:
            self._parts.append(event.text)
            self._show(f"Esc stops the summary: {len(''.join(self._parts).split())} words so far")

    def on_answer_ended(self, event: AnswerEnded) -> None:
        event.stop()
        if self._done is not None and not self._stopped:
            self._error = event.error if event.finish is FinishReason.ERROR else None
            self._done.set()

    def _show(self, text: str) -> None:
        self.update(Content(text))
        self.display = bool(text)
