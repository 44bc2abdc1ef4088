"""What grows while an answer streams in: one layout for each new height, where Textual makes two."""

from __future__ import annotations

from textual.geometry import Size
from textual.widget import Widget


class Growing(Widget):
    """Mixed into widgets whose own size changes nothing about how their children, or others, are laid out."""

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Notes the size a layout has found, and asks for no second layout."""
        return super()._size_updated(size, virtual_size, container_size, layout=False)
