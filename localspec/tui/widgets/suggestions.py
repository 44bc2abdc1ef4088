"""The list above the input: slash commands at its start, files after an @."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option


class Suggestion(NamedTuple):
    """What may stand there instead of the word before the cursor."""

    text: str
    doc: str = ""
    more: bool = False
    """Something is expected after it: no space, the list stays (folders)."""


class Suggestions(OptionList, can_focus=False):
    """Shown while it has anything to say; keys come through the input, which keeps the focus."""

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.display = False
        self._offered: list[Suggestion] = []

    def offer(self, suggestions: Sequence[Suggestion]) -> None:
        """Shows these, the first one marked; none = hides."""
        self._offered = list(suggestions)
        self.clear_options()
        self.display = bool(suggestions)
        if suggestions:
            width = max(len(suggestion.text) for suggestion in suggestions) + 2
            self.add_options(
                Option(Content.assemble(found.text.ljust(width), (found.doc, "$text-muted"))) for found in suggestions
            )
            self.highlighted = 0

    @property
    def chosen(self) -> Suggestion | None:
        """The marked one."""
        if not self.display or self.highlighted is None:
            return None
        return self._offered[self.highlighted]

    def move(self, step: int) -> None:
        """Marks another one."""
        if self._offered:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._offered)
