"""Write the held-out prompts that `localspec verify` and the tests run on."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import corpus
import tokenizer as tokens
from chat import prompt_ids
from material import Source
from tasks import TASKS, Example, chat
from tokenizers import Tokenizer

LONG = ("copy", "json", "rename", "lookup", "chat")
LONG_FROM, LONG_TO = 600, 1700
CHAT_TASKS = [name for name in TASKS if name != "tool"]


def generated(name: str, seed: str, size: int) -> Example:
    """One held-out example: training draws from one generator, these are seeded by name."""
    rng = random.Random(f"prompts-{seed}")
    if name == "chat":
        return chat(rng, size, Source(), CHAT_TASKS, rng.randint(2, 3 if size < 100 else 8))
    return TASKS[name](rng, size, Source())


def short_prompts() -> Iterator[Example]:
    """Two of every task."""
    for name in (*TASKS, "chat"):
        for index, size in enumerate((10, 40)):
            yield generated(name, f"{name}-short-{index}", size)


def long_prompts(tokenizer: Tokenizer, each: int) -> Iterator[Example]:
    """Prompts of 600 to 1,700 tokens, spread evenly."""
    for name in LONG:
        for index in range(each):
            wanted = LONG_FROM + 40 + (LONG_TO - LONG_FROM - 140) * index // max(1, each - 1)
            best: Example | None = None
            gap = 10**9
            for attempt in range(60):
                size = random.Random(f"{name}-{index}-{attempt}").randint(200, 1400)
                example = generated(name, f"{name}-long-{index}-{attempt}", size)
                length = len(prompt_ids(tokenizer, example.messages))
                if LONG_FROM <= length <= LONG_TO and abs(length - wanted) < gap:
                    best, gap = example, abs(length - wanted)
            if best is not None:
                yield best


def corpus_prompts(held_out: list[corpus.Dialogue]) -> Iterator[Example]:
    """Two short prompts of each source, and one long conversation of several held-out entries."""
    for name in corpus.FILES:
        mine = [dialogue.messages for dialogue in held_out if dialogue.source == name]
        for messages in mine[:2]:
            yield Example(name, messages[:-1], messages[-1]["content"])
        several = [message for messages in mine[2:] for message in messages]
        total, end = 0, 0
        while total < 2800 or end % 2 == 0:
            total += len(several[end]["content"])
            end += 1
        yield Example(name, several[:end], several[end]["content"])


def main() -> None:
    """Write prompts.jsonl."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", type=Path)
    options.add_argument("tokenizer", type=Path)
    options.add_argument("out", type=Path)
    args = options.parse_args()
    tokenizer = tokens.load(args.tokenizer)
    _, held_out = corpus.split(args.corpus)
    examples = [*short_prompts(), *corpus_prompts(held_out), *long_prompts(tokenizer, 5)]
    lengths = [len(prompt_ids(tokenizer, example.messages)) for example in examples]
    with args.out.open("w", encoding="utf-8") as file:
        for index, (example, length) in enumerate(zip(examples, lengths, strict=True)):
            row = {"id": f"{example.task}-{index:02}", "task": example.task, "messages": example.messages,
                   "answer": example.answer}  # fmt: skip
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(row["id"], length)
    inside = sum(LONG_FROM <= length <= LONG_TO for length in lengths)
    print(f"{len(examples)} prompts, {inside} of {LONG_FROM} to {LONG_TO} tokens, longest {max(lengths)}")


if __name__ == "__main__":
    main()
