"""The messages of a chat, newest at the bottom. It stays there while text streams in, until the reader scrolls away.

Only the newest messages are drawn, as far as they are within reach; scrolling up draws more, and they go again when the
reader is back at the bottom. Where there are none yet stand who answers, models to pull, and the first keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import takewhile
from math import inf
from time import monotonic
from weakref import WeakSet

from textual import work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static

from localspec.chat.archive.message import Chat, StoredMessage
from localspec.chat.plain_text import plain_text
from localspec.chat.prompt.prompt import note
from localspec.remote.answerer import Facts
from localspec.runtime.offered import HEADING, TINY, offered
from localspec.tui.talk.session import Session
from localspec.tui.widgets.bubble import MARKDOWN, Bubble
from localspec.tui.widgets.registry import known, shown

_KEYS = {
    "open.models": "models: better ones, search on the hub, files of your own",
    "open.help": "help: all keys and commands",
    "open.history": "earlier chats",
    "chat.look": "colours that show where each token of an answer came from",
    "open.race": "a race of plain decoding against speculation, on one prompt",
}
"""The bindings that are worth knowing at first."""
_FIRST_KEYS = ("open.models", "open.help")
"""Those that are shown beside models to pull, so that all fits a terminal of 24 lines."""
_SIGNS = {"/": "at the beginning of a message: commands", "@": "and a path: a file is attached"}


class Welcome(Static):
    def __init__(self, session: Session) -> None:
        super().__init__(markup=False)
        self._session = session

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Who answers now."""
        session = self._session
        keys = {name: shown(self.app, binding) for name, binding in known().items() if name in _KEYS}
        models = _models(session, keys["open.models"])
        if session.facts is not None:
            who = sentence(session.facts)
        elif session.failure:
            who = f"No model answers: {session.failure}"
        else:
            who = f"{session.answerer.name} is being loaded; you can write meanwhile."
        parts: list[str | tuple[str, str]] = [("localspec\n\n", "bold $primary"), (plain_text(who), "$text"), "\n\n"]
        if session.fault:
            parts += [(f"{plain_text(session.fault)}\n\n", "$text-warning")]
        rows = [(keys[name], doc) for name, doc in _KEYS.items() if not models or name in _FIRST_KEYS]
        parts += models
        for key, doc in [*rows, *_SIGNS.items()]:
            parts += [(f"{key:<10}", "bold $accent"), f"{doc}\n"]
        self.update(Content.assemble(*parts))


def _models(session: Session, key: str) -> list[str | tuple[str, str]]:
    """Models to pull, as long as there is only the bundled pair; how, with the key that opens the models."""
    found = offered() if session.facts is not None and session.facts.bundled else []
    if not found:
        return []
    width = max(len(name) for name, _ in found)
    parts: list[str | tuple[str, str]] = [f"{HEADING}\n"]
    for name, words in found:
        parts += [(f"{name:{width}}", "bold $accent"), f"  {words}\n"]
    return [*parts, f"{key} and Enter on one pulls it, or in a shell: localspec pull NAME\n\n"]


def sentence(facts: Facts) -> str:
    """Who answers, and what to expect of it."""
    if facts.remote:
        return f"{facts.name} answers, at an endpoint. /model chooses another of its models."
    drafted = f", and {facts.draft} drafts for it" if facts.draft else ""
    room = f" A chat can hold {facts.context:,} tokens." if facts.context else ""
    tiny = f" {TINY}" if facts.bundled else ""
    completes = f" {note(facts.name)}" if facts.completes else ""
    return f"{facts.name} answers{drafted}.{room}{completes}{tiny}"


_LOOK_SECONDS = 0.05  # how often it is looked for answers whose height is only guessed, or that are off the screen
_EARLIER_TURNS = 2  # messages drawn at a time while the reader scrolls up, a page ahead
_FILL_SECONDS = 0.003  # how long finding out heights may take each time
_KEPT_PAGES = 50
"""Lines are kept so many pages above and below what is seen: setting them anew costs more than a frame. Messages that
end farther above the newest text are not drawn: a long one takes many times the memory of its text."""


class Earlier(Static):
    """Stands for the messages that are not drawn."""

    def on_click(self) -> None:
        transcript = self.parent
        if isinstance(transcript, Transcript):
            transcript.show_earlier()


