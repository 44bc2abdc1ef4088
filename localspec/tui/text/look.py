"""The colours of the app's theme as Rich styles, for text that is drawn line by line."""

from __future__ import annotations

from rich.style import Style as RichStyle
from rich.theme import Theme
from textual.style import Style

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


class Look:
    """Styles upon the colours of a widget; one for each theme."""

    def __init__(self, base: Style) -> None:
        """`base`: the colours of the widget that is drawn upon."""
        self._base = base
        self._found: dict[str | Style, RichStyle] = {}
        self.plain = base.rich_style
        """Text that is nothing special."""
        markdown = {f"markdown.{name}": self.rich(style) for name, style in _MARKDOWN.items()}
        self.theme = Theme(markdown)
        """What Rich needs to draw Markdown."""
        self.code = self.rich("$text on $boost")
        """After blocks of code."""

    def rich(self, style: str | Style) -> RichStyle:
        """A style in Textual's words, such as `bold $primary`; needs the running app, whose theme it asks."""
        found = self._found.get(style)
        if found is None:
            found = self._found[style] = self._translated(Style.parse(style) if isinstance(style, str) else style)
        return found

    def _translated(self, style: Style) -> RichStyle:
        """What it does not say stays open, so that styles can lie upon one another."""
        mixed = (self._base + style).rich_style
        return RichStyle(
            color=mixed.color if style.foreground is not None else None,
            bgcolor=mixed.bgcolor if style.background is not None else None,
            bold=style.bold,
            dim=style.dim,
            italic=style.italic,
            underline=style.underline,
            strike=style.strike,
        )
