"""The blocks of Markdown as Rich draws them, changed so that each fits a narrow screen: it wraps and is not cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol, cast

from markdown_it.token import Token
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import BlockQuote, CodeBlock, Heading, HorizontalRule, ListItem, Markdown, TableElement
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from textual.highlight import highlight

from localspec.tui.text.look import Look

LEAST = 8
"""Columns that a block leaves for what is in it; where it cannot, it takes none. A short word and its mark fit."""
_INDENT = 2
"""Columns left and right of code."""
_BULLET = 3
"""Columns that Rich puts before an item of a list without numbers."""
_QUOTED = 4
"""Columns that Rich takes from a quotation."""
_COLUMN = 12
"""Columns of the screen for each column of a table; with fewer, words longer than that would fill the table."""


_UNBOUNDED = 100_000
"""Columns that no table needs: Rich measures up to a width only."""


class Coloured(Protocol):
    """A document that knows the colours of its theme."""

    look: Look


class Title(Heading):
    """A heading, always at the left."""

    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class Code(CodeBlock):
    """Highlighted in the colours of the theme."""

    look: Look

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> Code:
        made = cls(token.info.partition(" ")[0] or "text", "")
        made.look = cast("Coloured", markdown).look
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Not by way of Rich's Text, which would take several times as long for the many small pieces that code has.
        indent = _INDENT if options.max_width - 2 * _INDENT >= LEAST else 0
        room, plain = options.max_width - 2 * indent, self.look.code
        edge = Segment(" " * indent, plain)
        for line in self._lines():
            for row in _rows(line, room):
                yield from (edge, *Segment.adjust_line_length(row, room, style=plain), edge, Segment.line())

    def _lines(self) -> list[list[Segment]]:
        found = highlight(str(self.text).rstrip("\n"), language=self.lexer_name, tab_size=4)
        code, plain, lines = found.plain.rstrip("\n"), self.look.code, list[list[Segment]]([[]])
        at = 0
        for start, end, style in [*found.spans, (len(code), len(code), "")]:
            if end - start == len(found.plain):
                continue  # beneath all others, as plain is
            for text, look in ((code[at:start], plain), (code[start:end], plain + self.look.rich(style))):
                first, *more = text.split("\n")
                lines[-1].append(Segment(first, look))
                lines += [[Segment(line, look)] for line in more]
            at = max(at, end)
        return lines


def _rows(line: list[Segment], width: int) -> Iterator[list[Segment]]:
    """A line in rows of at most `width` cells; wide characters stay whole."""
    text = "".join(segment.text for segment in line)
    if cell_len(text) <= width:
        yield line
        return
    rest = line
    for row in chop_cells(text, width):
        taken, left = list[Segment](), len(row)
        while left:
            part, *rest = rest
            if len(part.text) > left:
                rest = [Segment(part.text[left:], part.style), *rest]
                part = Segment(part.text[:left], part.style)
            taken.append(part)
            left -= len(part.text)
        yield taken


class Ruler(HorizontalRule):
    """A line across."""

    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class Quote(BlockQuote):
    """With a bar at its left, where there is room for one."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width - _QUOTED >= LEAST:
            yield from super().__rich_console__(console, options)
        else:
            yield from _flat(console.render_lines(self.elements, options, style=self.style))


class Item(ListItem):
    """Indented, where there is room for it; else its mark stands on a line of its own."""

    def render_bullet(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width - _BULLET >= LEAST:
            yield from super().render_bullet(console, options)
        else:
            yield Text("•", "markdown.item.bullet")
            yield from _flat(console.render_lines(self.elements, options, style=self.style))

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        if options.max_width - len(str(last_number)) - 2 >= LEAST:
            yield from super().render_number(console, options, number, last_number)
        else:
            yield Text(str(number), "markdown.item.number")
            yield from _flat(console.render_lines(self.elements, options, style=self.style))


def _flat(lines: list[list[Segment]]) -> Iterator[Segment]:
    for line in lines:
        yield from (*line, Segment.line())


def _narrowest(console: Console, options: ConsoleOptions, table: Table) -> int:
    """Columns it takes if no word is to be folded."""
    return Measurement.get(console, options.update(max_width=_UNBOUNDED), table).minimum


class Tabular(TableElement):
    """Lines only beneath the head and between columns; too narrow for its columns, a row is a list of its cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.show_edge = False
            for column in table.columns:
                column.overflow = "fold"
            if options.max_width >= min(_COLUMN * len(table.columns), _narrowest(console, options, table)):
                yield table
            else:
                yield from self._cells()

    def _cells(self) -> Iterator[Text]:
        """A line for each cell, its column's head before it, and a blank line between rows."""
        heads = self.header.row.cells if self.header is not None and self.header.row is not None else []
        rows = self.body.rows if self.body is not None else []
        for number, row in enumerate(rows):
            if number:
                yield Text()
            for head, cell in zip(heads, row.cells, strict=False):
                yield Text.assemble(
                    (head.content.plain, "markdown.table.header"), " " * bool(head.content.plain), cell.content
                )
        if not rows:
            yield Text(" ").join(Text(head.content.plain, "markdown.table.header") for head in heads)
