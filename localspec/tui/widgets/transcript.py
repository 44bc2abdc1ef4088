"""The messages of a chat: those within reach are drawn, scrolling up draws more, and the newest stays in view until the
reader scrolls away. Where there are none stand who answers, models to pull, and the first keys."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from math import inf
from operator import attrgetter
from time import monotonic
from typing import Any, ClassVar
from weakref import WeakSet

from textual import events, work
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.geometry import Size
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Collapsible, Static, TabPane

from localspec.chat.archive.message import Chat, StoredMessage
from localspec.chat.export import call_line, signature
from localspec.chat.plain_text import counted_lines, plain_text
from localspec.chat.prompt.prompt import note
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.remote.answerer import AnswerPart
from localspec.runtime.offered import HEADING, TINY, offered
from localspec.tui.talk.session import Session
from localspec.tui.widgets.answer_text import AnswerText
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.registry import VIEWS, bind, known, load, shown

MARKDOWN = "markdown"  # the view an answer has unless another is chosen
_WORD_SECONDS = 0.25  # a letter that comes sooner after another makes a word of both


class FigureLine(Static):
    """The line below an answer; a click on it looks at answers in another way, as the key does."""

    async def on_click(self) -> None:
        await self.run_action("screen.look")


class Bubble(Vertical, can_focus=True):
    """Shows a `StoredMessage`; what its keys do is the chat screen's business."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("message.edit", "e", "screen.edit", "Edit", "Edit it: yours is sent again, an answer kept", show=True),
        bind("message.regenerate", "r", "screen.regenerate", "Again", "Answer once more, beside this one", show=True),
        bind("message.continue", "o", "screen.go_on", "Continue", "Let the answer go on where it ended"),
        bind("message.copy", "c", "screen.copy", "Copy", "Copy this message", show=True),
        bind("message.copy_code", "k", "screen.copy_code", "Code", "Copy its code; asks which block", show=True),
        bind("message.branch", "b", "screen.branch", "Branch", "A new chat with the messages up to this one"),
        bind("message.previous", "left", "screen.sibling(-1)", "Other", "Previous version of this message"),
        bind("message.next", "right", "screen.sibling(1)", "Other", "Next version of this message"),
        bind(
            "message.delete",
            "delete,shift+d",
            "screen.delete_message",
            "Delete",
            "Delete it and what follows",
            show=True,
        ),
        bind("message.thinking", "t", "toggle_thinking", "Thinking", "Show or fold the thinking"),
        bind("message.up", "up", "screen.walk(-1)", "Up", "Message above"),
        bind("message.down", "down", "screen.walk(1)", "Down", "Message below"),
        bind("message.write", "enter,i", "screen.write", "Write", "Back to the input"),
    ]

    def __init__(
        self, session: Session, message: StoredMessage, view: str = MARKDOWN, summary: str | None = None
    ) -> None:
        """`summary`: the model's view begins here, with this summary of what came before; None = it does not."""
        super().__init__(classes=message.role)
        self._summary = summary
        self.message = message
        self._view = view
        self._session, self._fold = session, session.preferences.fold_thinking
        self._thinking_text = plain_text(message.reasoning)
        self._parts = list[Any]()  # the answer: what it says and calls, in that order; or another view, and its calls
        self._typed: Timer | None = None  # runs while a letter waits for another
        self._key: ActiveBinding | None = None  # what the waiting letter would do, if none comes
        self._letter = ""

    def compose(self) -> ComposeResult:
        if self._summary is not None:
            yield Seam(self._summary)
        yield Static(self._head(), classes="head")
        if self.message.role == "user":
            named = (f"+ {plain_text(one.name)} ({counted_lines(one.content)})" for one in self.message.attachments)
            lines = [plain_text(self.message.content), *named]
            yield Static(Content("\n".join(line for line in lines if line)), classes="said")
            return
        if self._thinking_text.strip():
            yield self._make_thinking()
        yield from self._make_parts(self._pieces)
        self._foot = FigureLine(classes="foot")
        self._foot.tooltip = "Click: where each token came from"
        self._show_figures()
        yield self._foot

    @property
    def texts(self) -> list[AnswerText]:
        """The answer as Markdown; none = it is looked at in another way, or it is the user's."""
        return [part for part in self._parts if isinstance(part, AnswerText)]

    def forget(self) -> None:
        """It is far from what is seen: Textual need not keep what it has drawn, which takes far more than the text."""
        for widget in (self, *self._parts):
            widget._styles_cache.clear()  # refresh() would note a number for each line

    on_unmount = forget  # what Textual has drawn of a widget outlives it, in the cache of a method

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Asks for no second layout, as Textual would for each new height: nothing else depends on it."""
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    async def extend(self, part: AnswerPart) -> None:
        if part.thinking:
            self._thinking_text += plain_text(part.thinking)
            await self._show_thinking()
        self.message = replace(self.message, content=self.message.content + part.text)
        body = self._parts[-1 if self._view == MARKDOWN else 0]
        if not isinstance(body, Collapsible):
            await body.extend(part)
        elif part.text.strip():
            await self._show_parts()

    async def begin_call(self, call: ToolCall) -> None:
        """Shows that it is under way, until it is made or the answer ends."""
        await self.mount(Static(Content(f"▷ {signature(call, 60)} ..."), classes="running"), before=self._foot)

    async def add_call(self, made: MadeCall) -> None:
        made = replace(made, said=len(self.message.content))
        self.message = replace(self.message, calls=(*self.message.calls, made))
        await self._show_parts()

    async def settle(self, message: StoredMessage) -> None:
        self.message = message
        self._thinking_text = plain_text(message.reasoning)
        if message.role == "assistant":
            await self._show_thinking()
            await self._show_parts()
        self.renew(message)

    def renew(self, message: StoredMessage) -> None:
        """Shows new facts around a body that stays: siblings, state, figures."""
        self.message = message
        self.query_one(".head", Static).update(self._head())
        if message.role == "assistant":
            self._show_figures()

    async def mark(self, summary: str | None) -> None:
        """Shows, or no longer, that the model's view begins here; `summary` as above."""
        if summary != self._summary:
            self._summary = summary
            await self.query(Seam).remove()
            if summary is not None:
                await self.mount(Seam(summary), before=0)

    async def look(self, view: str) -> None:
        """Shows the body in another way: `markdown`, or a row of `registry.VIEWS`."""
        if view == self._view or self.message.role == "user":
            return
        self._view = view
        await self.remove_children(self._parts)
        self._parts = []
        await self.mount_all(list(self._make_parts(self._pieces)), before=self._foot)

    async def on_key(self, event: events.Key) -> None:
        """A letter alone is one of the message's keys; letters in a row are a word, and words belong to the input."""
        key = self.screen.active_bindings.get(event.key)
        if event.character is None or not event.is_printable:
            await self._act()
            if key is not None and key.node is self:  # now: on its way to the app letters after it would be faster
                event.stop()
                event.prevent_default()
                await self.app.run_action(key.binding.action, self)
            return
        event.stop()
        event.prevent_default()
        if self.screen.focused is not self:  # on its way here when the input took over
            self._write(event.character)
        elif self._key is None and key is not None and key.node is self:
            self._key, self._letter = key, event.character
            self._typed = self.set_timer(_WORD_SECONDS, self._act)
        else:
            text = self._letter + event.character
            self._forget_letter()
            self._write(text)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._forget_letter()
        self._write("").post_message(events.Paste(event.text))

    async def _act(self) -> None:
        key = self._key
        self._forget_letter()
        if key is not None:
            await self.app.run_action(key.binding.action, self)

    def _forget_letter(self) -> None:
        if self._typed is not None:
            self._typed.stop()
        self._typed = self._key = None
        self._letter = ""

    on_blur = on_descendant_blur = _forget_letter

    def _write(self, text: str) -> Composer:
        """At once and not by a message: letters that come after must not be faster."""
        pane = next(node for node in self.ancestors if isinstance(node, TabPane))
        composer = pane.query_exactly_one(Composer)
        self.screen.set_focus(composer)
        composer.insert(text)
        return composer

    def _make_thinking(self) -> Collapsible:
        thoughts = Static(Content(self._thinking_text), classes="thoughts")
        return Collapsible(thoughts, title="Thinking", collapsed=self._fold, classes="thinking")

    async def _show_thinking(self) -> None:
        shown = self.query(".thoughts").results(Static)
        if (thoughts := next(iter(shown), None)) is not None:
            thoughts.update(Content(self._thinking_text))
        elif self._thinking_text.strip():
            await self.mount(self._make_thinking(), after=self.query_one(".head"))

    def action_toggle_thinking(self) -> None:
        for part in self.query(Collapsible):
            part.collapsed = not part.collapsed

    @property
    def _pieces(self) -> list[Any]:
        """What the parts show: texts and calls, or the message for another view."""
        return self.message.pieces or [""] if self._view == MARKDOWN else [self.message, *self.message.calls]

    def _make_parts(self, pieces: Sequence[Any]) -> Iterator[Widget]:
        for piece in pieces:
            if isinstance(piece, MadeCall):  # a folded line, which opens to arguments and result
                text = Static(Content(plain_text(f"{signature(piece.call)}\n\n{piece.result}")), classes="result")
                title = call_line(piece).replace("[", "\\[")
                self._parts.append(Collapsible(text, title=title, classes="thinking call"))
            elif isinstance(piece, str):
                self._parts.append(AnswerText(piece, self.texts[-1:]))
            else:
                home = next(row.home for row in VIEWS if row.name == self._view)
                self._parts.append(load(home)(self._session, piece, self._view))
            yield self._parts[-1]

    async def _show_parts(self) -> None:
        """Shows what the message says and calls by now; a call under way is over. Parts that fit stay."""
        pairs = zip(self._parts, pieces := self._pieces, strict=False)
        fit = list(takewhile(lambda pair: isinstance(pair[0], Collapsible) == isinstance(pair[1], MadeCall), pairs))
        for part, piece in fit:
            if not isinstance(piece, MadeCall):
                await part.settle(piece)
        await self.remove_children([*self._parts[len(fit) :], *self.query(".running")])
        del self._parts[len(fit) :]
        await self.mount_all(list(self._make_parts(pieces[len(fit) :])), before=self._foot)

    def _show_figures(self) -> None:
        message, stats = self.message, self.message.stats
        said = {"stopped": ["stopped"], "error": ["failed"]}.get(message.state, [])
        if message.note:
            said.append(plain_text(message.note))
        if message.state != "streaming" and stats.get("generated_tokens"):
            said.append(f"{stats['generated_tokens']} tokens")
            if stats.get("tokens_per_second"):
                said.append(f"{stats['tokens_per_second']:.0f} tokens/s")
            if stats.get("mean_accepted_length", 1) > 1:
                said.append(f"mean accepted length {stats['mean_accepted_length']:.1f}")
        self._foot.update(Content(" · ".join(said)))
        self._foot.display = bool(said)

    def _head(self) -> Content:
        message = self.message
        name = "You" if message.role == "user" else plain_text(message.model) or "Answer"
        parts: list[Any] = [(name, "bold")]
        if len(message.siblings) > 1:
            parts += [
                "  ",
                ("◂", Style.from_meta({"@click": f"screen.sibling_of({message.id}, -1)"})),
                f" {message.sibling_number}/{len(message.siblings)} ",
                ("▸", Style.from_meta({"@click": f"screen.sibling_of({message.id}, 1)"})),
            ]
        return Content.assemble(*parts)


