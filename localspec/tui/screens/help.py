"""F1: every key with its name for `keys.toml`, every command, and what is where."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.tui.shell.bindings import keys_file, known, shown
from localspec.tui.shell.dialogs import Page
from localspec.tui.shell.registry import SCREENS, commands, load

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
            yield Static(Content.assemble(*_files()), markup=False)

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def _keys(self) -> list[str | tuple[str, str]]:
        lines: list[str | tuple[str, str]] = []
        found = known()
        groups = [*_GROUPS, *sorted({name.partition(".")[0] for name in found} - set(_GROUPS))]
        for group in groups:
            rows = [(name, binding) for name, binding in found.items() if name.startswith(group + ".")]
            lines.append((f"{_GROUPS.get(group, group.capitalize())}\n", "bold"))
            for name, binding in sorted(rows, key=lambda row: row[0]):
                keys = shown(self.app, binding)
                lines += [f"  {keys:<18} {binding.tooltip or binding.description}", (f"  {name}\n", "$text-muted")]
            lines.append("\n")
        return lines


def _slash() -> list[str | tuple[str, str]]:
    lines: list[str | tuple[str, str]] = [("Commands\n", "bold")]
    lines += [f"  {'/' + row.name + ' ' + row.usage:<24} {row.doc}\n" for row in commands()]
    return [*lines, "  @path                    attach a text file; a long paste becomes an attachment by itself\n\n"]


def _files() -> list[str | tuple[str, str]]:
    return [
        ("Other keys\n", "bold"),
        f"  {keys_file()} gives a binding other keys, by the name on the right above:\n",
        '  [keys]\n  "chat.stop" = "escape,ctrl+g"\n',
    ]
