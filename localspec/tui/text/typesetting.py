"""Markdown as finished lines for the screen: a long answer is drawn without a widget for each of its blocks."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from rich.console import Console
from rich.markdown import Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style

from localspec.chat.plain_text import plain_text
from localspec.tui.text.blocks import LEAST, Code, Item, Quote, Ruler, Tabular, Title
from localspec.tui.text.look import Look

_DEEPEST = 12
"""Blocks within blocks (a list has two) that are told apart."""


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


class _Document(Markdown):
    """Rich's Markdown, parsed and coloured our way."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "heading_open": Title,
        "fence": Code,
        "code_block": Code,
        "hr": Ruler,
        "table_open": Tabular,
        "blockquote_open": Quote,
        "list_item_open": Item,
    }

    def __init__(self, text: str, look: Look) -> None:
        # Not Rich's own, which would build a parser for each text.
        self.parsed, self.look = _PARSER.parse(text), look
        self.style, self.justify, self.hyperlinks = "none", None, True
        self.inline_code_lexer, self.inline_code_theme = None, ""

    def _flatten_tokens(self, tokens: Iterable[Token]) -> Iterable[Token]:
        """Line breaks stay, and images are links in their place; Rich would draw them before their paragraph."""
        for token in super()._flatten_tokens(tokens):
            if token.type == "softbreak":
                yield Token("hardbreak", "br", 0)
                continue
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
        """Markdown as lines of `width` columns, without blank ones at the start and the end.

        All of it is there from `LEAST` columns on; in fewer, lines are cut.
        Links become the meta value `href` of what is drawn: nothing that a terminal would follow by itself.
        """
        options = self._console.options.update(width=max(width, LEAST), height=None)
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
    if width < LEAST:
        row = Segment.adjust_line_length(row, width)
    return tuple(
        Segment(text, style.update_link(None) + Style(meta={"href": style.link})) if style and style.link else part
        for part in Segment.simplify(row)
        for text, style, _ in (part,)
    )
