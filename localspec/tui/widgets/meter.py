"""The live meter: one line below the chat that says how fast it goes, and what drafts bring."""

from __future__ import annotations

from time import monotonic

from textual import events
from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.tui.talk.answerer import Facts, Loading
from localspec.tui.talk.live import Live
from localspec.tui.text.meter_line import meter_line

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
    """Told by the screen what is loaded, and which chat is in front."""

    def __init__(self) -> None:
        super().__init__(markup=False, id="status")
        self.tooltip = TOOLTIP
        self._live = Live()
        self._model = ""
        self._use: tuple[int, int] | None = None
        self._drawn = 0.0
        self._note = ""
        """Shown in place of figures."""

    def tell(
        self, facts: Facts | None, loading: Loading | None, use: tuple[int, int] | None, live: Live, note: str = ""
    ) -> None:
        """What is loaded, how full the context is, the chat in front, and what the screen says in place of figures."""
        before = (self._model, self._use, self._note, self._live)
        self._use, self._note, self._live = use, note, live
        if facts is not None:
            self._model = plain_text(facts.name if facts.draft is None else f"{facts.name} + {facts.draft}")
        elif not note:
            share = f" {loading.share:.0%}" if loading else ""
            self._note = f"{loading.what if loading else 'Loading'}{share} · you can write meanwhile"
        if (self._model, self._use, self._note, self._live) != before:
            self.draw()

    def draw(self, *, now: bool = True) -> None:
        """Shows the figures; `now`: even if they were just shown."""
        if not now and monotonic() - self._drawn < _REST_SECONDS:
            return
        self._drawn = monotonic()
        width = self.size.width
        if self._note:
            line = Content(plain_text(self._note))
            self.update(line.truncate(width, ellipsis=True) if width else line, layout=False)
        else:
            live = self._live
            self.update(meter_line(live.stats, live.now.usual, width, self._use, self._model), layout=False)

    def on_resize(self, event: events.Resize) -> None:
        self.draw()
