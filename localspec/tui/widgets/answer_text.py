"""The body of an answer: Markdown set into lines, by segments, so that new text costs the last segment only, and what
is out of sight nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from math import inf
from time import monotonic
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from localspec.chat.plain_text import PlainText, plain_text
from localspec.remote.answerer import AnswerPart
from localspec.tui.text.typesetting import Line, TextStyles, Typesetter, begins_with_code, code_blocks

# A long answer in segments: only the last one is parsed again while text streams in, whatever the length before it.
#
# Cuts fall on blank lines between blocks. What has none (a long code block, table or paragraph) is cut at `HARD`
# characters, and the next segment reopens the code block or repeats the head of the table. Where the cuts fall is a
# function of the text alone, not of how it arrived.

SOFT = 600  # characters a segment has before it ends at the next blank line
HARD = 2_400  # characters after which it is cut in any case

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_TABLE_RULE = re.compile(r" {0,3}\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$")


class Cut(NamedTuple):
    """The first segment of a text that is long enough for one."""

    segment: str  # Markdown that stands alone
    rest: str  # what is left, with what must be opened again in front of it
    inside: bool = False  # whether the rest begins amid a block: code there is no block of its own


def cut(text: str) -> Cut | None:
    """The first segment; None = the text is not long enough, or more must be known."""
    if len(text) <= SOFT:
        return None
    place, previous, fence, table = 0, "", "", ""  # the line that opened the block of code; the table's head and rule
    for line in text.splitlines(keepends=True):
        end = place + len(line)
        blank = not previous.strip()
        if place >= SOFT and not fence and blank and line[:1].strip():
            return Cut(text[:place], text[place:])
        if end > HARD:
            return _hard(text, place, line, fence, table)
        fence = _fence_after(line, fence)
        if not line.strip():
            table = ""
        elif not table and "|" in previous and _TABLE_RULE.match(line):
            table = previous + line
        previous = line
        place = end
    return None


def _hard(text: str, place: int, line: str, fence: str, table: str) -> Cut:
    """Cuts before the line that goes too far, or inside it when it is all there is."""
    inside, ending = len(code_blocks(text[:place] + line)) == len(code_blocks(text[:place])), ""
    if place < SOFT:  # one very long line
        space = text.rfind(" ", place + 1, HARD)
        place, ending = space + 1 if space > SOFT else HARD, "\n"
    if mark := _FENCE.match(fence):
        return Cut(text[:place] + ending + mark[1] + "\n", fence + text[place:], inside)
    return Cut(text[:place], (table if line.lstrip().startswith("|") else "") + text[place:], inside)


def _fence_after(line: str, fence: str) -> str:
    """The opening line of the code block that is open after this line; "" = none."""
    if not (mark := _FENCE.match(line)):
        return fence
    if not (opened := _FENCE.match(fence)):
        return line if mark[1][0] == "~" or "`" not in mark[2] else ""
    return "" if mark[1].startswith(opened[1]) and not mark[2].strip() else fence


class AnswerSegment:
    """A part of the answer that is set by itself."""

    def __init__(self, text: str, before: AnswerSegment | None = None, inside: bool = False) -> None:
        """`before`: the one that it comes after. `inside`: the next one begins amid a block of this one."""
        self.text = text  # its Markdown
        self.inside = inside
        self._before_inside = before is not None and before.inside
        self.number: int = 1 if before is None else before.number + before.blocks
        """Of its first block of code, in the whole answer."""
        self.lines: list[Line] | None = None  # none = not set yet, for another width or theme, or far from what is seen
        self.height = 0  # lines; guessed until it has been set once
        self.measured = False  # whether the height is known

    @cached_property
    def goes_on(self) -> bool:
        """Whether it begins with the rest of a block of code."""
        return self._before_inside and begins_with_code(self.text)

    @cached_property
    def blocks(self) -> int:
        """Blocks of code that begin in it."""
        return len(code_blocks(self.text)) - self.goes_on

    @property
    def whole(self) -> bool:
        """Whether it ends between two blocks; else the next segment goes on with the same block."""
        return not self.text.rpartition("\n")[0].rpartition("\n")[2].strip()

    def guess(self, width: int) -> None:
        self.lines, self.measured = None, False
        self.height = sum(1 + len(line) // width for line in self.text.splitlines())


def segments(text: str, before: AnswerSegment | None = None) -> list[AnswerSegment]:
    """All segments of a text that comes after `before`; at least one."""
    found = list[AnswerSegment]()
    while (first := cut(text)) is not None:
        before, text = AnswerSegment(first.segment, before, first.inside), first.rest
        found.append(before)
    return [*found, AnswerSegment(text, before)]


@lru_cache(maxsize=8)
def _typesetter(theme: str, base: Style) -> Typesetter:
    """`theme` names the colours that `base` does not."""
    return Typesetter(TextStyles(base))


class AnswerText(Widget):
    """`extend` while it streams, `settle` at its end. Segments are set when they are seen, or when `fill` has time."""

    def __init__(self, text: str, before: Sequence[AnswerText] = ()) -> None:
        """`before`: the one that it comes after, in the same answer."""
        super().__init__()
        self._plain = PlainText()
        self._before = before[0].segments[-1] if before else None
        self.segments: list[AnswerSegment] = segments(plain_text(text), self._before)  # in order; at least one
        self._starts: list[int] = []  # the line at which each begins
        self._height = 1
        self._set_for: tuple[int, str, Style] | None = None  # width and colours of the lines there are

    async def extend(self, part: AnswerPart) -> None:
        if text := self._plain.push(part.text):
            last = self.segments.pop()
            changed = len(self.segments)
            self.segments += segments(last.text + text, self.segments[-1] if self.segments else self._before)
            self._show_from(changed)

    async def settle(self, text: str) -> None:
        wanted = segments(plain_text(text), self._before)
        pairs = zip(wanted, self.segments, strict=False)
        changed = sum(1 for _ in takewhile(lambda pair: pair[0].text == pair[1].text, pairs))
        self.segments[changed:] = wanted[changed:]
        self._show_from(changed)

    def _show_from(self, changed: int) -> None:
        """Draws the segments from this one on: sets what will be seen of them, guesses the heights of the others.
        Nothing around them moves unless the height differs."""
        if self._set_for is None:
            self.refresh(layout=True)
            return
        before, new = self._height, self.segments[changed:]
        top = self._starts[changed] if changed < len(self._starts) else before
        for segment in new:
            segment.guess(self._set_for[0])
        scroll = next((node for node in self.ancestors if isinstance(node, VerticalScroll)), None)
        if scroll is not None and self.is_on_screen and self.screen.is_current:
            at_end = scroll.is_vertical_scroll_end  # the newest lines will be seen
            lines = scroll.size.height if at_end else scroll.region.bottom - self.region.y - top
            for segment in reversed(new) if at_end else new:
                if lines <= 0:
                    break
                self._set(segment)
                lines -= segment.height
        self._measure()
        if self._height != before:
            self.refresh(layout=True)
        elif new:
            self.refresh(Region(0, top, self.size.width, max(1, self._height - top)))

    @property
    def complete(self) -> bool:
        """Whether all heights are known; also if none was asked for yet."""
        return self._set_for is None or all(segment.measured for segment in self.segments)

    def fill(self, deadline: float, top: float, bottom: float = inf) -> float:
        """Finds out the heights that are guessed above line `bottom`, the end first, until `deadline` (of `monotonic`).
        Returns how many lines more than guessed there are above line `top`."""
        more, found = 0.0, False
        for index in reversed(range(len(self.segments))):
            segment = self.segments[index]
            if segment.measured or self._starts[index] > bottom:
                continue
            found = True
            guessed, end = segment.height, self._starts[index] + segment.height
            self._set(segment)
            if end <= top:
                more += segment.height - guessed
            if monotonic() >= deadline:
                break
        if found:
            self._measure()
            self.refresh(layout=True)
        return more

    def keep(self, top: float, bottom: float, deadline: float) -> None:
        """Has what lies between two lines ready to be drawn, as far as there is time, and nothing else. The lines of a
        long answer take many times the memory of its text."""
        if self._set_for is None:
            return
        for start, segment in zip(self._starts, self.segments, strict=True):
            if start > bottom or start + segment.height < top:
                segment.lines = None
            elif segment.measured and segment.lines is None and monotonic() < deadline:
                self._set(segment)

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Asks for no second layout, as Textual would for each new height: nothing else depends on it."""
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._prepare(width)
        return self._height

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self._set_for is not None and self._wanted(self._set_for[0]) != self._set_for:
            self.refresh(layout=True)

    def render_line(self, y: int) -> Strip:
        self._prepare(self.size.width)
        index = max(0, bisect_right(self._starts, y) - 1)
        segment = self.segments[index]
        if segment.lines is None:
            guessed = segment.height
            self._set(segment)
            if segment.height != guessed:
                self._measure()
                self.call_later(self.refresh, layout=True)
        row = y - self._starts[index]
        assert segment.lines is not None
        if row >= len(segment.lines):
            return Strip.blank(self.size.width, self._setter.look.plain).apply_offsets(0, y)
        strip = Strip(segment.lines[row], self.size.width)
        if self.text_selection is not None:
            strip = self._marked(strip, self.text_selection.get_span(y))
        return strip.apply_offsets(0, y)

    def _prepare(self, width: int) -> None:
        """Forgets lines that were set for another width or theme."""
        wanted = self._wanted(max(1, width))
        if wanted != self._set_for:
            self._set_for = wanted
            for segment in self.segments:
                segment.guess(wanted[0])
            self._set(self.segments[-1])
            self._measure()

    def _wanted(self, width: int) -> tuple[int, str, Style]:
        colours = self.visual_style
        return width, self.app.theme, Style(background=colours.background, foreground=colours.foreground)

    @property
    def _setter(self) -> Typesetter:
        assert self._set_for is not None
        return _typesetter(*self._set_for[1:])

    def _set(self, segment: AnswerSegment) -> None:
        assert self._set_for is not None
        segment.lines = self._setter.lines(segment.text, self._set_for[0], segment.number, segment.goes_on)
        segment.height, segment.measured = len(segment.lines), True

    def _measure(self) -> None:
        """Adds up heights; between blocks there is a blank line."""
        self._starts, place, gap = [], 0, 0
        for segment in self.segments:
            if segment.height:
                place += gap
                gap = int(segment.whole)
            self._starts.append(place)
            place += segment.height
        self._height = max(1, place)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        for segment in self.segments:
            if segment.lines is None:
                self._set(segment)
        self._measure()
        lines = [""] * self._height
        for start, segment in zip(self._starts, self.segments, strict=True):
            for row, line in enumerate(segment.lines or ()):
                lines[start + row] = "".join(part.text for part in line).rstrip()
        return selection.extract("\n".join(lines)), "\n"

    def _marked(self, strip: Strip, span: tuple[int, int] | None) -> Strip:
        """A line with what is selected of it in other colours; spans count characters, lines cells."""
        if span is None:
            return strip
        text, (first, last) = strip.text, span
        end = len(text.rstrip()) if last < 0 else last
        if first >= end:
            return strip
        before, marked, after = strip.divide([cell_len(text[:first]), cell_len(text[:end]), strip.cell_length])
        style = self.screen.get_component_rich_style("screen--selection")
        painted = (Segment(part.text, (part.style or style) + style) for part in marked)
        return Strip([*before, *painted, *after], strip.cell_length)

    def on_click(self, event: events.Click) -> None:
        href = event.style.meta.get("href")
        if href is None:
            return
        event.stop()
        if href.startswith(("http://", "https://", "mailto:")):
            self.app.open_url(href)
        else:
            self.notify(f"This link leads to {plain_text(href)!r}, which is not opened.", markup=False)
