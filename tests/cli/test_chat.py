"""`localspec chat` in line mode: it remembers, obeys commands, and survives errors."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.cli.conftest import Command

OPTIONS = ("--max-tokens", "16", "--temperature", "0", "--seed", "1")


def test_a_conversation_is_remembered_and_clear_forgets_it(command: Command) -> None:
    lines = "Say: red house\nSay it again\n/clear\nSay: red house\n"
    result = command("chat", *OPTIONS, "--stats", stdin=lines)
    assert result.code == 0
    lengths = [int(row.split()[1]) for row in result.err.splitlines() if row.startswith("prompt ")]
    assert len(lengths) == 3
    assert lengths[1] > lengths[0] == lengths[2]


def test_commands_and_their_mistakes(command: Command) -> None:
    result = command("chat", *OPTIONS, stdin="/help\n/nosuch\n/again\n/stats\n/system Be brief.\n/exit\nnever read\n")
    assert result.code == 0
    assert "There is no command /nosuch" in result.err
    assert "no answer to repeat" in result.err
    assert "no answer yet" in result.err
    assert result.out == ""


def test_a_message_too_long_is_refused_and_the_chat_goes_on(command: Command) -> None:
    result = command("chat", *OPTIONS, stdin="word " * 5000 + "\nSay: red house\n")
    assert result.code == 0
    assert "the context holds" in result.err
    assert result.out.strip()


def test_again_answers_the_same_message(command: Command) -> None:
    result = command("chat", *OPTIONS, stdin="Say: red house\n/again\n")
    first, second = result.out.strip().split("\n")[:2]
    assert first == second  # temperature 0


def _until(terminal: int, wanted: Callable[[bytes], bool], seconds: float = 90.0) -> bytes:
    """Reads what the program writes until it is what is wanted."""
    seen, deadline = b"", time.monotonic() + seconds
    while not wanted(seen):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 4096)
    return seen


@contextmanager
def at_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`localspec` at a terminal of its own, and our end of that; it is killed if it has not ended."""
    ours, theirs = pty.openpty()
    given = [sys.executable, "-m", "localspec", *words]
    chat = subprocess.Popen(given, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield chat, ours
    finally:
        chat.kill()
        chat.wait()
        os.close(ours)


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    """In a real terminal: the answer is cut, the prompt comes back, Ctrl-D leaves with exit code 0."""
    arguments = ["chat", "--plain", "--max-tokens", "1500", "--logit-bias"]
    # The end-of-turn token never comes, so the answer goes on until it is stopped.
    from localspec import Engine

    with Engine.load(exact="off") as engine:
        ends = sorted(engine.loaded.model.end_tokens)
    arguments += [f"{ends[0]}=-inf", *[word for end in ends[1:] for word in ("--logit-bias", f"{end}=-inf")]]
    with at_terminal(*arguments) as (chat, ours):
        _until(ours, lambda seen: b"> " in seen)
        os.write(ours, b"Count for ever\n")
        # Line editing may echo the line and end it with an escape sequence: the answer has begun when more has come.
        _until(ours, lambda seen: len(seen.rpartition(b"Count for ever")[2]) > 40)
        chat.send_signal(signal.SIGINT)
        # In one go: a prompt may be read in two pieces.
        _until(ours, lambda seen: b"> " in seen.partition(b"(stopped)")[2])
        os.write(ours, b"\x04")
        assert chat.wait(timeout=60) == 0
