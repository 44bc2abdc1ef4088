"""Markdown as finished lines for the screen: a long answer is drawn without a widget for each of its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from io import StringIO
from itertools import chain, count
from typing import Any, ClassVar, cast

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import (
    BlockQuote,
    CodeBlock,
    Heading,
    HorizontalRule,
    ListItem,
    Markdown,
    MarkdownElement,
    TableElement,
)
from rich.measure import Measurement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text
from rich.theme import Theme
from textual.highlight import highlight
from textual.style import Style as ContentStyle

from localspec.chat.plain_text import plain_text

# The colours of the app's theme as Rich styles, for text that is drawn line by line.

_MARKDOWN = {
    "h1": "$markdown-h1-color bold underline",
    "h2": "$markdown-h2-color bold",
    "h3": "$markdown-h3-color bold",
    "h4": "$markdown-h4-color bold italic",
    "h5": "$markdown-h5-color italic",
    "h6": "$markdown-h6-color italic",
    "em": "italic",
    "strong": "bold",
    "s": "strike",
    "code": "$text-warning on $boost",
    "link": "$text-primary underline",
    "link_url": "$text-primary underline",
    "item.bullet": "$text-primary",
    "item.number": "$text-primary",
    "block_quote": "$text-muted",
    "hr": "$secondary",
    "table.border": "$foreground 30%",
    "table.header": "$primary bold",
}
"""Rich's names for parts of Markdown, and how Textual's themes call their colours."""


class TextStyles:
    """Styles upon the colours of a widget; one for each theme."""

    def __init__(self, base: ContentStyle) -> None:
        """`base`: the colours of the widget that is drawn upon."""
        self._base = base
        self._found: dict[str | ContentStyle, Style] = {}
        self.plain = base.rich_style  # text that is nothing special
        markdown = {f"markdown.{name}": self.rich(style) for name, style in _MARKDOWN.items()}
        self.theme = Theme(markdown)  # what Rich needs to draw Markdown
        self.code = self.rich("$text on $boost")  # after blocks of code

    def rich(self, style: str | ContentStyle) -> Style:
        """A style in Textual's words, such as `bold $primary`; needs the running app, whose theme it asks."""
        found = self._found.get(style)
        if found is None:
            asked = ContentStyle.parse(style) if isinstance(style, str) else style
            mixed = (self._base + asked).rich_style
            found = self._found[style] = Style(  # what it does not say stays open: styles lie upon one another
                color=mixed.color if asked.foreground is not None else None,
                bgcolor=mixed.bgcolor if asked.background is not None else None,
                bold=asked.bold,
                dim=asked.dim,
                italic=asked.italic,
                underline=asked.underline,
                strike=asked.strike,
            )
        return found


# The blocks of Markdown as Rich draws them, changed so that each fits a narrow screen: it wraps and is not cut.

LEAST = 8
"""Columns that a block leaves for what is in it; where it cannot, it takes none. A short word and its mark fit."""
_INDENT = 2  # columns left and right of code
_BULLET = 3  # columns that Rich puts before an item of a list without numbers
_QUOTED = 4  # columns that Rich takes from a quotation
_COLUMN = 12
"""Columns of the screen for each column of a table; with fewer, words longer than that would fill the table."""


_UNBOUNDED = 100_000  # columns that no table needs: Rich measures up to a width only


