"""A lane of the race: name, clock, text with origins."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.tui.pages.race import Lane
from localspec.tui.text.plots import bar, duration
from localspec.tui.widgets.origin_view import OriginView


class LaneView(Vertical):
    """Shows a lane as it is, or as it was at some second."""

    DEFAULT_CSS: ClassVar[str] = """
    LaneView { width: 1fr; height: 1fr; padding: 0 1; border: round $panel; }
    LaneView.ahead { border: round $accent; }
    LaneView Static { height: auto; }
    LaneView VerticalScroll { height: 1fr; margin-top: 1; }
    """

    def __init__(self, lane: Lane, doc: str, id: str) -> None:  # noqa: A002 - Textual's name for it
        super().__init__(id=id)
        self.lane = lane
        self._doc = doc
        self._shown = 0

    def compose(self) -> ComposeResult:
        yield Static("", classes="clock", markup=False)
        yield Static("", classes="progress", markup=False)
        with VerticalScroll(can_focus=False):
            yield OriginView()

    def on_mount(self) -> None:
        self.show()

    def restart(self, lane: Lane) -> None:
        """Another heat."""
        self.lane, self._shown = lane, 0
        self.query_one(OriginView).show([])
        self.show()

    def show(self, seconds: float | None = None, of_tokens: int = 0) -> None:
        """Draws the lane.

        Args:
            seconds: on its clock; None = now.
            of_tokens: tokens of the whole answer, for the bar; 0 = not known.
        """
        lane = self.lane
        done = len(lane.passes) if seconds is None else lane.at(seconds)
        clock = lane.seconds if seconds is None else min(seconds, lane.seconds)
        tokens = lane.count if seconds is None else lane.count_at(seconds)
        rate = f"{tokens / clock:.0f} tok/s" if clock and tokens else ""
        flag = " ⚑" if lane.over and done == len(lane.passes) and tokens else ""
        name = Content.assemble((lane.name, "bold"), (f"  {self._doc}", "dim"))
        numbers = Content(f"{duration(clock):>8}  {tokens:>4} tokens  {rate}{flag}")
        self.query_one(".clock", Static).update(Content("\n").join([name, numbers]))
        share = bar(tokens / of_tokens, max(4, self.size.width)) if of_tokens else ""
        self.query_one(".progress", Static).update(Content.styled(share, "$primary"))
        self._draw(done)

    def _draw(self, done: int) -> None:
        view = self.query_one(OriginView)
        if done > self._shown:
            view.add(self.lane.passes[self._shown : done])
        elif done < self._shown:
            view.show(self.lane.passes[:done])
        if done != self._shown:
            self._shown = done
            self.query_one(VerticalScroll).scroll_end(animate=False)
