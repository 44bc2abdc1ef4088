"""Other programs of the user's: the editor for the prompt, and what takes a text to the clipboard."""

from __future__ import annotations

import base64
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from textual.app import App, SuspendNotSupported

from localspec import paths
from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.errors import LocalspecError, UsageError
from localspec.tui.widgets.dialogs import say

VARIABLES = ("VISUAL", "EDITOR")  # which editor it is: the first that is set. It may have options, as in `code --wait`.


def edited(app: App[Any], text: str) -> str:
    """The text as the editor left it. Answers go on meanwhile; what comes of them is drawn afterwards.

    Raises:
        UsageError: there is no editor, it failed, or this terminal cannot be left.
    """
    command = _editor()
    with TemporaryDirectory(prefix="localspec-") as folder:  # an editor may leave copies beside its file
        path, fault = Path(folder) / "prompt.md", ""
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend(), _interrupts_are_its_own():
                try:  # inside: Textual does not come back after an error
                    if code := subprocess.run([*command, str(path)], check=False).returncode:
                        fault = f"ended with code {code}"
                except OSError as error:
                    fault = f"cannot be started: {error.strerror}"
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


@contextmanager
def _interrupts_are_its_own() -> Iterator[None]:
    """Ctrl+C in an editor that leaves the terminal's signals on goes to both programs, and means the editor."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_LONGEST_SEQUENCE = 74_994
"""Base64 characters that terminals are known to take in one OSC 52 sequence; beyond, many drop all of it."""
_TIMEOUT_SECONDS = 2.0
_TMUX = ["tmux", "load-buffer", "-w", "-"]
"""Fills tmux's buffer and, if `set-clipboard` allows, the terminal's clipboard; needs no `allow-passthrough`."""


def copy(app: App[Any], text: str, what: str) -> None:
    """Copies to the clipboard, by the best way there is, and says which; on a thread."""

    def write(sequence: str) -> bool:
        driver = app._driver
        if driver is None or app.is_headless:
            return False
        app.call_from_thread(driver.write, sequence)
        return True

    def work() -> None:
        try:
            app.call_from_thread(say, app, f"{what} copied {copied(text, write)}.")
        except LocalspecError as error:
            app.call_from_thread(say, app, str(error), True)

    app.run_worker(work, thread=True, group="clipboard")


def copied(text: str, write: Callable[[str], bool]) -> str:
    """Copies a text by a local tool, else tmux, else the terminal itself (OSC 52), else to a file; returns how, as in
    "with wl-copy". A terminal does not answer whether it took a sequence, so that is said. May take seconds.

    Args:
        write: writes an escape sequence to the terminal; False = there is none.

    Raises:
        LocalspecError: no way worked.
    """
    for tool in tools():
        if _run(tool, text):
            return f"with {tool[0]}"
    if "TMUX" in os.environ:
        if _run(_TMUX, text):
            return "to tmux, which hands it to your terminal if that allows it"
    elif (sequence := terminal_sequence(text)) is not None and write(sequence):
        return "through the terminal, if that allows it"
    path = paths.data_dir() / "copied.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise LocalspecError(f"Nothing could be copied: no tool, no terminal, and {path}: {error.strerror}.") from None
    return f"to {path}"


def tools() -> Iterator[list[str]]:
    """Commands that take a text on standard input and belong to the screen this person looks at."""
    if "SSH_CONNECTION" in os.environ:
        return  # the clipboard of the machine far away would be of no use
    candidates: list[tuple[bool, list[str]]] = [
        (sys.platform == "darwin", ["pbcopy"]),
        (sys.platform == "win32" or "WSL_DISTRO_NAME" in os.environ, ["clip.exe"]),
        ("WAYLAND_DISPLAY" in os.environ, ["wl-copy"]),
        ("DISPLAY" in os.environ, ["xclip", "-selection", "clipboard"]),
        ("DISPLAY" in os.environ, ["xsel", "--clipboard", "--input"]),
        ("TERMUX_VERSION" in os.environ, ["termux-clipboard-set"]),
    ]
    for usable, command in candidates:
        if usable and shutil.which(command[0]):
            yield command


def terminal_sequence(text: str) -> str | None:
    """OSC 52 for the terminal, wrapped where screen stands between; None = too long for terminals."""
    data = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")
    if len(data) > _LONGEST_SEQUENCE:
        return None
    sequence = f"\x1b]52;c;{data}\x07"
    if os.environ.get("TERM", "").startswith("screen"):
        return f"\x1bP{sequence}\x1b\\"
    return sequence


def _run(command: list[str], text: str) -> bool:
    encoding = "utf-16-le" if command[0] == "clip.exe" else "utf-8"
    try:
        # Output goes nowhere: xclip stays in the background and would hold a pipe open.
        done = subprocess.run(
            command,
            input=text.encode(encoding, "surrogatepass"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
