"""Import: a GGUF file of this machine taken into the list, by a link or a checked copy."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Footer, Input, OptionList, Static

from localspec.chat.plain_text import pictured
from localspec.errors import Cancelled, LocalspecError, reason
from localspec.models.installed.adopt import Kept, adopt, find_kept
from localspec.models.installed.store import Store
from localspec.paths import typed
from localspec.tui.text.plots import amount, bar
from localspec.tui.widgets.dialogs import Dialog
from localspec.tui.widgets.errands import call_while_running
from localspec.tui.widgets.form import PathInput, Tick, dropped
from localspec.tui.widgets.registry import bind


class ImportScreen(Dialog[str | None]):
    """The result is the new entry's name, None = nothing was imported."""

    CSS_PATH = "import_file.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("import.go", "ctrl+s", "take", "Import", "Take the file into the list", show=True),
    ]

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self._stop = threading.Event()
        self._busy = False
        self._found: list[Kept] = []
        """Models that other programs keep, as they are listed."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Import a GGUF file of this machine", classes="question", markup=False)
            yield PathInput("file.gguf, typed or dropped here; Tab completes, Enter imports", ".gguf", "file")
            yield OptionList(id="found")
            yield Input(placeholder="name (else the file's)", id="name")
            yield Tick("It is a draft model", id="draft")
            yield Tick("Copy it, so that the original may go (else: a link)", id="copy")
            yield Static("", id="note", markup=False)
            yield Footer()

    def on_mount(self) -> None:
        self.query_one("#file").focus()
        self._find()

    @work(thread=True, exclusive=True, group="find")
    def _find(self) -> None:
        """Looks where other programs keep models."""
        found = [one for one in find_kept(self._store) if not one.installed]
        call_while_running(self, self._offer, found)

    def _offer(self, found: list[Kept]) -> None:
        self._found = found
        options = self.query_one(OptionList)
        options.add_options([pictured(f"{one.name}  {amount(one.bytes)}  {one.program}") for one in found])
        options.display = bool(found)
        options.highlighted = 0 if found else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Fills in what was chosen; a second Enter imports."""
        event.stop()
        one = self._found[event.option_index]
        self.query_one("#file", Input).value = str(one.path)
        self.query_one("#name", Input).value = one.name
        self.query_one("#draft", Tick).value = one.is_head
        self.query_one("#file").focus()

    def on_unmount(self) -> None:
        self._stop.set()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_take()

    def action_take(self) -> None:
        """Reads, checks and lists the file."""
        path = dropped(self.query_one("#file", Input).value)
        if self._busy or not path:
            return
        self._busy = True
        self._stop.clear()
        role = "draft" if self.query_one("#draft", Tick).value else "target"
        name, copy = self.query_one("#name", Input).value.strip(), self.query_one("#copy", Tick).value
        self.say("Reading the file ...")
        self._adopt(typed(path), name, role, copy)

    @work(thread=True, exclusive=True, group="import")
    def _adopt(self, path: Path, name: str, role: str, copy: bool) -> None:
        try:
            entry = adopt(path, self._store, name=name, role=role, copy=copy, progress=self._progress)
        except (LocalspecError, OSError) as error:
            text = str(error) if isinstance(error, LocalspecError) else f"{path} cannot be read: {reason(error)}."
            call_while_running(self, self._failed, text)
        else:
            call_while_running(self, self.dismiss, entry.name)

    def _progress(self, file: str, done: int, size: int) -> None:
        if self._stop.is_set():
            raise Cancelled("The import was stopped; nothing was changed.")
        text = f"{file}\n{bar(done / size if size else 0.0, 30)} {amount(done)} of {amount(size)} checked"
        call_while_running(self, self.say, text)

    def _failed(self, text: str) -> None:
        self._busy = False
        self.say(text, bad=True)

    def action_close(self) -> None:
        """Stops what is being read; closes otherwise."""
        if self._busy:
            self._stop.set()
        else:
            self.dismiss(None)
