"""Ways to the clipboard, in their order, with real programs where there are any."""

from __future__ import annotations

import base64
import shutil
import stat
import subprocess
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import OptionList

from localspec.errors import LocalspecError
from localspec.tui.widgets import dialogs
from localspec.tui.widgets.dialogs import ChoiceDialog
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
    assert dialogs.copied("hé\n", lambda _: pytest.fail("not asked")) == "with wl-copy"
    assert (tmp_path / "got").read_text() == "hé\n"


def test_a_tool_that_fails_or_belongs_to_another_machine_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(tmp_path, "xclip", "exit 1", monkeypatch)
    monkeypatch.setenv("DISPLAY", ":0")
    assert dialogs.copied("x", lambda _: True) == "through the terminal, if that allows it"
    tool(tmp_path, "xclip", "exit 0", monkeypatch)
    assert dialogs.copied("x", lambda _: True) == "with xclip"
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert dialogs.copied("x", lambda _: True) == "through the terminal, if that allows it"


def test_the_sequence_carries_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dialogs.terminal_sequence("hé")
    assert plain is not None
    assert plain == f"\x1b]52;c;{base64.b64encode('hé'.encode()).decode()}\x07"
    monkeypatch.setenv("TERM", "screen")
    assert dialogs.terminal_sequence("hé") == f"\x1bP{plain}\x1b\\"


def test_tmux_takes_the_text_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    tool(tmp_path, "tmux", f'echo "$@" > {tmp_path}/asked; cat > {tmp_path}/got', monkeypatch)
    assert dialogs.copied("hé\n" * 50_000, lambda _: pytest.fail("not asked")).startswith("to tmux")
    assert (tmp_path / "got").read_text() == "hé\n" * 50_000
    assert (tmp_path / "asked").read_text() == "load-buffer -w -\n"


def test_a_tmux_that_does_not_answer_leaves_the_file(
    tmp_path: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    tool(tmp_path, "tmux", "exit 1", monkeypatch)
    way = dialogs.copied("hé", lambda _: pytest.fail("tmux drops it unless passthrough is allowed"))
    assert way == f"to {folders / 'data' / 'copied.txt'}"


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_real_tmux_has_the_text_with_passthrough_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]
    subprocess.run([*server, "new-session", "-d", "sleep 60"], check=True, timeout=20)
    try:
        subprocess.run([*server, "set-option", "-g", "allow-passthrough", "off"], check=True, timeout=20)
        monkeypatch.setenv("TMUX", f"{tmp_path / 'tmux'},1,0")
        assert dialogs.copied("hé\n漢字", lambda _: pytest.fail("not asked")).startswith("to tmux")
        shown = subprocess.run([*server, "show-buffer"], check=True, timeout=20, capture_output=True)
        assert shown.stdout.decode() == "hé\n漢字"
    finally:
        subprocess.run([*server, "kill-server"], check=False, timeout=20)


def test_what_terminals_do_not_take_goes_to_a_file(folders: Path) -> None:
    text = "long " * 50_000
    way = dialogs.copied(text, lambda _: pytest.fail("too long for it"))
    assert way == f"to {folders / 'data' / 'copied.txt'}"
    assert (folders / "data" / "copied.txt").read_text() == text


def test_no_way_at_all_is_said(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "file").write_text("")
    monkeypatch.setenv("LOCALSPEC_DATA", str(folders / "file" / "below"))
    with pytest.raises(LocalspecError, match="Nothing could be copied"):
        dialogs.copied("x", lambda _: False)


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


@pytest.mark.asyncio
async def test_of_several_blocks_of_code_it_is_asked_which(make_app: MakeApp, folders: Path) -> None:
    app = make_app("```python\na = 1\n```\n\n1. In a list:\n\n   ~~~sh\n   ls \u202e\n   ~~~\n\n```\nleft op\nen")
    copied = folders / "data" / "copied.txt"
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        for key, wanted in (("", "a = 1\n"), ("down", "ls \u202e\n"), ("3", "left op\nen")):
            front(app).transcript.bubbles[1].focus()
            await pilot.press("k")
            await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
            options = app.screen.query_one(OptionList)
            heads = [str(options.get_option_at_index(place).prompt).split("\n") for place in range(3)]
            assert heads[0] == ["code 1 · python · 1 line", "│ a = 1"]
            assert heads[1] == ["code 2 · sh · 1 line", "│ ls "]
            assert heads[2] == ["code 3 · 2 lines", "│ left op", "│ en"]
            await pilot.press(*key.split(), "enter")
            await until(pilot, partial(lambda wanted: copied.exists() and copied.read_text() == wanted, wanted))
