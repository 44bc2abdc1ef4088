"""Origin views: an answer with each token in the colour, or above the sign, of where it came from."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from time import monotonic
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import work
from textual.app import ComposeResult
from textual.color import Color
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip
from textual.style import Style as ContentStyle
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.archive.message import StoredMessage
from localspec.chat.archive.passes import Replay
from localspec.chat.plain_text import plain_text
from localspec.chat.prompt.prompt import prompt_messages
from localspec.engine.slot import PassRecord
from localspec.errors import LocalspecError
from localspec.remote.answerer import AnswerPart
from localspec.tui.talk.session import Session
from localspec.tui.text.origin_lines import (
    REJECTED,
    AnswerPass,
    Line,
    OriginCell,
    OriginLines,
    PassReader,
    joined,
    kind_of,
    of_results,
    ordered,
    read_passes,
    sign_line,
    strength,
)

Mode = Literal["colour", "signs"]
_SLICE_SECONDS, _SLICE_PASSES, _PAUSE_SECONDS = 0.006, 8, 0.004
"""A long answer is laid out in slices, so that keys are never kept waiting."""
_GHOST = 0.55  # how far a rejected guess fades into the background


class OriginView(Widget):
    """Draws passes; what is out of sight costs nothing, and new passes cost only themselves. `mode` is "colour"
    (backgrounds; lines under the tokens where the terminal has no colour) or "signs" (a line of signs under each line
    of text). `ghosts` also shows rejected guesses, struck through, before what came instead."""

    class Complete(Message):
        """A long answer, laid out in slices, is all there."""

    DEFAULT_CSS: ClassVar[str] = "OriginView { height: auto; width: 1fr; }"

    def __init__(self, mode: Mode = "colour", ghosts: bool = False, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self.passes: list[AnswerPass] = []
        self.mode, self.ghosts = mode, ghosts
        self._layout_of: OriginLines | None = None
        self._laid_out = 0  # passes that have become lines; the others follow in slices
        self._waiting = False
        self._lines: list[Line] = []
        self._styles: dict[tuple[object, ...], Style] = {}

    def add(self, passes: Iterable[AnswerPass]) -> None:
        self.passes += passes
        self._lay_out()
        self.refresh(layout=True)

    def show(self, passes: Iterable[AnswerPass]) -> None:
        self.passes = list(passes)
        self._layout_of = None
        self.refresh(layout=True)

    def reach(self, passes: Sequence[AnswerPass], end: int) -> None:
        """Shows the first ones of an answer, up to `end`; only further ones than before are laid out."""
        if end < len(self.passes):
            self.show(passes[:end])
        else:
            self.add(passes[len(self.passes) : end])

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
        return 2 if self.mode == "signs" else 1

    def _lines_for(self, width: int) -> list[Line]:
        if self._layout_of is None or self._layout_of.width != max(2, width):
            self._layout_of = OriginLines(width, ghosts=self.ghosts, line_ends=self.mode == "signs")
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

        def go_on() -> None:
            self._waiting = False
            self._lay_out()
            self.refresh(layout=True)
            if self._laid_out == len(self.passes):
                self.post_message(self.Complete())

        if self._laid_out < len(self.passes) and not self._waiting:
            self._waiting = True
            self.set_timer(_PAUSE_SECONDS, go_on)

    def _style(self, cell: OriginCell) -> Style:
        base = self.visual_style
        background, foreground = base.background or Color(0, 0, 0), base.foreground or Color(255, 255, 255)
        look = (background, foreground, self.app.no_color, self.app.native_ansi_color)
        key = (cell.drafter, cell.depth, cell.ghost, self.mode, look)
        if key not in self._styles:
            self._styles[key] = self._make_style(cell, background, foreground)
        return self._styles[key]

    def _make_style(self, cell: OriginCell, background: Color, foreground: Color) -> Style:
        base = self.rich_style
        if cell.ghost:
            if self.app.native_ansi_color:
                return base + Style(dim=True, strike=True)
            return base + Style(color=foreground.blend(background, _GHOST).rich_color, strike=True)
        kind = kind_of(cell.drafter)
        if self.mode == "signs" or not kind.colour:
            return base
        if self.app.no_color:
            return base + Style(underline=kind.underline > 0, underline2=kind.underline == 2, italic=kind.italic)
        colour = Color.parse(kind.colour)
        if self.app.native_ansi_color:  # the terminal's own background is not known, so nothing can be mixed with it
            return base + Style(color="black", bgcolor=colour.rich_color)
        tint = background.blend(colour, strength(cell.depth))
        return base + Style(color=tint.get_contrast_text(0.95).rich_color, bgcolor=tint.rich_color)


class Shares:
    def __init__(self, passes: Iterable[AnswerPass] = ()) -> None:
        self.tokens: Counter[str] = Counter()  # by drafter; "" = the target's own
        self.drafters: set[str] = set()  # all that drafted, be it in vain
        self.rejected = 0
        self.add(passes)

    def add(self, passes: Iterable[AnswerPass]) -> None:
        for one in passes:
            self.tokens.update(token.drafter for token in one.emitted)
            self.drafters.add(one.drafter)
            self.rejected += len(one.guesses) - one.accepted


def legend(shares: Shares, *, mode: Mode = "colour", no_color: bool = False, ghosts: bool = False) -> Content:
    """What colours or signs mean, with each source's share of the answer's tokens."""
    total = shares.tokens.total() or 1
    parts: list[Content] = []
    for name in ["", *ordered([*shares.tokens, *shares.drafters])]:
        kind, style = kind_of(name), ContentStyle()
        if no_color:
            style = ContentStyle(underline=kind.underline > 0, underline2=kind.underline == 2, italic=kind.italic)
        elif kind.colour and mode != "signs":
            style = ContentStyle(background=Color.parse(kind.colour), foreground=Color.parse("black"))
        swatch = Content.styled(f" {kind.letter} ", style)
        parts.append(Content.assemble(swatch, f" {kind.name} {shares.tokens[name] / total:.0%}"))
    if ghosts:
        parts.append(Content(f" {REJECTED}  rejected guesses {shares.rejected}"))
    if mode == "signs":
        parts.append(Content("2, 3, ... position in the draft"))
    return Content("  ").join(parts)


NOTHING = "No passes are stored with this message, so it is unknown where its tokens came from."
_SETTLED = 1.2  # seconds after which everything that was heard before a view was opened is on disk


class OriginText(Vertical):
    """An answer as a row of `registry.VIEWS` says, legend beneath; from the archive, and live while it streams."""

    DEFAULT_CSS: ClassVar[str] = """
    OriginText { height: auto; }
    OriginText .legend { color: $text-muted; height: auto; }
    """

    def __init__(self, session: Session, message: StoredMessage, view: str = "origins") -> None:
        """`view`: "origins"; "ghosts" are there with the others, "signs" for eyes or terminals without colour."""
        super().__init__()
        self._session, self.message = session, message
        self._view = OriginView(mode="signs" if view == "signs" else "colour", ghosts=view != "origins")
        self._legend = Static("", classes="legend", markup=False)
        self._shares = Shares()
        self._live: list[PassRecord] = []
        self._reader: PassReader | None = None
        """Reads what streams; None = nothing does, or what came before is not read yet."""

    def compose(self) -> ComposeResult:
        yield self._view
        yield self._legend

    def on_mount(self) -> None:
        self._read(self.message)
        if self.message.state == "streaming":
            self.set_timer(_SETTLED, lambda: self._read(self.message))

    async def extend(self, part: AnswerPart) -> None:
        self._live += part.records
        if self._reader is not None:
            passes = [self._reader.read(record) for record in part.records]
            self._view.add(passes)
            self._shares.add(passes)
            self._explain()

    async def settle(self, message: StoredMessage) -> None:
        """The answer is over, or was changed: shows what is stored."""
        self.message, self._reader = message, None
        self._read(message)

    @work(exclusive=True, group="origins")
    async def _read(self, message: StoredMessage) -> None:
        """Reads old passes on a thread: thousands take longer than a frame."""
        stored, passes, shares, trouble = Replay([], {}), list[AnswerPass](), Shares(), ""

        def read() -> None:
            nonlocal stored, passes
            archive = self._session.archive
            stored = archive.replay(message.id)
            if message.state != "streaming":
                passes = read_passes(stored.passes, lambda token: stored.pieces.get(token, b""), message.content)
                path = takewhile(lambda one: one.id != message.id, archive.path(message.chat_id))
                prompt = prompt_messages(archive.chat(message.chat_id), [*path])
                passes = list(of_results(passes, prompt, message.calls))
                shares.add(passes)

        try:
            await asyncio.to_thread(read)
        except LocalspecError as error:
            trouble = str(error)
        if message is not self.message:
            return  # it has changed meanwhile, and is being read again
        if message.state == "streaming":
            now = self._session.piece
            reader = PassReader(lambda token: stored.pieces.get(token) or now(token))
            passes = [reader.read(record) for record in joined(stored.passes, self._live)]
            self._reader = reader
            shares.add(passes)
        self._view.show(passes)
        self._shares = shares
        if passes:
            self._explain()
        elif message.state != "streaming":
            self._legend.update(Content(trouble or f"{plain_text(message.content)}\n\n{NOTHING}"))

    def _explain(self) -> None:
        no_color, view = self.app.no_color, self._view
        self._legend.update(legend(self._shares, mode=view.mode, no_color=no_color, ghosts=view.ghosts))
