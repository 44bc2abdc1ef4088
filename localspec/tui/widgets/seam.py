"""Where the model's view of a chat begins: a mark between two messages, with the summary of what stands above it."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Collapsible, Static

from localspec.chat.plain_text import plain_text


class Seam(Vertical):
    """Above a message: the model sees a summary of what came before, or nothing of it."""

    DEFAULT_CSS = """
    Seam { height: auto; color: $text-warning; margin-bottom: 1; }
    Seam Collapsible, Seam CollapsibleTitle { width: 1fr; height: auto; padding: 0; }
    Seam Contents { padding: 0 0 0 2; }
    Seam .summary { height: auto; color: $text-muted; }
    """

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
