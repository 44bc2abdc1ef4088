"""The origin view: an answer with each token in the colour, or above the sign, of where it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from time import monotonic
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.style import Style as ContentStyle
from textual.widget import Widget

from localspec.tui.pages.passes import Pass
from localspec.tui.text.kinds import REJECTED, kind_of, ordered, strength
from localspec.tui.text.origin_lines import Cell, Line, OriginLines, sign_line

Mode = Literal["colour", "signs"]
MODES: tuple[Mode, ...] = ("colour", "signs")
_SLICE_SECONDS, _SLICE_PASSES, _PAUSE_SECONDS = 0.006, 8, 0.004
"""A long answer is laid out in slices, so that keys are never kept waiting."""
_GHOST = 0.55
"""How far a rejected guess fades into the background."""


class OriginView(Widget):
    """Draws passes; what is out of sight costs nothing, and new passes cost only themselves.

    `mode` is "colour" (backgrounds; lines under the tokens where the terminal has no colour) or "signs" (a line of
    signs under each line of text). `ghosts` also shows rejected guesses, struck through, before what came instead.
    """

    class Complete(Message):
        """A long answer, laid out in slices, is all there."""

    DEFAULT_CSS: ClassVar[str] = "OriginView { height: auto; width: 1fr; }"

    def __init__(
        self,
        passes: Iterable[Pass] = (),
        *,
        mode: Mode = "colour",
        ghosts: bool = False,
        id: str | None = None,  # noqa: A002 - Textual's name for it
        classes: str | None = None,
    ) -> None:
        super().__init__(id=id, classes=classes)
        self.passes = list(passes)
        self._mode: Mode = mode
        self._ghosts = ghosts
        self._layout_of: OriginLines | None = None
        self._laid_out = 0
        """Passes that have become lines; the others follow in slices."""
        self._waiting = False
        self._lines: list[Line] = []
        self._styles: dict[tuple[object, ...], Style] = {}

    @property
    def mode(self) -> Mode:
        """How origins are shown."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        self._again()

    @property
    def ghosts(self) -> bool:
        """Whether rejected guesses are shown."""
        return self._ghosts

    @ghosts.setter
    def ghosts(self, ghosts: bool) -> None:
        self._ghosts = ghosts
        self._again()

    def add(self, passes: Iterable[Pass]) -> None:
        """Appends passes at the end."""
        self.passes += passes
        self._lay_out()
        self.refresh(layout=True)

    def show(self, passes: Iterable[Pass]) -> None:
        """Shows other passes instead."""
        self.passes = list(passes)
        self._again()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self._height * len(self._lines_for(width))

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        lines = self._lines_for(self.size.width)
        index, row = divmod(y, self._height)
        if index >= len(lines):
            return Strip.blank(self.size.width, base)
        if row:
            segments = [Segment(sign_line(lines[index]), base + Style(dim=True))]
        else:
            segments = [Segment(cell.text, self._style(cell)) for cell in lines[index] if cell.text]
        return Strip(segments).adjust_cell_length(self.size.width, base)

    @property
    def _height(self) -> int:
        """Rows of the screen for a line of text."""
        return 2 if self._mode == "signs" else 1

    def _again(self) -> None:
        self._layout_of = None
        self.refresh(layout=True)

    def _lines_for(self, width: int) -> list[Line]:
        if self._layout_of is None or self._layout_of.width != max(2, width):
            self._layout_of = OriginLines(width, ghosts=self._ghosts, line_ends=self._mode == "signs")
            self._laid_out = 0
            self._lay_out()
        return self._lines

    def _lay_out(self) -> None:
        """Makes lines for as long as a frame allows; the rest follows in the next frames."""
        lines, deadline = self._layout_of, monotonic() + _SLICE_SECONDS
        if lines is None:
            return  # its width is not known yet
        while self._laid_out < len(self.passes) and monotonic() < deadline:
            lines.add(self.passes[self._laid_out : self._laid_out + _SLICE_PASSES])
            self._laid_out = min(len(self.passes), self._laid_out + _SLICE_PASSES)
        self._lines = lines.lines
        if self._laid_out < len(self.passes) and not self._waiting:
            self._waiting = True
            self.set_timer(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._waiting = False
        self._lay_out()
        self.refresh(layout=True)
        if self._laid_out == len(self.passes):
            self.post_message(self.Complete())

    def _style(self, cell: Cell) -> Style:
        base = self.visual_style
        background, foreground = base.background or Color(0, 0, 0), base.foreground or Color(255, 255, 255)
        look = (background, foreground, self.app.no_color, self.app.native_ansi_color)
        key = (cell.drafter, cell.depth, cell.ghost, self._mode, look)
        found = self._styles.get(key)
        if found is None:
            found = self._styles[key] = self._make_style(cell, background, foreground)
        return found

    def _make_style(self, cell: Cell, background: Color, foreground: Color) -> Style:
        base = self.rich_style
        if cell.ghost:
            if self.app.native_ansi_color:
                return base + Style(dim=True, strike=True)
            return base + Style(color=foreground.blend(background, _GHOST).rich_color, strike=True)
        kind = kind_of(cell.drafter)
        if self._mode == "signs" or not kind.colour:
            return base
        if self.app.no_color:
            return base + Style(underline=kind.underline > 0, underline2=kind.underline == 2, italic=kind.italic)
        colour = Color.parse(kind.colour)
        if self.app.native_ansi_color:  # the terminal's own background is not known, so nothing can be mixed with it
            return base + Style(color="black", bgcolor=colour.rich_color)
        tint = background.blend(colour, strength(cell.depth))
        return base + Style(color=tint.get_contrast_text(0.95).rich_color, bgcolor=tint.rich_color)


class Shares:
    """How many tokens came from where, counted as they come."""

    def __init__(self, passes: Iterable[Pass] = ()) -> None:
        self.tokens: Counter[str] = Counter()
        """By drafter; "" = the target's own."""
        self.drafters: set[str] = set()
        """All that drafted, be it in vain."""
        self.rejected = 0
        self.add(passes)

    def add(self, passes: Iterable[Pass]) -> None:
        """Counts passes."""
        for one in passes:
            self.tokens.update(token.drafter for token in one.emitted)
            self.drafters.add(one.drafter)
            self.rejected += len(one.guesses) - one.accepted


def legend(shares: Shares, *, mode: Mode = "colour", no_color: bool = False, ghosts: bool = False) -> Content:
    """What colours or signs mean, with each source's share of the answer's tokens."""
    total = shares.tokens.total() or 1
    parts: list[Content] = []
    for name in ["", *ordered([*shares.tokens, *shares.drafters])]:
        kind = kind_of(name)
        swatch = Content.styled(f" {kind.letter} ", _swatch(name, mode, no_color))
        parts.append(Content.assemble(swatch, f" {kind.name} {shares.tokens[name] / total:.0%}"))
    if ghosts:
        parts.append(Content(f" {REJECTED}  rejected guesses {shares.rejected}"))
    if mode == "signs":
        parts.append(Content("2, 3, ... position in the draft"))
    return Content("  ").join(parts)


def _swatch(name: str, mode: Mode, no_color: bool) -> ContentStyle:
    kind = kind_of(name)
    if no_color:
        return ContentStyle(underline=kind.underline > 0, underline2=kind.underline == 2, italic=kind.italic)
    if not kind.colour or mode == "signs":
        return ContentStyle()
    return ContentStyle(background=Color.parse(kind.colour), foreground=Color.parse("black"))
