"""The body of an answer as Markdown: streamed by segments, each painted once more when it is whole."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.containers import Vertical
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownStream

from localspec.chat.message import StoredMessage
from localspec.chat.plain_text import PlainText, plain_text
from localspec.tui.answerer import AnswerPart
from localspec.tui.segments import cut, segments

_USUAL_WIDTH = 70
"""Characters a line has, to guess the height of what was never drawn."""
_DEEPEST = 12
"""Blocks within blocks (a list has two): Textual's layout takes twice as long for each."""


def _parser() -> MarkdownIt:
    """GitHub's Markdown without HTML: tags a model writes are text, and are shown."""
    parser = MarkdownIt("gfm-like", {"html": False, "maxNesting": _DEEPEST})
    parser.core.ruler.push("plain_text", _clean)
    return parser


def _clean(state: StateCore) -> None:
    """Entities such as &#x202e; become characters while parsing: what they make must be safe, too."""
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = plain_text(part.content)


class Segment(Markdown):
    """A part of an answer. Asleep it is one empty widget of the same height: long chats cost what is seen of them."""

    def __init__(self, markdown: str = "", asleep: bool = False) -> None:
        super().__init__("" if asleep else markdown, parser_factory=_parser, open_links=False)
        self._held: str | None = None
        if asleep:
            self._held = markdown
            self.styles.height = max(1, sum(1 + len(line) // _USUAL_WIDTH for line in markdown.splitlines()))

    @property
    def asleep(self) -> bool:
        """Whether nothing of it is drawn."""
        return self._held is not None

    @property
    def text(self) -> str:
        """Its Markdown, awake or not."""
        return self.source if self._held is None else self._held

    async def wake(self) -> None:
        """Draws it."""
        if self._held is not None:
            text, self._held = self._held, None
            with self.app.batch_update():
                await self.update(text)
                self.styles.height = "auto"

    async def sleep(self) -> None:
        """Takes its blocks away and keeps its height."""
        if self._held is None and self.size.height:
            with self.app.batch_update():
                self._held, self.styles.height = self.source, self.outer_size.height
                await self.update("")

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        event.stop()
        if event.href.startswith(("http://", "https://", "mailto:")):
            self.app.open_url(event.href)
        else:
            self.notify(f"This link leads to {event.href!r}, which is not opened.", markup=False)


class AnswerText(Vertical):
    """`extend` while it streams, `settle` at its end."""

    def __init__(self, message: StoredMessage, asleep: bool = False) -> None:
        """`asleep`: its segments are not drawn before somebody wakes them."""
        super().__init__()
        self._asleep = asleep
        self._plain = PlainText()
        self._sources = segments(plain_text(message.content))
        """What each segment shows."""
        self._stream: MarkdownStream | None = None

    def compose(self):  # type: ignore[no-untyped-def]
        for source in self._sources:
            yield Segment(source, self._asleep)

    @property
    def segments(self) -> list[Segment]:
        """Its parts, in order."""
        return list(self.query_children(Segment))

    async def extend(self, part: AnswerPart) -> None:
        """Shows new text."""
        text = self._plain.push(part.text)
        if not text:
            return
        if self._stream is None:
            await self._last.wake()
            self._stream = Markdown.get_stream(self._last)
        whole = self._sources[-1] + text
        if (first := cut(whole)) is None:
            self._sources[-1] = whole
            await self._stream.write(text)
            return
        await self._stream.stop()
        while first is not None:
            await self._last.update(first.segment)
            self._sources[-1:] = [first.segment, first.rest]
            await self.mount(Segment(first.rest))
            first = cut(first.rest)
        self._stream = Markdown.get_stream(self._last)

    async def settle(self, message: StoredMessage) -> None:
        """Shows the finished text: what differs is painted again, and the last segment in any case."""
        if self._stream is not None:
            await self._stream.stop()
            self._stream = None
        wanted = segments(plain_text(message.content))
        shown = self.segments
        for index, source in enumerate(wanted):
            if index >= len(shown):
                await self.mount(Segment(source))
            elif index == len(wanted) - 1 or self._sources[index] != source:
                await shown[index].wake()
                await shown[index].update(source)
        for extra in shown[len(wanted) :]:
            await extra.remove()
        self._sources = wanted

    @property
    def _last(self) -> Segment:
        return self.segments[-1]
