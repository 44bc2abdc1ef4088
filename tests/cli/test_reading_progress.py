"""The line that shows how far a prompt is read: on a terminal's standard error alone, and gone before the answer."""

from __future__ import annotations

import os
import pty
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from localspec.cli import output
from tests.cli.conftest import Command

LONG = "seven green boats and a red lamp, " * 60
SHORT = ("--target", "tiny-target", "--max-tokens", "4", "--temperature", "0", "--drafter", "none")
MARK = "\a"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, TextIO]]:
    """What a terminal shows, and its other end, which is standard error."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(output, "SHOWN_AFTER", 0.0)
    with os.fdopen(theirs, "w") as screen:
        yield ours, screen
    os.close(ours)


def shown(ours: int, screen: TextIO) -> str:
    """What was written since it was last asked, up to a mark: a terminal hands it on a moment later."""
    screen.write(MARK)
    screen.flush()
    read = b""
    while not read.endswith(MARK.encode()):
        read += os.read(ours, 1 << 16)
    return read.decode().removesuffix(MARK)


def test_it_says_how_much_there_is_and_what_is_left(
    terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, screen = terminal
    monkeypatch.setattr(sys, "stderr", screen)
    with output.reading_progress() as heard:
        assert heard is not None
        heard(0, 1337)
        heard(400, 1337)
        heard(1337, 1337)
        before = shown(ours, screen)
        assert "reading 1,337 tokens" in before
        assert "about" in before
        assert before.endswith("\x1b[2K")  # the line is cleared before the first token comes
    assert shown(ours, screen) == ""


def test_run_shows_it_on_a_terminal(
    command: Command, terminal: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, screen = terminal
    expected = command("run", LONG, *SHORT)
    assert (expected.code, expected.err) == (0, "")
    monkeypatch.setattr(sys, "stderr", screen)
    assert command("run", LONG, *SHORT).out == expected.out
    assert "reading " in shown(ours, screen)


def test_nothing_is_shown_elsewhere() -> None:
    with output.reading_progress() as heard:
        assert heard is None
