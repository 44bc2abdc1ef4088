"""Keys as the terminal sends them."""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Iterator

import pytest
from textual import events
from textual.app import App
from textual.message import Message

if sys.platform == "win32":
    pytest.skip("Textual's own driver is used there", allow_module_level=True)

from localspec.tui.shell.terminal import Terminal


class Heard(Terminal):
    """Keeps the keys."""

    def process_message(self, message: Message) -> None:
        if isinstance(message, events.Key):
            heard.put(message.key)


heard: queue.Queue[str] = queue.Queue()


async def _terminal() -> Heard:
    return Heard(App())  # asks for the running loop


@pytest.fixture
def keyboard() -> Iterator[int]:
    """Where to write what a terminal sends."""
    read, write = os.pipe()
    loop = asyncio.new_event_loop()  # asyncio.run would drop the one that other tests' plug-in has set
    terminal = loop.run_until_complete(_terminal())
    loop.close()
    terminal.fileno = read
    thread = threading.Thread(target=terminal.run_input_thread)
    thread.start()
    yield write
    terminal.exit_event.set()
    thread.join(10)
    os.close(read)
    os.close(write)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("sent", "keys"),
    [
        (b"\x1b", ["escape"]),
        (b"\x1b[A", ["up"]),
        ("aé漢".encode(), ["a", "é", "漢"]),
        (b"\xffz", ["\N{REPLACEMENT CHARACTER}", "z"]),
    ],
    ids=["a lone Esc", "an arrow", "letters", "no UTF-8"],
)
def test_keys(keyboard: int, sent: bytes, keys: list[str]) -> None:
    os.write(keyboard, sent)
    found = [heard.get(timeout=10) for _ in keys]
    assert [name if len(name) == 1 or name in ("escape", "up") else _character(name) for name in found] == keys


def test_a_character_that_comes_in_two_pieces(keyboard: int) -> None:
    for byte in "é".encode():
        os.write(keyboard, bytes([byte]))
    assert _character(heard.get(timeout=10)) == "é"


def _character(key: str) -> str:
    from textual.keys import key_to_character

    return key_to_character(key) or key
