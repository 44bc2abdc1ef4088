"""To the clipboard: a local tool, then tmux, then the terminal itself (OSC 52), then a file.

A terminal does not answer whether it took a sequence, so that is said.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator

from localspec import paths
from localspec.errors import LocalspecError

_LONGEST_SEQUENCE = 74_994
"""Base64 characters that terminals are known to take in one OSC 52 sequence; beyond, many drop all of it."""
_TIMEOUT_SECONDS = 2.0
_TMUX = ["tmux", "load-buffer", "-w", "-"]
"""Fills tmux's buffer and, if `set-clipboard` allows, the terminal's clipboard; needs no `allow-passthrough`."""


def copy(text: str, write: Callable[[str], bool]) -> str:
    """Copies a text and returns how, as in "with wl-copy". Takes up to seconds: call it from a thread.

    Where nothing tells whether it worked, the words say so.

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
