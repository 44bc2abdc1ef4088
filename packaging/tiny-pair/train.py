"""Train the target: a time budget, a checkpoint to resume from, CPU or CUDA."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import corpus
import tokenizer as tokens
import torch
import warm
from batches import CORPUS_SHARES, FIRST_SHARES, TASK_SHARES, Feeder, Mixture, Phase, phase_at
from chat import weighted
from material import Source
from model import TARGET, Decoder, Llama
from muon import Optimiser
from tasks import TASKS
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

SHARES = {**TASK_SHARES, **CORPUS_SHARES}
PHASES = (
    Phase(0.06, 128, 32, 20, FIRST_SHARES),
    Phase(0.70, 256, 16, 70, SHARES),
    Phase(0.87, 640, 8, 180, SHARES),
    Phase(1.00, 2048, 3, 600, SHARES),
)
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
WARM_UP, DECAY_FROM = 0.01, 0.40
LONGEST_STEP = 60.0  # seconds; a machine that slept, or a paused process, does not use up the budget


def rate(done: float) -> float:
    """Warm-up, plateau, then linear decay, over the share of the time that is used up."""
    if done < WARM_UP:
        return 0.1 + 0.9 * done / WARM_UP
    return 1.0 if done < DECAY_FROM else max(0.0, (1.0 - done) / (1.0 - DECAY_FROM))


def loss_of(model: Llama, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross-entropy; rows of weight 0 are never multiplied with the vocabulary."""
    hidden = model(inputs).reshape(-1, model.shape.hidden)
    chosen = weights.reshape(-1).nonzero().squeeze(1)
    scores = model.logits(hidden[chosen]).float()
    losses = functional.cross_entropy(scores, labels.reshape(-1)[chosen], reduction="none")
    marks = weights.reshape(-1)[chosen]
    return (losses * marks).sum() / marks.sum()


@torch.no_grad()
@torch.compiler.set_stance("force_eager")  # type: ignore[untyped-decorator, unused-ignore]
def examine(
    model: Decoder, tokenizer: Tokenizer, held_out: list[corpus.Dialogue], count: int, size: int
) -> dict[str, float]:
    """Held-out loss per source, and the share of generated tasks answered exactly.

    An answer is exact if every one of its tokens is the most likely one: what greedy decoding would write.
    """
    device = model.embedding.device
    found: dict[str, float] = {}
    by_source: dict[str, list[corpus.Dialogue]] = {}
    for dialogue in held_out:
        by_source.setdefault(dialogue.source, []).append(dialogue)
    for name, dialogues in by_source.items():
        total = marks = 0.0
        for dialogue in dialogues[:count]:
            ids, weights = weighted(tokenizer, dialogue.messages, 0.0)
            ids, weights = ids[: model.shape.context], weights[: model.shape.context]
            row = torch.tensor(ids, device=device)[None]
            losses = functional.cross_entropy(model.logits(model(row[:, :-1])[0]).float(), row[0, 1:], reduction="none")
            mask = torch.tensor(weights[1:], device=device)
            total += float((losses * mask).sum())
            marks += float(mask.sum())
        found[f"loss_{name}"] = round(total / max(marks, 1.0), 3)
    for name, make in TASKS.items():
        right = 0
        for index in range(count):
            rng = random.Random(f"examine-{name}-{index}")
            example = make(rng, rng.randint(3, size), Source())
            ids, weights = weighted(
                tokenizer, [*example.messages, {"role": "assistant", "content": example.answer}], 0.0
            )
            row = torch.tensor(ids, device=device)[None]
            hits = model.logits(model(row[:, :-1])[0]).argmax(-1) == row[0, 1:]
            mask = torch.tensor(weights[1:], device=device) > 0
            answer_from = len(ids) - 1 - (len(tokenizer.encode(example.answer).ids) + 1)
            mask[:answer_from] = False
            right += bool(hits[mask].all())
        found[name] = round(right / count, 3)
    return found


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash never leaves half of one."""
    half = path.with_suffix(".half")
    torch.save(state, half)
    os.replace(half, path)


def run(
    model: Decoder, args: argparse.Namespace, loss: Loss,
    phases: Callable[[float], Phase], tokenizer: Tokenizer,
) -> None:  # fmt: skip
    """The loop itself, shared by the target's training and the draft's distillation."""
    device = torch.device(args.device)
    model.to(device)
    if args.compile:
        for block in model.blocks:
            block.compile(dynamic=False)
    optimiser = Optimiser(model)
    checkpoint = args.out / f"{args.name}.pt"
    step, seen, elapsed = 0, 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, seen, elapsed = state["step"], state["seen"], state["elapsed"]
    train, held_out = corpus.split(args.corpus)
    budget = args.minutes * 60.0
    mixture = Mixture(tokenizer, train, corpus.material_of(train), seed=args.seed * 1000 + step)
    feeder = Feeder(mixture, phases(elapsed / budget))
    log = (args.out / f"{args.name}.log").open("a")

    def note(**values: Any) -> None:
        print(json.dumps(values), file=log, flush=True)

    def keep() -> None:
        save(checkpoint, {
            "model": model.state_dict(), "optimiser": optimiser.state_dict(), "shape": model.shape.as_dict(),
            "step": step, "seen": seen, "elapsed": elapsed, "minutes": args.minutes,
        })  # fmt: skip

    examined = saved = elapsed
    last, window, shown = time.monotonic(), 0.0, time.monotonic()
    shown_seen = seen
    for batch in feeder:
        done = elapsed / budget
        if done >= 1.0:
            break
        feeder.phase = phases(done)
        with torch.autocast(device.type, torch.bfloat16):
            value = loss(batch.inputs.to(device), batch.labels.to(device), batch.weights.to(device))
        value.backward()  # type: ignore[no-untyped-call, unused-ignore]
        scale = rate(done)
        optimiser.step(args.matrix_rate * scale, args.other_rate * scale)
        window = float(value.detach()) if math.isclose(window, 0.0) else 0.95 * window + 0.05 * float(value.detach())
        step, seen = step + 1, seen + batch.inputs.numel()
        now = time.monotonic()
        elapsed, last = elapsed + min(now - last, LONGEST_STEP), now
        if step % 50 == 0:
            note(step=step, minute=round(elapsed / 60, 2), seen=seen, loss=round(window, 3),
                 speed=round((seen - shown_seen) / (now - shown)))  # fmt: skip
            shown, shown_seen = now, seen
        if elapsed - saved > args.save_every * 60:
            saved = elapsed
            keep()
        if elapsed - examined > args.examine_every * 60:
            examined = elapsed
            note(
                step=step,
                minute=round(elapsed / 60, 2),
                **examine(model, tokenizer, held_out, 16, min(60, feeder.phase.largest)),
            )
    keep()
    note(step=step, minute=round(elapsed / 60, 2), seen=seen, **examine(model, tokenizer, held_out, 40, 60))


def budgeted(description: str | None, minutes: float, threads: int) -> argparse.ArgumentParser:
    """The options of every training; its time budget and threads unless the user says otherwise."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("corpus", type=Path, help="folder with the four text files")
    options.add_argument("--out", type=Path, required=True, help="folder for checkpoints, logs and what is made")
    options.add_argument("--minutes", type=float, default=minutes, help="time budget")
    options.add_argument("--threads", type=int, default=threads)
    options.add_argument("--seed", type=int, default=1)
    return options


