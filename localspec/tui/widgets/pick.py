"""One word of a few, on one line: what Textual's list that opens takes eight widgets for."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static


class Pick(Static, can_focus=True):
    """Right, Enter, Space or a click goes to the next word, Left to the one before."""

    ALLOW_SELECT = False
    value = reactive("", init=False)
    """The word that is chosen."""

    def __init__(self, words: Sequence[str], value: str, id: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__(id=id, markup=False)
        self._words = tuple(words)
        self.set_reactive(Pick.value, value)

    def render(self) -> Content:
        return Content(f"‹ {self.value} ›")  # noqa: RUF001 - brackets to look at

    def step(self, by: int) -> None:
        """Goes on by so many words; after the last comes the first."""
        self.value = self._words[(self._words.index(self.value) + by) % len(self._words)]

    def key_left(self) -> None:
        self.step(-1)

    def key_right(self) -> None:
        self.step(1)

    def key_enter(self) -> None:
        self.step(1)

    def key_space(self) -> None:
        self.step(1)

    def on_click(self) -> None:
        self.step(1)
