"""An archive on disk, and what the tests of it share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localspec.chat.archive.archive import Archive
from localspec.chat.archive.message import StoredMessage
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """A new archive on disk."""
    with Archive.open(tmp_path / "chats.sqlite3") as found:
        yield found


def say(archive: Archive, chat_id: int, question: str, answer: str) -> StoredMessage:
    """One turn at the end of a chat; its answer."""
    writer = archive.begin_answer(archive.append_user(chat_id, question).id)
    writer.extend(answer)
    return writer.finish()


def made(name: str, result: str, turn: int = 0, said: int = 0, thought: int = 0, arguments: str = "{}") -> MadeCall:
    """A call of a tool that took half a second."""
    return MadeCall(ToolCall(f"id-{name}", name, arguments), result, turn, said, thought, seconds=0.5)


def texts(path: list[StoredMessage]) -> list[str]:
    """What is said on a path."""
    return [message.content for message in path]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user of the machine may enter."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere; for a while be somebody who may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
