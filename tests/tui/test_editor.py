"""The user's own editor has the terminal, and the chat comes back with what it left."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from tests.tui.conftest import MakeApp, front, until
from tests.tui.endpoint import Endpoint, served

if sys.platform == "win32":
    pytest.skip("terminals of Unix", allow_module_level=True)

import pty
import select
import subprocess

EDITOR = """
import os, sys, termios
from pathlib import Path
path = Path(sys.argv[-1])
cooked = bool(termios.tcgetattr(0)[3] & termios.ECHO)
Path(sys.argv[1]).write_text(f"{cooked} {os.stat(path.parent).st_mode & 0o77} {path.read_text()}")
path.write_text(path.read_text() + " by the editor\\n")
"""


class Window:
    """`localspec chat` in a terminal of its own."""

    def __init__(self, *options: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "chat", *options],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", **environment},
        )
        os.close(theirs)

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def sees(self, part: bytes) -> None:
        """Waits until it is drawn from now on."""
        seen, deadline = b"", time.monotonic() + 60
        while part not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self._ours], [], [], 0.1)[0]:
                seen += os.read(self._ours, 4096)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_the_editor_has_the_terminal_and_its_text_is_sent(folders: Path) -> None:
    script, seen = folders / "editor.py", folders / "seen"
    script.write_text(EDITOR)
    command = shlex.join([sys.executable, str(script), str(seen)])
    with served(Endpoint()) as endpoint:
        window = Window("--endpoint", endpoint.url, VISUAL="", EDITOR=command)
        try:
            window.sees(b"answers, at an endpoint")
            window.press(b"Written")
            window.sees(b"Written")
            window.press(b"\x1b[24~")
            window.sees(b"by the editor")
            assert seen.read_text() == "True 0 Written"
            window.press(b"\r")
            window.sees(b"Hello")
        finally:
            window.close()
    assert [one["content"] for one in endpoint.requests[0]["messages"]] == ["Written by the editor"]


def test_after_an_editor_that_is_not_there_the_chat_goes_on(folders: Path) -> None:
    with served(Endpoint()) as endpoint:
        window = Window("--endpoint", endpoint.url, VISUAL="/no/such", EDITOR="")
        try:
            window.sees(b"answers, at an endpoint")
            window.press(b"Written\x1b[24~")
            window.sees(b"cannot be started")
            window.press(b"\r")
            window.sees(b"Hello")
        finally:
            window.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("editor", "told"),
    [
        ("", "No editor is set. Set EDITOR, as in: export EDITOR=nano"),
        ("vi 'it", 'The editor "vi \'it" cannot be understood: No closing quotation.'),
        ("vi", "An editor cannot have the screen here."),
    ],
)
async def test_what_cannot_be_edited_is_one_sentence(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, editor: str, told: str
) -> None:
    """And what was typed stays. The screen of these tests cannot be left."""
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    app = make_app("a")
    async with app.run_test() as pilot:
        front(app).composer.put("/editor my text")
        await pilot.press("enter")
        await until(pilot, lambda: app._notifications)
        assert [note.message for note in app._notifications] == [told]
        assert front(app).composer.text == "my text"