class Title(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class Code(CodeBlock):
    """Highlighted in the colours of the theme, beneath a line with its number and language."""

    look: TextStyles
    head: str

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> Code:
        document, language = cast("_Document", markdown), token.info.strip().partition(" ")[0]
        made, number = cls(language or "text", ""), next(document.numbers)
        made.look, made.head = document.look, "" if number is None else code_head(number, language)
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Not by way of Rich's Text, which would take several times as long for the many small pieces that code has.
        indent = _INDENT if options.max_width - 2 * _INDENT >= LEAST else 0
        room, plain = options.max_width - 2 * indent, self.look.code
        edge = Segment(" " * indent, plain)
        head = [[Segment(self.head, plain + self.look.rich("$text-muted"))]] if self.head else []
        for line in [*head, *self._lines()]:
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


class ListEntry(ListItem):
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


class Tabular(TableElement):
    """Lines only beneath the head and between columns; too narrow for its columns, a row is a list of its cells."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.show_edge = False
            for column in table.columns:
                column.overflow = "fold"
            unfolded = Measurement.get(console, options.update(max_width=_UNBOUNDED), table).minimum
            if options.max_width >= min(_COLUMN * len(table.columns), unfolded):
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


_DEEPEST = 12  # blocks within blocks (a list has two) that are told apart


def _clean(state: StateCore) -> None:
    """Entities such as &#x202e; become characters while parsing: what they make must be safe, too."""
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = plain_text(part.content)


# HTML is off: its tags are text, and are shown.
_RULES: dict[str, Any] = {"html": False, "maxNesting": _DEEPEST}
_PARSER, _BLOCKS = MarkdownIt("gfm-like", _RULES), MarkdownIt("gfm-like", _RULES)  # GitHub's Markdown
_PARSER.core.ruler.push("plain_text", _clean)
_BLOCKS.core.ruler.enableOnly(["normalize", "block"])  # what stands in a paragraph is not looked at
_CODE = ("fence", "code_block")
_MAY_HAVE_CODE = re.compile(r"```|~~~| {4}|\t")


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code as it was written) of each block of code that is drawn as one, in order."""
    tokens = _BLOCKS.parse(text) if _MAY_HAVE_CODE.search(text) else ()
    return [(token.info.strip().partition(" ")[0], token.content) for token in tokens if token.type in _CODE]


def begins_with_code(text: str) -> bool:
    """Whether a block of code is the first that is drawn."""
    return bool(_MAY_HAVE_CODE.search(text)) and next((token.type for token in _BLOCKS.parse(text)), "") in _CODE


def code_head(number: int, language: str) -> str:
    """What a block of code is called: `code 2 · python`."""
    return f"code {number}" + f" · {language}" * bool(language)


Line = tuple[Segment, ...]  # what one line of the screen shows; a `Strip` of it would take many times the memory


class _Document(Markdown):
    """Rich's Markdown, parsed and coloured our way."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "heading_open": Title,
        "fence": Code,
        "code_block": Code,
        "hr": Ruler,
        "table_open": Tabular,
        "blockquote_open": Quote,
        "list_item_open": ListEntry,
    }

    def __init__(self, text: str, look: TextStyles, numbers: Iterator[int | None]) -> None:
        # Not Rich's own, which would build a parser for each text.
        self.numbers = numbers  # of its blocks of code; None = of one that goes on, and has its number already
        self.parsed, self.look = _PARSER.parse(text), look
        self.style, self.justify, self.hyperlinks = "none", None, True
        self.inline_code_lexer, self.inline_code_theme = None, ""

    def _flatten_tokens(self, tokens: Iterable[Token]) -> Iterable[Token]:
        """Line breaks stay, and images are links in their place; Rich would draw them before their paragraph."""
        for token in super()._flatten_tokens(tokens):
            if token.type == "softbreak":
                yield Token("hardbreak", "br", 0)
            elif token.type == "image":
                target = str(token.attrs.get("src", ""))
                yield Token("link_open", "a", 1, attrs={"href": target})
                yield Token("text", "", 0, content=f"🖼 {token.content or target}")
                yield Token("link_close", "a", -1)
            else:
                yield token


class Typesetter:
    def __init__(self, look: TextStyles) -> None:
        self.look = look
        self._console = Console(
            file=StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            theme=look.theme,
            highlight=False,
            markup=False,
            emoji=False,
            _environ={},
        )

    def lines(self, text: str, width: int, number: int = 1, goes_on: bool = False) -> list[Line]:
        """Markdown as lines of `width` columns, without blank ones at the start and the end. `number`: of its first
        block of code; `goes_on`: the text begins with the rest of a block, which gets none. All of it is there from
        `LEAST` columns on; in fewer, lines are cut. Links become the meta value `href` of what is drawn: nothing that a
        terminal would follow by itself."""
        options = self._console.options.update(width=max(width, LEAST), height=None)
        document = _Document(text, self.look, chain([None] * goes_on, count(number)))
        rows = self._console.render_lines(document, options, style=self.look.plain, pad=True)
        for end in (-1, 0):
            while rows and not any(segment.text.strip() for segment in rows[end]):
                rows.pop(end)
        found = list[Line]()
        for row in rows:
            if width < LEAST:
                row = Segment.adjust_line_length(row, width)
            parts = list(Segment.simplify(row))
            for place, (part, style, _) in enumerate(parts):
                if style and style.link:
                    parts[place] = Segment(part, style.update_link(None) + Style(meta={"href": style.link}))
            found.append(tuple(parts))
        return found
