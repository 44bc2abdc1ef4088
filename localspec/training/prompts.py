"""What the target is asked, so that its answers can be learned from: a user's texts or chats, or a shipped list."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.text_file import read_text
from localspec.chat.turn import Message
from localspec.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CHATS = "chats"
"""The word that stands for the user's own chats."""
LEAST_PROMPTS = 16
"""Fewer teach nothing that another prompt could use: four are held out, the rest is learned from."""
MOST_HELD_OUT = 20
"""Prompts that nothing is learned from, for measuring: every fourth one, at most so many."""
_PASSAGE = 1200
"""Letters of a passage of a text file that a prompt holds: some 300 tokens, which leave room for an answer."""
_MOST_FILE_BYTES = 2 << 20
"""Larger files of a folder are data rather than text."""
_QUESTIONS = ("prompt", "question", "instruction", "query")
"""Fields of a JSON row that hold what is asked."""
_REQUESTS = ("Go on with this:", "Explain this:", "Improve this:", "What could go wrong here?", "Summarise this:")
"""What is asked of a passage of a text file, in turn."""
_SEED = 7
"""Of the order of prompts, which is the same in every run."""

Conversation = tuple[Message, ...]


def gather(texts: Sequence[str], archive: Path | None = None) -> tuple[list[Conversation], list[Conversation]]:
    """All prompts of some texts.

    Args:
        texts: files, folders, or the word `chats`; () = the shipped list.
        archive: the file of the chats; None = the user's.

    Returns:
        Those to learn from, in random order, and those that are held out.

    Raises:
        UsageError: one cannot be read, or they hold too few prompts.
    """
    found = list(dict.fromkeys(one for text in texts for one in _of(text, archive))) if texts else list(shipped())
    if len(found) < LEAST_PROMPTS:
        where = ", ".join(texts)
        raise UsageError(
            f"--texts {where}: prompts found: {len(found)}; training needs {LEAST_PROMPTS} or more.",
            "Give more texts, or none: then localspec asks from its own list.",
        )
    random.Random(_SEED).shuffle(found)
    held = found[: min(MOST_HELD_OUT, len(found) // 4)]
    return found[len(held) :], held


def shipped() -> Iterator[Conversation]:
    """Every subject of the shipped list in every form."""
    with paths.bundled("training_prompts.toml").open("rb") as file:
        groups = tomllib.load(file)["group"]
    for group in groups:
        for form in group["forms"]:
            for subject in group["subjects"]:
                yield (Message("user", form.replace("{}", subject)),)


def _of(text: str, archive: Path | None) -> Iterator[Conversation]:
    path = Path(text)
    if text == CHATS and not path.exists():
        yield from _chats(archive)
    elif path.is_dir():
        for file in _files(path):
            try:
                yield from _passages(read_text(file))
            except UsageError:
                continue  # an image, an archive: a folder may hold anything
    elif path.suffix in (".json", ".jsonl"):
        yield from _rows(path)
    elif path.suffix == ".gguf":
        raise UsageError(f"--texts {text} is a model; it must be texts.")
    else:
        yield from _passages(read_text(path))


def _files(folder: Path) -> Iterator[Path]:
    """Files of a folder: what git keeps there, else all that are not hidden."""
    listed = None
    try:
        command = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        listed = [folder / name for name in done.stdout.decode("utf-8", "surrogateescape").split("\0") if name]
    except (OSError, subprocess.SubprocessError):
        pass
    for file in sorted(listed or folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if not hidden and file.is_file() and file.stat().st_size <= _MOST_FILE_BYTES:
            yield file


def _passages(text: str) -> Iterator[Conversation]:
    """Passages of a text, cut between lines where they can be, each with a request."""
    passage, count = "", 0
    for line in [*text.splitlines(keepends=True), ""]:
        if passage.strip() and (len(passage) + len(line) > _PASSAGE or not line):
            yield (Message("user", f"{_REQUESTS[count % len(_REQUESTS)]}\n\n{passage.strip()[:_PASSAGE]}"),)
            passage, count = "", count + 1
        passage += line


def _rows(path: Path) -> Iterator[Conversation]:
    """Rows of a JSON file, or lines of a JSON lines file, that hold a question or a conversation."""
    text = read_text(path)
    try:
        whole = json.loads(text) if path.suffix == ".json" else [json.loads(row) for row in text.splitlines() if row]
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: it is not JSON.") from None
    for row in whole if isinstance(whole, list) else []:
        if (messages := _conversation(row)) is not None:
            yield messages


def _conversation(row: Any) -> Conversation | None:
    """The messages of a row up to the user's last one."""
    if not isinstance(row, dict):
        return None
    messages = [one for one in row.get("messages") or () if isinstance(one, dict)]
    if messages:
        last = max((at for at, one in enumerate(messages) if one.get("role") == "user"), default=-1)
        kept = tuple(
            Message(str(one.get("role", "user")), str(one.get("content") or "")) for one in messages[: last + 1]
        )
        return kept or None
    asked = next((str(row[name]) for name in _QUESTIONS if row.get(name)), "")
    more = str(row.get("input") or row.get("context") or "")
    return (Message("user", f"{asked}\n{more}".strip()),) if asked else None


def _chats(archive: Path | None) -> Iterator[Conversation]:
    """What the user asked in his chats, each question with what was said before it."""
    with Archive.open(archive) as chats:
        for chat in chats.chats():
            said = [Message("system", chat.system)] if chat.system else []
            for message in chats.path(chat.id):
                said.append(Message(message.role, message.content))
                if message.role == "user":
                    yield tuple(said)
