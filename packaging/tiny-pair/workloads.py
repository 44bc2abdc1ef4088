"""Write the prompts of `localspec bench` (localspec/data/workloads.jsonl), from held-out material only.

    python packaging/tiny-pair/workloads.py [OUT.jsonl]

Generated tasks are seeded by names that training never draws from; the rest are the held-out corpus entries of
localspec/data/prompts.jsonl, whose long conversations hold several. Deterministic: the same
script writes the same file.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import material
from material import Source
from tasks import RENAME, TASKS, Example, chat

from localspec import paths
from localspec.chat.prompt.template import ChatTemplate
from localspec.chat.turn import Message
from localspec.llama.model import Model

LONG_FROM, LONG_TO = 1850, 1960
"""Tokens of the long prompts: their answers then lie at about 2,000 tokens of context."""
SHORT_TASKS = ("json", "rename", "sort", "count", "arithmetic", "upper", "fill")
Row = dict[str, Any]


def seeded(name: str, index: int) -> random.Random:
    """Numbers that belong to one prompt."""
    return random.Random(f"workloads-{name}-{index}")


def corpus() -> dict[str, list[list[dict[str, str]]]]:
    """{source: held-out dialogues of one question and one answer}."""
    found: dict[str, list[list[dict[str, str]]]] = {}
    for line in paths.bundled("prompts.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["task"] in ("gsm8k", "codegen", "roleplay"):
            messages = [*row["messages"], {"role": "assistant", "content": row["answer"]}]
            pairs = [messages[start : start + 2] for start in range(0, len(messages), 2)]
            found.setdefault(row["task"], []).extend(pairs)
    return found


def asked(workload: str, example: Example) -> Row:
    """A prompt whose every turn the model answers itself."""
    kept = [message for message in example.messages if message["role"] != "assistant"]
    return {"workload": workload, "messages": kept}


def short(dialogues: dict[str, list[list[dict[str, str]]]]) -> Iterator[Row]:
    """Everything but the long ones."""
    for pair in dialogues["gsm8k"][:6]:
        yield {"workload": "maths", "messages": pair[:1]}
    for index in range(2):
        yield asked("maths", TASKS["arithmetic"](seeded("maths", index), 40, Source()))
    for workload, task in (("code-edit", "rename"), ("json", "json"), ("copy", "copy")):
        for index in range(8):
            yield asked(workload, TASKS[task](seeded(workload, index), 40 + 12 * index, Source()))
    for pair in [*dialogues["roleplay"][:6], *dialogues["codegen"][:2]]:
        yield {"workload": "chat", "messages": pair[:1]}
    for index in range(6):
        yield asked("multi-turn", chat(seeded("multi-turn", index), 60 + 20 * index, Source(), SHORT_TASKS, 4))
    for index in range(6):
        rng = seeded("random", index)
        words = [material.word(rng) if rng.random() < 0.5 else material.random_string(rng) for _ in range(30)]
        yield {"workload": "random", "text": " ".join(words), "ignore_end": True}


def long(dialogues: dict[str, list[list[dict[str, str]]]], length: Callable[[Row], int]) -> Iterator[Row]:
    """Prompts of about 1,900 tokens."""
    for index in range(4):
        for attempt in range(4000):
            rng = seeded("long-code", 10000 * index + attempt)
            row = asked("long-code", TASKS["rename"](rng, rng.randint(500, 1100), Source()))
            if LONG_FROM <= length(row) <= LONG_TO:
                yield row
                break
    everything = [pair for several in dialogues.values() for pair in several]
    for index, question in enumerate([*dialogues["roleplay"][2:4], *dialogues["gsm8k"][6:8]]):
        for attempt in range(4000):
            rng = seeded("long-chat", 10000 * index + attempt)
            before = rng.sample([pair for pair in everything if pair != question], rng.randint(4, 14))
            messages = [message for pair in before for message in pair]
            row = {"workload": "long-chat", "messages": [*messages, question[0]]}
            if LONG_FROM <= length(row) <= LONG_TO:
                yield row
                break


def twice(dialogues: dict[str, list[list[dict[str, str]]]]) -> Iterator[Row]:
    """Two conversations each, of which the second one's answer holds much of the first one's."""

    def row(workload: str, *questions: str) -> Row:
        messages = [{"role": "user", "content": question} for question in questions]
        return {"workload": workload, "apart": True, "messages": messages}

    for index in range(4):
        rng = seeded("code-twice", index)
        _, code, names = material.program(rng, 90 + 30 * index)
        questions = [
            f"{rng.choice(RENAME).format(old=old, new=material.identifier(rng))}\n{code}"
            for old in rng.sample(names, 2)
        ]
        yield row("code-twice", *questions)
    for index in range(4):
        rng = seeded("rewrite", index)
        words = " ".join(material.sentence(rng) for _ in range(16 + 4 * index)).split(" ")
        changed = [material.word(rng) if rng.random() < 0.05 else word for word in words]
        yield row("rewrite", *(f"Repeat this text exactly:\n{' '.join(text)}" for text in (words, changed)))
    for pair in [*dialogues["roleplay"][:2], *dialogues["gsm8k"][:2]]:
        yield row("again", pair[0]["content"], pair[0]["content"])


def main() -> None:
    """File out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=paths.bundled("workloads.jsonl"))
    options = parser.parse_args()
    with Model.load(paths.bundled("tiny-target-q8_0.gguf")) as model:
        template = ChatTemplate.of(model)

        def length(row: Row) -> int:
            if "text" in row:
                return len(model.tokenize(row["text"], special=True, add_bos=model.add_bos))
            text = template.render([Message(one["role"], one["content"]) for one in row["messages"]])
            return len(model.tokenize(text, special=True, add_bos=False))

        dialogues = corpus()
        rows = [*short(dialogues), *long(dialogues, length), *twice(dialogues)]
        with options.out.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                print(row["workload"], length(row))


if __name__ == "__main__":
    main()