class Transcript(VerticalScroll, can_focus=False):
    """`show` a path; the bubbles of messages that stay are kept."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._shown = session.preferences.messages_shown
        self._path: list[StoredMessage] = []
        self._first = 0
        self._view = MARKDOWN
        self._window: tuple[int | None, str] = (None, "")
        """First message that the model sees (None = all of them), and what it is told of those before."""
        self._near: WeakSet[Bubble] = WeakSet()  # drawn ones within a page of what is seen
        self._changing = asyncio.Lock()  # one change of the path, or of how much of it is drawn, after the other

    def compose(self):  # type: ignore[no-untyped-def]
        earlier = Earlier("", markup=False, classes="earlier")
        earlier.display = False
        yield earlier
        yield Welcome(self._session)

    def on_mount(self) -> None:
        self.anchor()
        self._looking = self.set_interval(_LOOK_SECONDS, self._look_around, pause=True)

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Asks for no second layout while text streams in at the end, as Textual would for each new height."""
        streaming = any(bubble.message.state == "streaming" for bubble in self.bubbles[-1:])
        layout = layout and not (streaming and self.at_end and size == self._size)
        return super()._size_updated(size, virtual_size, container_size, layout)

    def _look_around(self) -> None:
        """Finds out heights that are guessed, a few at a time; forgets what was drawn far away, sets what is near."""
        deadline, above = monotonic() + _FILL_SECONDS, 0.0
        page, reach = self.size.height, _KEPT_PAGES * self.size.height
        for bubble in reversed(self.bubbles):
            answer, place = bubble.text, bubble.virtual_region
            top = self.scroll_y - place.y - (answer.virtual_region.y if answer is not None else 0)
            if self.scroll_y - page < place.bottom and place.y < self.scroll_y + 2 * page:
                self._near.add(bubble)
            elif bubble in self._near:
                self._near.remove(bubble)
                bubble.forget()
            streaming = bubble.message.state == "streaming"
            rests = answer is not None and not answer.complete and not (streaming and self.at_end)
            if answer is not None and rests and monotonic() < deadline:
                above += answer.fill(deadline, top, top + page if streaming else inf)
            if answer is not None:
                answer.keep(top - reach, top + page + reach, deadline)
        if above and not self.at_end:  # what is seen stays in its place
            self.call_after_refresh(self.scroll_relative, y=above, animate=False)

    @property
    def bubbles(self) -> list[Bubble]:
        return list(self.query_children(Bubble))

    def bubble(self, message_id: int) -> Bubble | None:
        return next((bubble for bubble in self.bubbles if bubble.message.id == message_id), None)

    async def show(self, path: Sequence[StoredMessage]) -> None:
        """Shows these messages: bubbles of the common beginning stay, the rest is drawn anew."""
        async with self._changing:
            same = 0
            while same < min(len(path), len(self._path)) and path[same].id == self._path[same].id:
                same += 1
            stay = {message.id for message in path[self._first : same]}
            gone = [bubble for bubble in self.bubbles if bubble.message.id not in stay]
            if not stay:
                self._first = max(0, len(path) - self._shown)
            self._path = list(path)
            self._looking.resume()
            with self.app.batch_update():
                if gone:
                    await self.remove_children(gone)
                by_id = {bubble.message.id: bubble for bubble in self.bubbles}
                for message in path[self._first :]:
                    if message.id in by_id:
                        by_id[message.id].renew(message)
                new = [self._make(message) for message in path[self._first :] if message.id not in by_id]
                if new:
                    await self.mount_all(new)
                if self.at_end:
                    await self._drop_before(self._newest(self._shown * 3 // 2))
            self._show_count()
            welcome = self.query_one(Welcome)
            if welcome.display and path:
                self.anchor()
            elif not path:  # from its beginning, however small the terminal is
                self.release_anchor()
                self.scroll_home(animate=False)
            welcome.display = not path
        self.call_after_refresh(self._draw_ahead)

    async def catch_up(self, path: Sequence[StoredMessage]) -> None:
        before = {bubble.message.id: bubble.message for bubble in self.bubbles}
        await self.show(path)
        for bubble in self.bubbles:
            old, new = before.get(bubble.message.id), bubble.message
            if old is not None and (old.content, old.reasoning, old.state) != (new.content, new.reasoning, new.state):
                await bubble.settle(new)

    @property
    def at_end(self) -> bool:
        """Whether the newest text stays in view."""
        return not self._anchor_released

    async def look(self, view: str) -> None:
        self._view = view
        with self.app.batch_update():
            for bubble in self.bubbles:
                await bubble.look(view)

    async def mark(self, chat: Chat) -> None:
        """Marks where the model's view of this chat begins."""
        self._window = chat.window_first, chat.window_summary
        for bubble in self.bubbles:
            await bubble.mark(self._summary_before(bubble.message))

    def _summary_before(self, message: StoredMessage) -> str | None:
        """What the model is told of all before a message; None = its view does not begin there."""
        first, summary = self._window
        return summary if first in message.siblings else None

    def reveal_before(self) -> None:
        """The message above the first one that is drawn, if there is one."""
        if self._first > 0:
            self.reveal(self._path[self._first - 1].id)

    @work(group="reveal")
    async def reveal(self, message_id: int) -> None:
        """Scrolls to a message and focuses it, drawing it first if need be; nothing if it is not on the path."""
        while any(message.id == message_id for message in self._path[: self._first]):
            await self._draw_earlier()
        bubble = self.bubble(message_id)
        if bubble is not None:
            self.release_anchor()
            bubble.focus(scroll_visible=False)
            self.call_after_refresh(self.scroll_to_widget, bubble, animate=False, top=True)

    def to_end(self) -> None:
        self.anchor()
        if self._first < self._newest(self._shown):
            self._drop_old()

    @work(group="window")
    async def _drop_old(self) -> None:
        async with self._changing:
            await self._drop_before(self._newest(self._shown))
            self._show_count()

    def _newest(self, most: int) -> int:
        """The first message to be drawn at the end, if more than `most` are too many."""
        # New ones at the end have no place yet; the height of everything still counts what has just gone.
        ends = [bubble.virtual_region.bottom for bubble in self.bubbles]
        far = max(ends, default=0) - (1 + _KEPT_PAGES) * self.size.height
        gone = sum(1 for _ in takewhile(lambda end: 0 < end < far, ends))
        drawn = len(self._path) - self._first
        return max(self._first + gone, len(self._path) - self._shown if drawn > most else 0)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value:
            self._draw_ahead()

    def _draw_ahead(self) -> None:
        """While the reader comes near the beginning of what is drawn."""
        if self._first > 0 and not self.at_end and self.scroll_y <= self.size.height:
            self.show_earlier()

    @work(group="window")
    async def show_earlier(self) -> None:
        """Draws more of the beginning; what the reader sees stays where it is."""
        if not self._changing.locked():  # else `_draw_ahead` asks again after that change
            await self._draw_earlier()

    async def _draw_earlier(self) -> None:
        async with self._changing:
            if self._first == 0:
                return
            first = max(0, self._first - _EARLIER_TURNS)
            new = [self._make(message) for message in self._path[first : self._first]]
            top = self.bubbles[0]
            place = top.virtual_region.y
            self._first = first
            with self.app.batch_update():
                await self.mount_all(new, after=0)
            self._show_count()
            self.call_after_refresh(self._stay, top, place)

    def _stay(self, top: Bubble, place: int) -> None:
        """What is seen stays in its place while more is drawn above `top`, which was at line `place`."""
        self.scroll_relative(y=top.virtual_region.y - place, animate=False)
        self.call_after_refresh(self._draw_ahead)

    async def _drop_before(self, first: int) -> None:
        numbers = {message.id for message in self._path[first:]}
        old = [bubble for bubble in self.bubbles if bubble.message.id not in numbers]
        self._first = first
        if old:
            await self.remove_children(old)

    def _make(self, message: StoredMessage) -> Bubble:
        return Bubble(self._session, message, self._view, self._summary_before(message))

    def _show_count(self) -> None:
        earlier = self.query_one(Earlier)
        earlier.display = self._first > 0
        number = f"{self._first} earlier message{'s' if self._first > 1 else ''}"
        earlier.update(Content(f"↑ {number}: scroll up or click"))
