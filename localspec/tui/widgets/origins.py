"""Origin views of a message: what the chat shows instead of Markdown when somebody asks where tokens came from."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat.archive.message import StoredMessage
from localspec.chat.archive.passes import Replay
from localspec.chat.plain_text import plain_text
from localspec.engine.request import PassRecord
from localspec.errors import LocalspecError
from localspec.tui.pages.passes import Pass, PassReader, joined, read_passes
from localspec.tui.talk.answerer import AnswerPart
from localspec.tui.talk.owner import answerer_of, archive_of, piece_of
from localspec.tui.widgets.origin_view import Mode, OriginView, Shares, legend

NOTHING = "No passes are stored with this message, so it is unknown where its tokens came from."


_SETTLED = 1.2
"""Seconds after which everything that was heard before a view was opened is on disk."""


class OriginText(Vertical):
    """Colours, legend beneath; from the archive, and live while it streams."""

    DEFAULT_CSS: ClassVar[str] = """
    OriginText { height: auto; }
    OriginText .legend { color: $text-muted; height: auto; }
    """
    MODE: ClassVar[Mode] = "colour"
    GHOSTS: ClassVar[bool] = False

    def __init__(self, message: StoredMessage) -> None:
        super().__init__()
        self.message = message
        self._view = OriginView(mode=self.MODE, ghosts=self.GHOSTS)
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
        """What came while it streams."""
        self._live += part.records
        if self._reader is not None:
            passes = [self._reader.read(record) for record in part.records]
            self._view.add(passes)
            self._shares.add(passes)
            self._explain()

    async def settle(self, message: StoredMessage) -> None:
        """The answer is over, or was changed: shows what is stored."""
        self.message, self._live, self._reader = message, [], None
        self._read(message)

    @work(thread=True, exclusive=True, group="origins")
    def _read(self, message: StoredMessage) -> None:
        """Reads old passes on a thread: thousands take longer than a frame."""
        stored, passes, trouble = Replay([], {}), list[Pass](), ""
        try:
            stored = archive_of(self).replay(message.id)
        except LocalspecError as error:
            trouble = str(error)
        if message.state != "streaming":
            passes = read_passes(stored.passes, lambda token: stored.pieces.get(token, b""), message.content)
        self.app.call_from_thread(self._show, message, stored, passes, Shares(passes), trouble)

    def _show(self, message: StoredMessage, stored: Replay, passes: list[Pass], shares: Shares, trouble: str) -> None:
        if message is not self.message:
            return  # it has changed meanwhile, and is being read again
        if message.state == "streaming":
            now = piece_of(answerer_of(self))
            reader = PassReader(lambda token: stored.pieces.get(token) or now(token))
            passes = [reader.read(record) for record in joined(stored.passes, self._live)]
            self._reader, shares = reader, Shares(passes)
        self._view.show(passes)
        self._shares = shares
        if passes:
            self._explain()
        elif message.state != "streaming":
            self._legend.update(Content(trouble or f"{plain_text(message.content)}\n\n{NOTHING}"))

    def _explain(self) -> None:
        no_color = self.app.no_color
        self._legend.update(legend(self._shares, mode=self.MODE, no_color=no_color, ghosts=self.GHOSTS))


class GhostText(OriginText):
    """With the guesses that were rejected."""

    GHOSTS = True


class SignText(OriginText):
    """With a line of signs under the text, for eyes or terminals without colour."""

    MODE: ClassVar[Mode] = "signs"
    GHOSTS = True
