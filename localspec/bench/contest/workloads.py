"""What is answered in a benchmark: prompts by workload, the shipped ones or a user's own file.

The shipped ones are held out from the training of the bundled pair (`packaging/tiny-pair/workloads.py` writes them),
of tasks that pair knows, so that its acceptance is real; pairs padded from it behave like it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.chat.turn import Message
from localspec.errors import UsageError

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

    workload: str
    index: int
    """In its workload."""
    messages: tuple[Message, ...] = ()
    """The conversation. Every message but a system's is answered, unless the assistant's answer follows it here."""
    text: str = ""
    """Raw text, where there are no messages."""
    ignore_end: bool = False
    """Go on after end-of-generation tokens."""
    apart: bool = False
    """Every message is a conversation of its own, and what is measured is the last answer: who keeps answers and
    searches them (`localspec corpus`) may."""

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

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `run.digest`."""
        messages = [[message.role, message.content] for message in self.messages]
        apart = {"apart": True} if self.apart else {}
        return {"messages": messages, "text": self.text, "ignore_end": self.ignore_end, **apart}


Workloads = dict[str, list[Prompt]]
"""{name: prompts}."""


def load_workloads(names: Sequence[str] = (), path: Path | None = None, limit: int | None = None) -> Workloads:
    """Reads JSON lines with `messages`, `prompt` (a user's message) or `text` (raw), and optionally `workload`,
    `ignore_end` and `apart` (see `Prompt`).

    Answers that stand in `messages` are taken as they are; what has none is answered by the contender.

    Args:
        names: those to keep, in this order; none = all.
        path: a user's file; None = the shipped one.
        limit: most prompts of each, the first ones.

    Raises:
        UsageError: the file cannot be read, a line is not of this form, or there is no such workload; says which.
    """
    source = path or paths.bundled("workloads.jsonl")
    found = _read(source)
    unknown = [name for name in names if name not in found]
    if unknown:
        raise UsageError(f"There is no workload called {unknown[0]!r}; there are: {', '.join(found)}.")
    if limit is not None and limit < 1:
        raise UsageError(f"The number of prompts is {limit}; it must be 1 or more.")
    return {name: found[name][:limit] for name in names or found}


def _read(path: Path) -> Workloads:
    found: Workloads = {}
    for number, row in enumerate(read_text(path).split("\n"), start=1):
        if not row.strip():
            continue
        try:
            line = json.loads(row)
            name = str(line.get("workload", "own"))
            prompts = found.setdefault(name, [])
            prompts.append(_prompt(name, len(prompts), line))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UsageError(
                f"{path}, line {number}: it must be an object with `messages`, `prompt` or `text`."
            ) from None
    if not found:
        raise UsageError(f"{path} has no prompts.")
    return found


def _prompt(workload: str, index: int, line: dict[str, Any]) -> Prompt:
    ignore_end = bool(line.get("ignore_end", False))
    if "text" in line:
        return Prompt(workload, index, text=_said(line["text"]), ignore_end=ignore_end)
    messages = line.get("messages") or [{"role": "user", "content": line["prompt"]}]
    kept = tuple(Message(str(message["role"]), _said(message["content"])) for message in messages)
    if kept[-1].role in ("system", "assistant"):
        raise ValueError("there is no question")
    return Prompt(workload, index, kept, ignore_end=ignore_end, apart=bool(line.get("apart", False)))


def _said(text: Any) -> str:
    if not isinstance(text, str) or not text:
        raise ValueError("a prompt is a text")
    return text
