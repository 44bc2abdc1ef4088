"""The four MIT-licensed text files that the pair is trained on besides the generated tasks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from material import Source

FILES = {
    "gsm8k": "gsm8k_train.jsonl",
    "codegen": "codegen-instruct.json",
    "roleplay": "roleplay-instruct.json",
    "toolformer": "toolformer-instruct.json",
}
HELD_OUT_EVERY = 40  # 2.5 % of each file
MARKS = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Dialogue:
    """One entry of the corpus as a chat, the assistant's turn last."""

    source: str
    messages: list[dict[str, str]]


def turns(question: str, answer: str) -> list[dict[str, str]]:
    """A chat of one question and one answer."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def entries(folder: Path, name: str) -> list[Dialogue]:
    """All entries of one file, in its order."""
    raw = (folder / FILES[name]).read_text(encoding="utf-8")
    if name == "gsm8k":
        rows = [json.loads(line) for line in raw.splitlines() if line.strip()]
        return [Dialogue(name, turns(row["question"], MARKS.sub("", row["answer"]))) for row in rows]
    found = []
    for row in json.loads(raw):
        question, extra, answer = (str(row.get(key) or "").strip() for key in ("instruction", "input", "response"))
        if question and answer:
            found.append(Dialogue(name, turns(f"{question}\n{extra}" if extra else question, answer)))
    return found


def split(folder: Path) -> tuple[list[Dialogue], list[Dialogue]]:
    """Training entries and held-out entries of all files."""
    train: list[Dialogue] = []
    held_out: list[Dialogue] = []
    for name in FILES:
        for index, dialogue in enumerate(entries(folder, name)):
            (held_out if index % HELD_OUT_EVERY == 7 else train).append(dialogue)
    return train, held_out


def material_of(dialogues: list[Dialogue]) -> Source:
    """Sentences and pieces of code for the copy tasks."""
    sentences: list[str] = []
    code: list[str] = []
    for dialogue in dialogues:
        answer = dialogue.messages[-1]["content"]
        if dialogue.source == "codegen":
            lines = answer.split("\n")
            code.append("\n".join(lines[:8]))
        else:
            whole = dialogue.messages[0]["content"] + " " + answer
            sentences.extend(part for part in re.split(r"(?<=[.!?])\s+", whole) if 12 < len(part) < 160)
    return Source(tuple(sentences), tuple(code))
