"""A box to tick that reads without colour: `[x]` or `[ ]`."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Checkbox


class Tick(Checkbox):
    """Enter, Space or a click turns it over."""

    @property
    def _button(self) -> Content:
        """What stands for the state, in place of Textual's sign, whose colour alone tells it."""
        return Content.styled("[x]" if self.value else "[ ]", self.get_visual_style("toggle--button"))
