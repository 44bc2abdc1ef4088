"""Measure the shipped files through llama.cpp: exact answers, held-out loss, agreement of draft and target."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import corpus
import llama_cpp
import numpy as np
import tokenizer as tokens
from chat import prompt_ids
from material import Source
from prompts import CHAT_TASKS
from tasks import TASKS, Example, chat
from tokenizers import Tokenizer

Row = np.ndarray[Any, np.dtype[np.float32]]
LONG_TASKS = ("copy", "json", "rename", "lookup")


class Runner:
    """One model: feed tokens, get the row of logits after each."""

    def __init__(self, path: Path, threads: int) -> None:
        self.model = llama_cpp.Llama(
            str(path),
            n_ctx=2048,
            n_batch=512,
            logits_all=True,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )

    def rows(self, ids: list[int]) -> Row:
        """Logits after every token of a fresh context."""
        self.model.reset()  # type: ignore[no-untyped-call, unused-ignore]
        self.model.eval(ids)
        return np.array(self.model.scores[: len(ids)])

    def write(self, prompt: list[int], most: int, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """Continue a prompt until the end token, greedily or by sampling."""
        generator = np.random.default_rng(seed)
        self.model.reset()  # type: ignore[no-untyped-call, unused-ignore]
        self.model.eval(prompt)
        out: list[int] = []
        while len(out) < most and self.model.n_tokens < 2047:
            row = np.asarray(self.model.scores[self.model.n_tokens - 1])
            if temperature > 0:
                row = row / temperature + generator.gumbel(size=row.shape)
            token = int(row.argmax())
            out.append(token)
            if token == tokens.END:
                break
            self.model.eval([token])
        return out


def held_out_example(name: str, index: int, low: int, high: int) -> Example:
    """Example number `index` of a task that training never drew."""
    rng = random.Random(f"evaluate-{name}-{low}-{index}")
    size = rng.randint(low, high)
    if name == "chat":
        return chat(rng, size, Source(), CHAT_TASKS, rng.randint(2, 5))
    return TASKS[name](rng, size, Source())


def exact(runner: Runner, tokenizer: Tokenizer, name: str, count: int, low: int, high: int) -> dict[str, Any]:
    """Share of answers that are right to the last byte, with one right and up to two wrong samples."""
    right = tried = index = length = 0
    samples: list[dict[str, str]] = []
    while tried < count:
        example = held_out_example(name, index, low, high)
        index += 1
        prompt = prompt_ids(tokenizer, example.messages)
        wanted = tokenizer.encode(example.answer).ids
        if len(prompt) + len(wanted) > 1990:
            continue
        tried += 1
        length += len(prompt)
        out = runner.write(prompt, len(wanted) + 16)
        text = tokenizer.decode([token for token in out if token != tokens.END], skip_special_tokens=False)
        good = text == example.answer and out[-1] == tokens.END
        right += good
        if sum(sample["right"] == str(good) for sample in samples) < 2:
            asked = example.messages[-1]["content"]
            samples.append({"right": str(good), "asked": asked, "wrote": text, "wanted": example.answer})
    return {"right": right / tried, "tried": tried, "prompt_tokens": round(length / tried), "samples": samples}


def log_softmax(rows: Row) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Log-probabilities in double precision."""
    wide = rows.astype(np.float64)
    wide = wide - wide.max(-1, keepdims=True)
    result: np.ndarray[Any, np.dtype[np.float64]] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return result


def held_out_loss(runner: Runner, tokenizer: Tokenizer, dialogues: list[corpus.Dialogue]) -> dict[str, float]:
    """Mean loss per answer token of a held-out source, end token included."""
    total, count = 0.0, 0
    for dialogue in dialogues:
        prompt = prompt_ids(tokenizer, dialogue.messages[:-1])
        answer = [*tokenizer.encode(dialogue.messages[-1]["content"]).ids, tokens.END]
        ids = (prompt + answer)[:2048]
        rows = log_softmax(runner.rows(ids[:-1])[len(prompt) - 1 :])
        following = ids[len(prompt) :]
        total -= float(rows[np.arange(len(following)), following].sum())
        count += len(following)
    return {"loss": total / count, "tokens": count}


def agreement(target: Runner, draft: Runner, prompts: list[list[int]], most: int) -> dict[str, Any]:
    """Chance that one draft token is accepted, on the target's own text at temperatures 0 and 1."""
    greedy: list[float] = []
    shared: list[float] = []
    coupled: list[float] = []
    sampled_argmax: list[float] = []
    noise = np.random.default_rng(7)
    for index, prompt in enumerate(prompts):
        for temperature in (0.0, 1.0):
            out = target.write(prompt, most, temperature, seed=index)
            ids = prompt + out[:-1]
            rows, guesses = (model.rows(ids)[len(prompt) - 1 :] for model in (target, draft))
            if temperature == 0.0:
                greedy.extend(rows.argmax(-1) == guesses.argmax(-1))
                continue
            target_log, draft_log = log_softmax(rows), log_softmax(guesses)
            shared.extend(np.minimum(np.exp(target_log), np.exp(draft_log)).sum(-1))
            sampled_argmax.extend(np.exp(target_log)[np.arange(len(rows)), guesses.argmax(-1)])
            for _ in range(8):
                gumbel = noise.gumbel(size=target_log.shape)
                coupled.extend((target_log + gumbel).argmax(-1) == (draft_log + gumbel).argmax(-1))
    return {"argmax_at_0": float(np.mean(greedy)), "overlap_at_1": float(np.mean(shared)),
            "coupled_at_1": float(np.mean(coupled)), "argmax_draft_at_1": float(np.mean(sampled_argmax)),
            "positions_at_0": len(greedy), "positions_at_1": len(shared)}  # fmt: skip


def main() -> None:
    """Print and write all numbers as JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("corpus", type=Path)
    options.add_argument("tokenizer", type=Path)
    options.add_argument("target", type=Path)
    options.add_argument("draft", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--count", type=int, default=100, help="examples per task")
    options.add_argument("--long-count", type=int, default=30, help="long examples per task")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--skip-agreement", action="store_true")
    options.add_argument("--skip-exact", action="store_true")
    args = options.parse_args()
    tokenizer = tokens.load(args.tokenizer)
    target = Runner(args.target, args.threads)
    report: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}

    def keep(key: str, value: dict[str, Any]) -> None:
        report[key] = value
        print(key, {name: item for name, item in value.items() if name != "samples"}, flush=True)
        args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8")

    _, held_out = corpus.split(args.corpus)
    mine = {name: [item for item in held_out if item.source == name] for name in corpus.FILES}
    if not args.skip_exact:
        for name in (*TASKS, "chat"):
            keep(f"exact {name}", exact(target, tokenizer, name, args.count, 3, 60))
        for name in LONG_TASKS:
            keep(f"exact long {name}", exact(target, tokenizer, name, args.long_count, 150, 450))
        for name, dialogues in mine.items():
            keep(f"loss {name}", held_out_loss(target, tokenizer, dialogues))
    if args.skip_agreement:
        return
    draft = Runner(args.draft, args.threads)
    for name in (*TASKS, "chat"):
        prompts = [prompt_ids(tokenizer, held_out_example(name, index, 3, 60).messages) for index in range(20)]
        keep(f"agreement {name}", agreement(target, draft, prompts, 120))
    for name, dialogues in mine.items():
        prompts = [prompt_ids(tokenizer, item.messages[:-1])[-1500:] for item in dialogues[:15]]
        keep(f"agreement {name}", agreement(target, draft, prompts, 120))


if __name__ == "__main__":
    main()
