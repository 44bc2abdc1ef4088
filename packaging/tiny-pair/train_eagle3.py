"""Train an EAGLE-3 head for a target of this recipe, on the target's own probabilities.

Resumes from OUT/eagle3.pt; OUT/eagle3.log has a JSON line for every 50 steps and every look at held-out text.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import corpus
import torch
import warm
from batches import Batch, Feeder, Mixture, Phase, phase_at
from chat import weighted
from eagle3_head import Eagle3, HeadShape
from model import TARGET, Llama
from muon import Optimiser
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import LONGEST_STEP, SHARES, budgeted, prepare, rate, save

PHASES = (Phase(0.5, 256, 5, 70, SHARES), Phase(0.8, 256, 9, 70, SHARES), Phase(1.0, 640, 4, 180, SHARES))
STEP_WEIGHT = 0.9
"""A later guess counts that much of the one before: it is needed only if those before it were right."""

SHORT_UNTIL = 0.35
"""Until this share of the time only two guesses in a row are trained, which is quicker."""


@torch.no_grad()
def look(target: Llama, layers: tuple[int, ...], tokens: Tensor) -> tuple[Tensor, Tensor]:
    """What goes into some layers, concatenated, and the final normed state, of (batch, n) tokens."""
    x = functional.embedding(tokens, target.embedding)
    if torch.is_autocast_enabled("cpu"):
        x = x.to(torch.bfloat16)
    cos, sin = target.angles(tokens.shape[1], x)
    seen = []
    for layer, block in enumerate(target.blocks):
        if layer in layers:
            seen.append(x)
        x = block(x, cos, sin)
    return torch.cat(seen, dim=-1), target.norm(x)


def frequent(mixture: Mixture, count: int) -> Tensor:
    """The most frequent answer tokens of the mixture, in the order of their ids."""
    counts = torch.zeros(TARGET.vocabulary)
    for _ in range(100):
        batch = mixture.batch(PHASES[0])
        counts.index_add_(0, batch.labels.reshape(-1), batch.weights.reshape(-1))
    found: Tensor = counts.topk(count).indices.sort().values
    return found


def overlaps(
    head: Eagle3, target: Llama, kept: Tensor, batch: Batch, steps: int
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """Loss; for each step the probability shared with the target, whether both agree on the likeliest, and weights."""
    with torch.no_grad():
        states, final = look(target, head.shape.layers, batch.inputs)
        said = target.logits(final).float().log_softmax(-1)
        best = said.argmax(-1)
        said = said[..., kept]
        embedded = functional.embedding(batch.inputs, target.embedding)
    loss = torch.zeros(())
    shared, same, marks = [], [], []
    for step, state in enumerate(head.unroll(states[:, :-1], embedded, steps)):
        weights = batch.weights[:, 1 + step :]
        chosen = weights > 0
        wanted, weight = said[:, 1 + step :][chosen], weights[chosen]
        guess = head.logits(state[chosen]).float().log_softmax(-1)
        probs = wanted.exp()
        mass = probs.sum(-1)
        divergence = (probs * (wanted - guess)).sum(-1) - mass * mass.clamp_min(1e-9).log()
        share = torch.minimum(probs, guess.exp()).sum(-1)
        loss = loss + STEP_WEIGHT**step * ((divergence + 1 - share) * weight).sum() / weight.sum()
        shared.append(share.detach())
        same.append(kept[guess.argmax(-1)] == best[:, 1 + step :][chosen])
        marks.append(weight)
    return loss, shared, same, marks


@torch.no_grad()
def examine(head: Eagle3, target: Llama, kept: Tensor, tokenizer: Tokenizer, held_out: list[corpus.Dialogue],
            count: int) -> dict[str, list[float]]:  # fmt: skip
    """For each guess in a row, its mean agreement with the target on held-out answers."""
    sums: dict[str, list[float]] = {"shared": [0.0] * 4, "same": [0.0] * 4, "count": [0.0] * 4}
    by_source: dict[str, list[corpus.Dialogue]] = {}
    for dialogue in held_out:
        by_source.setdefault(dialogue.source, []).append(dialogue)
    for dialogue in [one for found in by_source.values() for one in found[:count]]:
        ids, weights = weighted(tokenizer, dialogue.messages, 0.0)
        row, marks = torch.tensor(ids[:640])[None], torch.tensor(weights[:640])[None]
        if not (marks[:, 6:] > 0).any():
            continue
        batch = Batch(row[:, :-1], row[:, 1:], marks[:, 1:])
        _, shared, same, weight = overlaps(head, target, kept, batch, 4)
        for step in range(4):
            sums["shared"][step] += float(shared[step].sum())
            sums["same"][step] += float(same[step].sum())
            sums["count"][step] += len(weight[step])
    return {
        name: [round(value / max(n, 1.0), 4) for value, n in zip(sums[name], sums["count"], strict=True)]
        for name in ("shared", "same")
    }


def begin(args: argparse.Namespace, target: Llama, mixture: Mixture) -> tuple[Eagle3, Optimiser, dict[str, Any]]:
    """A fresh head, or the one of the checkpoint."""
    path = args.out / "eagle3.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        head = Eagle3(HeadShape(**state["shape"]))
        optimiser = Optimiser(head)
        head.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        return head, optimiser, state
    head = Eagle3(HeadShape())
    kept = frequent(mixture, head.shape.vocabulary)
    with torch.no_grad():
        head.embedding.copy_(target.embedding[kept])
        head.norm.weight.copy_(target.norm.weight)
    return head, Optimiser(head), {"kept": kept, "step": 0, "elapsed": 0.0}


def main() -> None:
    """Train OUT/eagle3.pt."""
    options = budgeted(__doc__, minutes=60.0, threads=2)
    options.add_argument("target", type=Path, help="the target's GGUF, written by this recipe")
    options.add_argument("--steps", type=int, default=4, help="guesses in a row that are trained")
    options.add_argument("--matrix-rate", type=float, default=0.015)
    options.add_argument("--other-rate", type=float, default=0.002)
    args = options.parse_args()
    prepare(args)
    target = warm.frozen(args.target)
    tokenizer = warm.read_tokenizer(args.target)
    train, held_out = corpus.split(args.corpus)
    mixture = Mixture(tokenizer, train, corpus.material_of(train), seed=args.seed)
    head, optimiser, state = begin(args, target, mixture)
    mixture.rng.seed(args.seed * 1000 + state["step"])
    run(args, head, optimiser, state, target, tokenizer, mixture, held_out)


def run(args: argparse.Namespace, head: Eagle3, optimiser: Optimiser, state: dict[str, Any], target: Llama,
        tokenizer: Tokenizer, mixture: Mixture, held_out: list[corpus.Dialogue]) -> None:  # fmt: skip
    """The loop: until the time is used up."""
    kept, step, elapsed, budget = state["kept"], state["step"], state["elapsed"], args.minutes * 60.0
    log = (args.out / "eagle3.log").open("a")

    def note(**values: Any) -> None:
        print(json.dumps(values), file=log, flush=True)

    def keep() -> None:
        save(args.out / "eagle3.pt", {
            "model": head.state_dict(), "optimiser": optimiser.state_dict(), "shape": head.shape.as_dict(),
            "kept": kept, "step": step, "elapsed": elapsed,
        })  # fmt: skip

    feeder = Feeder(mixture, PHASES[0])
    last, saved, examined, window = time.monotonic(), elapsed, elapsed, 0.0
    for batch in feeder:
        done = elapsed / budget
        if done >= 1.0:
            break
        feeder.phase = phase_at(PHASES, done)
        with torch.autocast("cpu", torch.bfloat16):
            loss, shared, _, _ = overlaps(head, target, kept, batch, args.steps if done > SHORT_UNTIL else 2)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step(args.matrix_rate * rate(done), args.other_rate * rate(done))
        step, now = step + 1, time.monotonic()
        elapsed, last = elapsed + min(now - last, LONGEST_STEP), now
        window = float(loss.detach()) if step == 1 else 0.95 * window + 0.05 * float(loss.detach())
        if step % 50 == 0:
            note(step=step, minute=round(elapsed / 60, 2), loss=round(window, 3),
                 shared=[round(float(one.mean()), 3) for one in shared])  # fmt: skip
        if elapsed - saved > 120:
            saved = elapsed
            keep()
        if elapsed - examined > 300:
            examined = elapsed
            note(step=step, **examine(head, target, kept, tokenizer, held_out, 15))
    keep()
    note(step=step, **examine(head, target, kept, tokenizer, held_out, 40))


if __name__ == "__main__":
    main()
