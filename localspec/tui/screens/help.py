"""F1: every key and every command, the most used first; at the end the names that keys have for `keys.toml`."""

from __future__ import annotations

from textwrap import wrap

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.tui.screens.page import Page
from localspec.tui.widgets.registry import SCREENS, commands, keys_file, known, load, shown

_AROUND = 6
"""Columns left and right of the text: the margin and the scroll bar."""
_GROUPS = {
    "chat": "In the chat",
    "write": "While you write",
    "message": "On a message (Ctrl+Up goes to one)",
    "open": "Screens",
    "app": "Everywhere",
}


class HelpScreen(Page):
    """Keys come from the bindings themselves, as remapped; nothing here can be out of date."""

    CSS_PATH = "help.tcss"
    TITLE = "Help"

    def body(self) -> ComposeResult:
        for row in SCREENS:
            load(row.home)
        with VerticalScroll(id="help"):
            yield Static(markup=False)

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def on_resize(self) -> None:
        width = self.size.width - _AROUND
        text = Content.assemble(*self._keys(width), *_slash(width), *self._names())
        self.query_one("#help > Static", Static).update(text)

    def _keys(self, width: int) -> list[str | tuple[str, str]]:
        lines: list[str | tuple[str, str]] = []
        for group, rows in _grouped():
            lines.append((f"{_GROUPS.get(group, group.capitalize())}\n", "bold"))
            lines += [
                _row(f"{shown(self.app, one):<16}", one.tooltip or one.description, width) for one in rows.values()
            ]
            lines.append("\n")
        return lines

    def _names(self) -> list[str | tuple[str, str]]:
        """How to give a binding other keys, and what each is called there."""
        return [
            ("Other keys\n", "bold"),
            f"  {keys_file()} gives a binding other keys, by its name below:\n",
            '  [keys]\n  "chat.stop" = "escape,ctrl+g"\n\n',
            *[
                (f"  {name:<24} {shown(self.app, binding)}\n", "$text-muted")
                for _, rows in _grouped()
                for name, binding in rows.items()
            ],
        ]


def _grouped() -> list[tuple[str, dict[str, Binding]]]:
    """(first word of their names, {name: binding}) of all keys: the groups above first, each in its declared order."""
    found = known()
    groups = [*_GROUPS, *sorted({name.partition(".")[0] for name in found} - set(_GROUPS))]
    return [(group, {name: found[name] for name in found if name.startswith(group + ".")}) for group in groups]


def _row(name: str, doc: str, width: int) -> str:
    """A line of two columns; where the second is too narrow for its words, they go on beneath it."""
    indent = min(len(name) + 3, width // 3)
    return "\n".join(wrap(f"  {name} {doc}", width, subsequent_indent=" " * indent, break_long_words=False)) + "\n"


def _slash(width: int) -> list[str | tuple[str, str]]:
    lines: list[str | tuple[str, str]] = [("Commands\n", "bold")]
    lines += [_row(f"{'/' + row.name + ' ' + row.usage:<18}", row.doc, width) for row in commands()]
    attach = _row(f"{'@path':<18}", "attach a text file; a long paste becomes an attachment by itself", width)
    return [*lines, attach, "\n"]
