"""The user's own editor for the prompt: the terminal is left to it, and the chat comes back when it ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from textual.app import App, SuspendNotSupported

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.errors import UsageError

VARIABLES = ("VISUAL", "EDITOR")
"""Which editor it is: the first that is set. It may have options, as in `code --wait`."""


def edited(app: App[Any], text: str) -> str:
    """The text as the editor left it. Answers go on meanwhile; what comes of them is drawn afterwards.

    Raises:
        UsageError: there is no editor, it failed, or this terminal cannot be left.
    """
    command = _editor()
    with TemporaryDirectory(prefix="localspec-") as folder:  # an editor may leave copies beside its file
        path = Path(folder) / "prompt.md"
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend(), _interrupts_are_its_own():
                fault = _run([*command, str(path)])
        except SuspendNotSupported:
            raise UsageError("An editor cannot have the screen here.") from None
        if fault:
            raise UsageError(f"The editor {command[0]!r} {fault}.", "The text is as it was.")
        return plain_text(read_text(path)).removesuffix("\n")


def _editor() -> list[str]:
    given = next((value for name in VARIABLES if (value := os.environ.get(name, "").strip())), "")
    if not given:
        raise UsageError("No editor is set.", "Set EDITOR, as in: export EDITOR=nano")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise UsageError(f"The editor {given!r} cannot be understood: {error}.") from None


def _run(command: list[str]) -> str:
    """Runs an editor to its end. What is wrong is returned: Textual does not come back after an error."""
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    return f"ended with code {code}" if code else ""


@contextmanager
def _interrupts_are_its_own() -> Iterator[None]:
    """Ctrl+C in an editor that leaves the terminal's signals on goes to both programs, and means the editor."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
