"""F1: every key and every command, the most used first; at the end the names that keys have for `keys.toml`."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.tui.screens.page import Page
from localspec.tui.widgets.bindings import keys_file, known, shown
from localspec.tui.widgets.registry import SCREENS, commands, load

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
            yield Static(Content.assemble(*self._keys()), markup=False)
            yield Static(Content.assemble(*_slash()), markup=False)
            yield Static(Content.assemble(*self._names()), markup=False)

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def _keys(self) -> list[str | tuple[str, str]]:
        lines: list[str | tuple[str, str]] = []
        for group, rows in _grouped():
            lines.append((f"{_GROUPS.get(group, group.capitalize())}\n", "bold"))
            lines += [f"  {shown(self.app, one):<16} {one.tooltip or one.description}\n" for one in rows.values()]
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


def _slash() -> list[str | tuple[str, str]]:
    lines: list[str | tuple[str, str]] = [("Commands\n", "bold")]
    lines += [f"  {'/' + row.name + ' ' + row.usage:<18} {row.doc}\n" for row in commands()]
    return [*lines, "  @path              attach a text file; a long paste becomes an attachment by itself\n\n"]