def prepare(args: argparse.Namespace) -> None:
    """Seed, threads and folder, as these options say."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of whatever is trained by `run`."""
    options = budgeted(description, minutes=120.0, threads=2)
    options.add_argument("--device", default="cpu")
    options.add_argument("--matrix-rate", type=float, default=0.01)
    options.add_argument("--other-rate", type=float, default=0.001)
    options.add_argument("--compile", action="store_true", help="torch.compile the blocks (needs a C++ compiler)")
    options.add_argument("--start", type=Path, help="a GGUF of this recipe whose weights to begin with")
    options.add_argument("--save-every", type=float, default=2.0, help="minutes")
    options.add_argument("--examine-every", type=float, default=5.0, help="minutes")
    return options


def main() -> None:
    """Train the target."""
    options = parser(__doc__)
    options.add_argument("--name", default="target")
    args = options.parse_args()
    prepare(args)
    path = args.out / "tokenizer.json"
    model = Llama(TARGET)
    if args.start:
        warm.read_weights(args.start, model)
        warm.read_tokenizer(args.start).save(str(path))
    if not path.exists():
        train, _ = corpus.split(args.corpus)
        tokens.learn(sample_texts(train)).save(str(path))
    run(model, args, lambda *batch: loss_of(model, *batch), partial(phase_at, PHASES), tokens.load(path))


def sample_texts(train: list[corpus.Dialogue]) -> list[str]:
    """What the tokenizer learns its merges from: the corpus, and generated tasks beside it."""
    texts = [message["content"] for dialogue in train for message in dialogue.messages]
    for name, make in TASKS.items():
        for index in range(800):
            rng = random.Random(f"tokenizer-{name}-{index}")
            example = make(rng, rng.randint(3, 60), Source())
            texts.extend(message["content"] for message in example.messages)
            texts.append(example.answer)
    return texts


if __name__ == "__main__":
    main()
