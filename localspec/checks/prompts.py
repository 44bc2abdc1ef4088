"""What comparisons ask: shipped prompts and workloads, or a user's file.

The shipped ones are held out from the training of the bundled pair. The workloads are of tasks that pair knows, so
that its acceptance is real; pairs padded from it behave like it (`packaging/tiny-pair/workloads.py` writes them).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from localspec.types import Tokens

SHIPPED: dict[str, str] = {
    "maths": "school maths, with the steps written out",
    "code-edit": "a program again, with one name changed",
    "json": "named fields of records as JSON",
    "copy": "a text again, word for word",
    "chat": "open questions and role play",
    "multi-turn": "several small tasks in one conversation",
    "random": "text that goes on from random words, to the last token asked for",
    "long-code": "a long program again, with one name changed, at 2,000 tokens of context",
    "long-chat": "a question after a long conversation, at 2,000 tokens of context",
    "code-twice": "a program asked about twice, another name each time; the second answer is measured",
    "rewrite": "a long text written down, and again with some words changed; the second answer is measured",
    "again": "an open question asked again in a new conversation; the second answer is measured",
}
"""Names of the shipped workloads and what they are."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be answered turn by turn, or a text to go on with."""

    name: str
    """Its `id` in the file, or the number of its line."""
    messages: tuple[Message, ...] = ()
    """The conversation. Every message but a system's is answered, unless the assistant's answer follows it here."""
    workload: str = "own"
    index: int = 0
    """In its workload."""
    text: str = ""
    """Raw text, where there are no messages."""
    ignore_end: bool = False
    """Go on after end-of-generation tokens."""
    apart: bool = False
    """Every message is a conversation of its own, and what is measured is the last answer: who keeps answers and
    searches them (`localspec corpus`) may."""
    answer: str = ""
    """The right answer to the last message, where there is one."""

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


Workloads = dict[str, list[Prompt]]
"""{name: prompts}."""


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """Reads a file as `load_workloads` does, without the answers in it: the model answers for itself.

    Args:
        path: a user's file; None = the shipped one.

    Raises:
        UsageError: the file cannot be read, or a line is not of this form; says which.
    """
    return list(_read(path or paths.bundled("prompts.jsonl"), answers=False))


def load_workloads(names: Sequence[str] = (), path: Path | None = None, limit: int | None = None) -> Workloads:
    """Reads JSON lines with `messages`, `prompt` (a user's message) or `text` (raw), and optionally `id`, `workload`,
    `ignore_end` and `apart` (see `Prompt`).

    Answers that stand in `messages` are taken as they are; what has none is answered by the side.

    Args:
        names: those to keep, in this order; none = all.
        path: a user's file; None = the shipped one.
        limit: most prompts of each, the first ones.

    Raises:
        UsageError: the file cannot be read, a line is not of this form, or there is no such workload; says which.
    """
    found: Workloads = {}
    for prompt in _read(path or paths.bundled("workloads.jsonl")):
        found.setdefault(prompt.workload, []).append(prompt)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise UsageError(f"There is no workload called {unknown[0]!r}; there are: {', '.join(found)}.")
    if limit is not None and limit < 1:
        raise UsageError(f"The number of prompts is {limit}; it must be 1 or more.")
    return {name: found[name][:limit] for name in names or found}


def _read(path: Path, answers: bool = True) -> Iterator[Prompt]:
    counts: dict[str, int] = {}
    for number, row in enumerate(read_text(path).split("\n"), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            workload = str(line.get("workload", "own"))
            counts[workload] = counts.get(workload, -1) + 1
            yield _prompt(line, str(line.get("id", number)), workload, counts[workload], answers)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{path}, line {number}: it must be an object with `messages`, `prompt` or `text`."
            ) from None
    if not counts:
        raise UsageError(f"{path} has no prompts.")


def _prompt(line: dict[str, Any], name: str, workload: str, index: int, answers: bool) -> Prompt:
    ignore_end = bool(line.get("ignore_end", False))
    if "text" in line:
        return Prompt(name, (), workload, index, _said(line["text"]), ignore_end)
    messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
    kept = tuple(Message(str(message["role"]), _said(message["content"])) for message in messages)
    kept = tuple(message for message in kept if answers or message.role != "assistant")
    if kept[-1].role in ("system", "assistant"):
        raise ValueError("there is no question")
    apart, answer = bool(line.get("apart", False)), str(line.get("answer", ""))
    return Prompt(name, kept, workload, index, "", ignore_end, apart, answer)


def _said(text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError("a prompt is a text")
    return text
