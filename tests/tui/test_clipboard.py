"""Ways to the clipboard, in their order, with real programs where there are any."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from localspec.errors import LocalspecError
from localspec.tui import clipboard
from tests.tui.conftest import MakeApp, front, say, until


@pytest.fixture(autouse=True)
def _no_screen(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WSL_DISTRO_NAME", "TERMUX_VERSION", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")


def tool(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of this name, first in the path."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_local_tool_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "wl-copy", f"cat > {tmp_path}/got", monkeypatch)
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert clipboard.copy("hé\n", lambda _: pytest.fail("not asked")) == "with wl-copy"
    assert (tmp_path / "got").read_text() == "hé\n"


def test_a_tool_that_fails_or_belongs_to_another_machine_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "xclip", "exit 1", monkeypatch)
    monkeypatch.setenv("DISPLAY", ":0")
    assert clipboard.copy("x", lambda _: True) == "through the terminal"
    tool(tmp_path, "xclip", "exit 0", monkeypatch)
    assert clipboard.copy("x", lambda _: True) == "with xclip"
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert clipboard.copy("x", lambda _: True) == "through the terminal"


def test_the_sequence_carries_the_text_and_is_wrapped_in_tmux(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = clipboard.terminal_sequence("hé")
    assert plain is not None
    assert plain == f"\x1b]52;c;{base64.b64encode('hé'.encode()).decode()}\x07"
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    wrapped = clipboard.terminal_sequence("hé")
    assert wrapped == "\x1bPtmux;\x1b" + plain + "\x1b\\"


def test_what_terminals_do_not_take_goes_to_a_file(folders: Path) -> None:
    text = "long " * 50_000
    way = clipboard.copy(text, lambda _: pytest.fail("too long for it"))
    assert way == f"to {folders / 'data' / 'copied.txt'}"
    assert (folders / "data" / "copied.txt").read_text() == text


def test_no_way_at_all_is_said(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_DATA", str(folders / "file" / "below"))
    with pytest.raises(LocalspecError, match="Nothing could be copied"):
        clipboard.copy("x", lambda _: False)


@pytest.mark.asyncio
async def test_messages_and_code_are_copied_as_they_were_written(make_app: MakeApp, folders: Path) -> None:
    app = make_app("See:\n\n```python\nx = [1]\n```\n\n**done**")
    copied = folders / "data" / "copied.txt"
    async with app.run_test() as pilot:
        await say(pilot, "Go")
        await pilot.press("ctrl+l")
        await until(pilot, copied.exists)
        assert copied.read_text() == "See:\n\n```python\nx = [1]\n```\n\n**done**"
        front(app).composer.put("/copy code")
        await pilot.press("escape", "enter")
        await until(pilot, lambda: copied.read_text() == "x = [1]\n")
        front(app).transcript.bubbles[0].focus()
        await pilot.press("c")
        await until(pilot, lambda: copied.read_text() == "Go")
        await pilot.press("k")
        await until(pilot, lambda: any("no code block" in note.message for note in app._notifications))
