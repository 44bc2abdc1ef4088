"""Markdown as finished lines for the screen: a long answer is drawn without a widget for each of its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, HorizontalRule, Markdown, MarkdownElement, TableElement
from rich.rule import Rule
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from textual.highlight import highlight

from localspec.chat.plain_text import plain_text
from localspec.tui.look import Look

_DEEPEST = 12
"""Blocks within blocks (a list has two) that are told apart; each takes from the width of what is in it."""
_NARROWEST = 4 * _DEEPEST + 4
"""Columns below which deep blocks would have no room; what does not fit is cut off."""
_INDENT = 2
"""Columns left and right of code."""


def _clean(state: StateCore) -> None:
    """Entities such as &#x202e; become characters while parsing: what they make must be safe, too."""
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = plain_text(part.content)


def _parser() -> MarkdownIt:
    """GitHub's Markdown without HTML: tags a model writes are text, and are shown."""
    parser = MarkdownIt("gfm-like", {"html": False, "maxNesting": _DEEPEST})
    parser.core.ruler.push("plain_text", _clean)
    return parser


_PARSER = _parser()
Line = tuple[Segment, ...]
"""What one line of the screen shows; a `Strip` of it would take many times the memory."""


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "left")


class _Code(CodeBlock):
    """Highlighted in the colours of the theme."""

    look: Look

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _Code:
        assert isinstance(markdown, _Document)
        made = cls(token.info.partition(" ")[0] or "text", "")
        made.look = markdown.look
        return made

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Not by way of Rich's Text, which would take several times as long for the many small pieces that code has.
        room, plain = options.max_width - 2 * _INDENT, self.look.code
        edge = Segment(" " * _INDENT, plain)
        for line in self._lines():
            for row in Segment.split_and_crop_lines(_folded(line, room), room, style=plain, include_new_lines=False):
                yield from (edge, *row, edge, Segment.line())

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


def _folded(line: list[Segment], width: int) -> list[Segment]:
    """Line ends where a line is full."""
    cells = sum(segment.cell_length for segment in line)
    if cells <= width:
        return line
    cuts = [*range(width, cells, width), cells]
    rows = Segment.divide(line, cuts)
    return [segment for row in rows for segment in (*row, Segment.line())][:-1]


class _Rule(HorizontalRule):
    new_line = True

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Rule(style="markdown.hr")


class _Table(TableElement):
    """Lines only beneath the head and between columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            table.show_edge = False
            yield table


class _Document(Markdown):
    """Rich's Markdown, parsed and coloured our way."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "heading_open": _Heading,
        "fence": _Code,
        "code_block": _Code,
        "hr": _Rule,
        "table_open": _Table,
    }

    def __init__(self, text: str, look: Look) -> None:
        # Not Rich's own, which would build a parser for each text.
        self.parsed, self.look = _PARSER.parse(text), look
        self.style, self.justify, self.hyperlinks = "none", None, True
        self.inline_code_lexer, self.inline_code_theme = None, ""

    def _flatten_tokens(self, tokens: Iterable[Token]) -> Iterable[Token]:
        """Images are links in their place; Rich would draw them before the paragraph they are in."""
        for token in super()._flatten_tokens(tokens):
            if token.type != "image":
                yield token
                continue
            target = str(token.attrs.get("src", ""))
            yield Token("link_open", "a", 1, attrs={"href": target})
            yield Token("text", "", 0, content=f"🖼 {token.content or target}")
            yield Token("link_close", "a", -1)


class Typesetter:
    """Sets text in the look of one theme."""

    def __init__(self, look: Look) -> None:
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

    def lines(self, text: str, width: int) -> list[Line]:
        """Markdown as lines of `width` columns, without blank ones before and behind.

        Links become the meta value `href` of what is drawn: nothing that a terminal would follow by itself.
        """
        options = self._console.options.update(width=max(width, _NARROWEST), height=None)
        document = _Document(text, self.look)
        rows = self._console.render_lines(document, options, style=self.look.plain, pad=True)
        while rows and _blank(rows[-1]):
            rows.pop()
        while rows and _blank(rows[0]):
            rows.pop(0)
        return [_finished(row, width) for row in rows]


def _blank(row: list[Segment]) -> bool:
    return not any(segment.text.strip() for segment in row)


def _finished(row: list[Segment], width: int) -> Line:
    """Cut to the width, pieces of one style joined, links as meta values."""
    if width < _NARROWEST:
        row = Segment.adjust_line_length(row, width)
    return tuple(
        Segment(text, style.update_link(None) + Style(meta={"href": style.link})) if style and style.link else part
        for part in Segment.simplify(row)
        for text, style, _ in (part,)
    )
