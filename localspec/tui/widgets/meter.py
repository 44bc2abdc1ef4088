"""The live meter: one line below the chat that says how fast it goes, and what drafts bring."""

from __future__ import annotations

from time import monotonic

from textual import events
from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.engine.stats import RequestStats
from localspec.tui.talk.answerer import Answer, AnswerEnded, AnswerPart, Facts, Loading, Prefilled
from localspec.tui.text.meter_line import Now, meter_line

_REST_SECONDS = 0.1
"""Between two drawings while an answer streams: numbers that change faster cannot be read."""
TOOLTIP = """tok/s: tokens a second, prompt not counted
x plain: plain decoding's time over the time taken; estimated from what one-row passes cost on this machine,
  passes that found their draft in past answers left out
acceptance: accepted guesses of all drafted
accepted length: mean accepted length of a pass with a draft, next token included
by position: how often drafts were accepted to the 1st, 2nd, ... position
width: rows of a pass"""


class Meter(Static):
    """Told by the screen what is loaded, and every part of an answer; keeps the last answer's figures."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="status")
        self.tooltip = TOOLTIP
        self._answer: Answer | None = None
        self._stats = RequestStats()
        self._now = Now()
        self._model = ""
        self._use: tuple[int, int] | None = None
        self._drawn = 0.0
        self._note = self._reading = ""
        """Shown instead of figures: what the screen says, how far the prompt has been read."""
        self._asked: float | None = None
        """When the first token began to be waited for; None = it is not."""

    def tell(self, facts: Facts | None, loading: Loading | None, use: tuple[int, int] | None, note: str = "") -> None:
        """What is loaded, and how full the context is."""
        before = (self._model, self._use, self._note)
        self._use = use
        self._note = note
        if facts is not None:
            self._model = plain_text(facts.name if facts.draft is None else f"{facts.name} + {facts.draft}")
        elif not note:
            share = f" {loading.share:.0%}" if loading else ""
            self._note = f"{loading.what if loading else 'Loading'}{share} · you can write meanwhile"
        if (self._model, self._use, self._note) != before or self._asked is not None:
            self._show()

    def rest(self) -> None:
        """No answer is under way."""
        if self._asked is not None or self._reading:
            self._asked, self._reading = None, ""
            self._show()

    def hear(self, live: AnswerPart | AnswerEnded | Prefilled) -> None:
        """Takes the figures of an answer."""
        if isinstance(live, Prefilled):
            self._asked = monotonic() if live.total is None else None
            total = live.total or 0
            self._reading = f"reading the prompt: {live.done:,} of {total:,} tokens" if live.done < total else ""
        else:
            if live.answer is not self._answer:
                self._answer, self._now = live.answer, Now()
            if isinstance(live, AnswerPart):
                self._now.add(live.records)
            self._stats, self._reading, self._asked = live.stats, "", None
        if monotonic() - self._drawn >= _REST_SECONDS or not isinstance(live, AnswerPart):
            self._show()

    def on_resize(self, event: events.Resize) -> None:
        self._show()

    def _show(self) -> None:
        self._drawn = monotonic()
        width = self.size.width
        said = self._note or self._reading
        if not said and self._asked is not None:
            said = f"waiting for the first token: {monotonic() - self._asked:.0f} s"
        if said:
            line = Content(plain_text(said))
            self.update(line.truncate(width, ellipsis=True) if width else line, layout=False)
        else:
            self.update(meter_line(self._stats, self._now.usual, width, self._use, self._model), layout=False)
