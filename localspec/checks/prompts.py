"""What comparisons ask: shipped prompts and workloads, or a user's file.

The shipped ones are held out from the training of the bundled pair. The workloads are of tasks that pair knows, so
that its acceptance is real; pairs padded from it behave like it (`packaging/tiny-pair/workloads.py` writes them). What
a target is asked, so that its answers can be learned from, is a user's texts or chats, or a shipped list.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.text_file import read_text
from localspec.chat.turn import ROLES, Message
from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from localspec.types import Tokens

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A conversation to be answered turn by turn, or a text to go on with."""

    name: str  # its `id` in the file, or the number of its line
    messages: tuple[Message, ...] = ()
    """The conversation. Every message but a system's is answered, unless the assistant's answer follows it here."""
    workload: str = "own"
    index: int = 0
    text: str = ""
    ignore_end: bool = False  # go on after end-of-generation tokens
    apart: bool = False
    """Every message is a conversation of its own, and what is measured is the last answer: who keeps answers and
    searches them (`localspec corpus`) may."""
    answer: str = ""  # the right answer to the last message, where there is one

    @property
    def questions(self) -> list[tuple[Message, ...]]:
        """What is said before each answer that is asked for; raw text is one question without a message."""
        found: list[tuple[Message, ...]] = [] if self.messages else [()]
        said: list[Message] = []
        for place, message in enumerate(self.messages, start=1):
            said.append(message)
            answered = place < len(self.messages) and self.messages[place].role == "assistant"
            if message.role not in ("system", "assistant") and not answered:
                found.append(tuple(said))
                said = []
        return found


def text_for_completion(messages: Sequence[Message]) -> str:
    """What a base model, which has no chat template, goes on with: the messages, a line each."""
    return "\n".join(message.content for message in messages) + "\n"


def prompt_tokens(engine: Engine, messages: Sequence[Message]) -> Tokens:
    """The tokens of a conversation by the model's chat template; a base model completes its text."""
    if engine.template.exists:
        return engine.chat_tokens(messages)
    return engine.tokenize(text_for_completion(messages), special=False)


def load_prompts(path: Path | None = None) -> list[BenchPrompt]:
    """Reads a user's file, or the shipped one, as `load_workloads` does, without the answers that stand in it."""
    return list(_read(path or paths.bundled("prompts.jsonl"), answers=False))


def load_workloads(
    names: Sequence[str] = (), path: Path | None = None, limit: int | None = None
) -> dict[str, list[BenchPrompt]]:
    """Reads JSON lines with `messages`, `prompt` (a user's message) or `text` (raw), and optionally `id`, `workload`,
    `ignore_end` and `apart` (see `BenchPrompt`); answers in `messages` are taken as they are.

    Of a user's file, or the shipped one, are kept the workloads that `names` has, in its order (none = all), and the
    first prompts of each up to `limit`.
    """
    found: dict[str, list[BenchPrompt]] = {}
    for prompt in _read(path or paths.bundled("workloads.jsonl")):
        found.setdefault(prompt.workload, []).append(prompt)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise UsageError(f"There is no workload called {unknown[0]!r}; there are: {', '.join(found)}.")
    if limit is not None and limit < 1:
        raise UsageError(f"The number of prompts is {limit}; it must be 1 or more.")
    return {name: found[name][:limit] for name in names or found}