class Seam(Vertical):
    """Above a message: the model sees a summary of what came before, or nothing of it."""

    def __init__(self, summary: str) -> None:
        """`summary`: what the model is told instead; "" = nothing."""
        super().__init__()
        self._summary = plain_text(summary)

    def compose(self) -> ComposeResult:
        if self._summary:
            text = Static(Content(self._summary), classes="summary")
            yield Collapsible(text, title="The model sees a summary of what stands above")
        else:
            yield Static(Content("The model does not see what stands above."))


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

    def show(self) -> None:
        """Who answers, what to expect of it; models to pull, while only the bundled pair is here; the first keys."""
        session, facts = self._session, self._session.facts
        keys = {name: shown(self.app, binding) for name, binding in known().items() if name in _KEYS}
        models = offered() if facts is not None and facts.bundled else []
        if facts is not None and facts.remote:
            who = f"{facts.name} answers, at an endpoint. /model chooses another of its models."
        elif facts is not None:
            drafted = f", and {facts.draft} drafts for it" if facts.draft else ""
            holds = f" A chat can hold {facts.context:,} tokens." if facts.context else ""
            completes = f" {note(facts.name)}" if facts.completes else ""
            who = f"{facts.name} answers{drafted}.{holds}{completes}" + f" {TINY}" * facts.bundled
        elif session.failure:
            who = f"No model answers: {session.failure}"
        else:
            who = f"{session.answerer.name} is being loaded; you can write meanwhile."
        parts: list[str | tuple[str, str]] = [("localspec\n\n", "bold $primary"), (plain_text(who), "$text"), "\n\n"]
        if session.fault:
            parts += [(f"{plain_text(session.fault)}\n\n", "$text-warning")]
        if models:
            width = max(len(name) for name, _ in models)
            parts.append(f"{HEADING}\n")
            for name, words in models:
                parts += [(f"{name:{width}}", "bold $accent"), f"  {words}\n"]
            parts.append(f"{keys['open.models']} and Enter on one pulls it, or in a shell: localspec pull NAME\n\n")
        rows = [(keys[name], doc) for name, doc in _KEYS.items() if not models or name in _FIRST_KEYS]
        for key, doc in [*rows, *_SIGNS.items()]:
            parts += [(f"{key:<10}", "bold $accent"), f"{doc}\n"]
        self.update(Content.assemble(*parts))

    on_mount = show


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
            place = bubble.virtual_region
            if self.scroll_y - page < place.bottom and place.y < self.scroll_y + 2 * page:
                self._near.add(bubble)
            elif bubble in self._near:
                self._near.remove(bubble)
                bubble.forget()
            streaming = bubble.message.state == "streaming"
            for answer in reversed(bubble.texts):
                top = self.scroll_y - place.y - answer.virtual_region.y
                if not answer.complete and not (streaming and self.at_end) and monotonic() < deadline:
                    above += answer.fill(deadline, top, top + page if streaming else inf)
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
            pairs = zip(path, self._path, strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, pairs))
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
            shown = attrgetter("content", "reasoning", "calls", "state")
            if old is not None and shown(old) != shown(new):
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
        self._window = chat.window_first, chat.window_summary
        for bubble in self.bubbles:
            await bubble.mark(self._summary_before(bubble.message))

    def _summary_before(self, message: StoredMessage) -> str | None:
        """What the model is told of all before a message; None = its view does not begin there."""
        first, summary = self._window
        return summary if first in message.siblings else None

    def reveal_before(self) -> None:
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

            def stay() -> None:
                """What is seen stays in its place."""
                self.scroll_relative(y=top.virtual_region.y - place, animate=False)
                self.call_after_refresh(self._draw_ahead)

            self._first = first
            with self.app.batch_update():
                await self.mount_all(new, after=0)
            self._show_count()
            self.call_after_refresh(stay)

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