def _read(path: Path, answers: bool = True) -> Iterator[BenchPrompt]:
    counts: dict[str, int] = {}
    for number, row in enumerate(read_text(path).split("\n"), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            workload = str(line.get("workload", "own"))
            counts[workload] = counts.get(workload, -1) + 1
            at = (workload, counts[workload])
            name, ignore_end = str(line.get("id", number)), bool(line.get("ignore_end", False))
            if "text" in line:
                yield BenchPrompt(name, (), *at, _said(line["text"]), ignore_end)
                continue
            messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
            said = (Message(str(message["role"]), _said(message["content"])) for message in messages)
            kept = tuple(message for message in said if answers or message.role != "assistant")
            if kept[-1].role in ("system", "assistant"):
                raise ValueError("there is no question")
            apart, answer = bool(line.get("apart", False)), str(line.get("answer", ""))
            yield BenchPrompt(name, kept, *at, "", ignore_end, apart, answer)
        except (ValueError, KeyError, TypeError, AttributeError):
            why = "it must be an object with `messages`, `prompt` or `text`."
            raise UsageError(f"{path}, line {number}: {why}") from None
    if not counts:
        raise UsageError(f"{path} has no prompts.")


def _said(text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError("a prompt is a text")
    return text


CHATS = "chats"  # the word that stands for the user's own chats
LEAST_PROMPTS = 16  # fewer teach nothing that another prompt could use: four are held out, the rest is learned from
MOST_HELD_OUT = 20  # prompts that nothing is learned from, for measuring: every fourth one, at most so many
_PASSAGE = 1200
"""Letters of a passage of a text file that a prompt holds: some 300 tokens, which leave room for an answer."""
_MOST_FILE_BYTES = 2 << 20  # larger files of a folder are data rather than text
_QUESTIONS = ("prompt", "question", "instruction", "query")  # fields of a JSON row that hold what is asked
_REQUESTS = ("Go on with this:", "Explain this:", "Improve this:", "What could go wrong here?", "Summarise this:")
"""What is asked of a passage of a text file, in turn."""
_SEED = 7  # of the order of prompts, which is the same in every run

Conversation = tuple[Message, ...]


def gather(texts: Sequence[str], archive: Path | None = None) -> tuple[list[Conversation], list[Conversation]]:
    """All prompts of some texts: files, folders, or the word `chats`, whose file is `archive` or the user's; () = the
    shipped list.

    Those to learn from come first, in random order, and then those that are held out. Texts that cannot be read, or
    hold too few prompts, are a UsageError.
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
    rest, begun = found[len(held) :], {_beginning(one) for one in held}
    apart = [one for one in rest if _beginning(one) not in begun]
    return apart if len(apart) > len(rest) // 2 else rest, held  # of a few long chats too little would be left


def _beginning(prompt: Conversation) -> str:
    """A conversation's first question: later prompts of a chat hold the answers to its earlier ones."""
    return next((one.content for one in prompt if one.role == "user"), "")


def write(file: Path, words: str, learned: Sequence[Conversation], held_out: Sequence[Conversation]) -> None:
    """Keeps prompts that `gather` returned of the texts that `words` name, so that a run goes on with the same."""
    both = [[[[one.role, one.content] for one in prompt] for prompt in prompts] for prompts in (learned, held_out)]
    paths.write_whole(file, json.dumps([words, *both]) + "\n")


def read(file: Path, words: str) -> tuple[list[Conversation], list[Conversation]] | None:
    """What `write` kept of the same texts; None = nothing that can be read."""
    try:
        said, *both = json.loads(file.read_text(encoding="utf-8"))
        learned, held_out = ([tuple(Message(*one) for one in prompt) for prompt in prompts] for prompts in both)
    except (OSError, ValueError, TypeError):
        return None
    return (learned, held_out) if said == words else None


def shipped() -> Iterator[Conversation]:
    with paths.bundled("training_prompts.toml").open("rb") as file:
        groups = tomllib.load(file)["group"]
    for group in groups:
        for form, subject in product(group["forms"], group["subjects"]):
            yield (Message("user", form.replace("{}", subject)),)


def _of(text: str, archive: Path | None) -> Iterator[Conversation]:
    path = paths.typed(text)
    if text == CHATS and not os.path.exists(path):
        with Archive.open(archive) as chats:
            for chat in chats.chats():
                said = [Message("system", chat.system)] if chat.system else []
                for message in chats.path(chat.id):
                    said.append(Message(message.role, message.content))
                    if message.role == "user":  # each question with what was said before it
                        yield tuple(said)
    elif os.path.isdir(path):
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
    listed: list[Path] = []
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        listed = [folder / name for name in done.stdout.decode("utf-8", "surrogateescape").split("\0") if name]
    for file in sorted(listed or folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if not hidden and file.is_file() and file.stat().st_size <= _MOST_FILE_BYTES:
            yield file


def _passages(text: str) -> Iterator[Conversation]:
    """Passages of a text, cut between lines where they can be, each with a request."""
    passage, count = "", 0
    lines = (line[at : at + _PASSAGE] for line in text.splitlines(True) for at in range(0, len(line), _PASSAGE))
    for line in (*lines, ""):
        if passage.strip() and (len(passage) + len(line) > _PASSAGE or not line):
            yield (Message("user", f"{_REQUESTS[count % len(_REQUESTS)]}\n\n{passage.strip()}"),)
            passage, count = "", count + 1
        passage += line


def _rows(path: Path) -> Iterator[Conversation]:
    """Rows of a JSON file, or lines of a JSON lines file, that hold a question or a conversation."""
    text = read_text(path)
    lines = [(1, text)] if path.suffix == ".json" else list(enumerate(text.split("\n"), start=1))
    for number, line in lines:
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            at = number + getattr(error, "lineno", 1) - 1
            raise UsageError(f"{path}, line {at}: it is not JSON.") from None
        for row in found if isinstance(found, list) else [found]:
            if isinstance(row, dict) and (messages := _conversation(row)):
                yield messages


def _conversation(row: dict[str, Any]) -> Conversation:
    """The messages of a row up to the user's last one; () = the row has none, or one whose role is not in `ROLES`."""
    asked = next((row[name] for name in ("messages", *_QUESTIONS) if row.get(name)), None)
    if isinstance(asked, list):
        said = [(one.get("role"), _text(one.get("content"))) for one in asked if isinstance(one, dict)]
        last = max((at for at, (role, _) in enumerate(said) if role == "user"), default=-1)
        kept = [Message(role, text) for role, text in said[: last + 1] if role in ROLES]
        return tuple(kept) if len(kept) == last + 1 else ()
    more = _text(row.get("input") or row.get("context"))
    text = f"{_text(asked)}\n{more}".strip()
    return (Message("user", text),) if _text(asked) else ()


def _text(content: Any) -> str:
    """A text, or the texts of a message of several parts; "" = it is neither."""
    if isinstance(content, list):
        parts = (_text(part.get("text")) for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if part)
    return content if isinstance(content, str) else ""
