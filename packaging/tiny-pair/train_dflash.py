"""Train a DSpark or a DFlash head for a target of this recipe, on the target's own probabilities.

Half of the texts are the recipe's mixture, half what the target wrote itself (`answers.py`). Resumes from
OUT/KIND.pt; OUT/KIND.log has a JSON line for every 50 steps and every look at held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import answers
import corpus
import torch
import warm
from batches import Batch, Document, Feeder, Mixture, Phase, phase_at
from dflash_head import MASK, TABLES, BlockShape, DFlash, shape_of
from material import Source
from model import Llama
from muon import Optimiser
from passes import Sample, load, tokens_a_pass
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from train import LONGEST_STEP, SHARES, budgeted, prepare, rate, save
from train_eagle3 import look

PHASES = (Phase(0.8, 256, 4, 70, SHARES), Phase(1.0, 640, 2, 180, SHARES))
WRITTEN = 0.5
"""Share of the documents that the target wrote itself."""

TRUSTED = 0.3
"""Weight of the loss of a DSpark head's confidence."""


class Texts(Mixture):
    """The mixture, and beside it answers of the target after their prompts."""

    def __init__(self, tokenizer: Tokenizer, dialogues: list[corpus.Dialogue], source: Source, seed: int,
                 written: Sequence[answers.Answer]) -> None:  # fmt: skip
        super().__init__(tokenizer, dialogues, source, seed)
        self.written = written

    def document(self, phase: Phase) -> Document:
        """The next document, at most as long as a row."""
        while self.written and self.rng.random() < WRITTEN:
            answer = self.rng.choice(self.written)
            said = answer.tokens[1:].tolist()
            if len(answer.prompt) + len(said) <= phase.length + 1:
                return answer.prompt + said, [0.0] * len(answer.prompt) + [1.0] * len(said)
        return super().document(phase)


class Distance(torch.autograd.Function):
    """Half the KL divergence plus the total variation distance of every row, and the probability that both share.

    Both losses and their gradient are found in one go, which is several times as fast as by recorded steps.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
        """Of logits and logits, (n, vocabulary) each."""
        said, wanted = scores.float().log_softmax(-1), truth.float().log_softmax(-1)
        guess, probs = said.exp(), wanted.exp()
        divergence = (probs * wanted.sub_(said)).sum(-1)
        shared = torch.minimum(guess, probs).sum(-1)
        missing = guess * (guess < probs)
        gradient = (guess - probs).mul_(0.5).sub_(missing).addcmul_(guess, missing.sum(-1, keepdim=True))
        ctx.save_for_backward(gradient.to(scores.dtype))
        ctx.mark_non_differentiable(shared)
        return 0.5 * divergence + 1 - shared, shared

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        """The scores' gradient; the truth has none."""
        (gradient,) = ctx.saved_tensors
        return gradient * given[0][:, None].to(gradient.dtype), None


def anchors_of(weights: Tensor, count: int) -> Tensor:
    """Up to `count` places of each row after which an answer goes on, by chance; int64 (rows, count).

    Args:
        weights: (rows, length), of the token after each place.
    """
    good = weights > 0.5
    good[:, 0] = False
    places: Tensor = torch.where(good, torch.rand(weights.shape), -1.0).topk(min(count, weights.shape[1])).indices
    return places


def marks_of(weights: Tensor, places: Tensor, guesses: int, fade: float) -> tuple[Tensor, Tensor]:
    """Where each guess of each anchor is checked, and how much it counts; both (rows, anchors, guesses).

    Guess i of the anchor at place p is the token at p + 1 + i, which follows place p + i. It counts e^(-i / fade) as
    much as the first, and nothing after the end of an answer.
    """
    steps = torch.arange(guesses)
    at = places[:, :, None] + steps
    inside = at < weights.shape[1]
    at = at.clamp(max=weights.shape[1] - 1)
    found = weights.gather(1, at.flatten(1)).view(at.shape) * inside
    going = (found > 0.5).cumprod(-1)
    return at, found * going * torch.exp(-steps / fade)


def loss_of(head: DFlash, target: Llama, batch: Batch, count: int, fade: float) -> tuple[Tensor, Tensor]:
    """The loss, and the probability shared with the target by guess.

    Args:
        count: anchors a row.
        fade: see `marks_of`.
    """
    shape = head.shape
    places = anchors_of(batch.weights, count)
    at, marks = marks_of(batch.weights, places, shape.guesses, fade)
    with torch.no_grad():
        states, final = look(target, shape.layers, batch.inputs)
        chosen = (marks > 0).nonzero()
        row, guess = chosen[:, 0], chosen[:, 2]
        where = at[marks > 0]
        truth = target.logits(final[row, where])
        embedded = target.embedding[batch.inputs.gather(1, places)]
    hidden = head(states, places, embedded, target.embedding[MASK])[:, :, shape.first :][marks > 0]
    before, weight = batch.inputs[row, where], marks[marks > 0]
    weight = weight / weight.sum()
    losses, shared = Distance.apply(head.logits(hidden, target.embedding, before), truth)
    loss = (losses * weight).sum()
    if shape.rank:
        trust = head.trust(hidden, before).float()
        loss = loss + TRUSTED * functional.binary_cross_entropy_with_logits(trust, shared, weight, reduction="sum")
    sums = torch.zeros(2, shape.guesses).index_add_(1, guess, torch.stack((shared, torch.ones_like(shared))))
    return loss, sums[0] / sums[1].clamp_min(1.0)


def begin(args: argparse.Namespace, target: Llama) -> tuple[DFlash, Optimiser, dict[str, Any]]:
    """A fresh head, one with the weights of another, or the one of the checkpoint."""
    path = args.out / f"{args.kind}.pt"
    state = torch.load(path, weights_only=True) if path.exists() else {"step": 0, "elapsed": 0.0}
    head = DFlash(BlockShape(**state["shape"]) if path.exists() else shape_of(args.kind))
    optimiser = Optimiser(head, tables=TABLES)
    if path.exists():
        head.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
    elif args.start:
        own = head.state_dict()
        found = torch.load(args.start, weights_only=True)["model"]
        head.load_state_dict({**own, **{name: weight for name, weight in found.items() if name in own}})
    else:
        with torch.no_grad():
            head.norm.weight.copy_(target.norm.weight)
    return head, optimiser, state


def main() -> None:
    """Train OUT/KIND.pt."""
    options = budgeted(__doc__, minutes=35.0, threads=1)
    options.add_argument("target", type=Path, help="the target's GGUF, written by this recipe")
    options.add_argument("--kind", choices=("dspark", "dflash"), default="dspark")
    options.add_argument("--start", type=Path, help="a checkpoint of the other kind to begin with")
    options.add_argument("--answers", type=Path, help="file of answers.py; without it the mixture only")
    options.add_argument("--anchors", type=int, default=40, help="blocks that each row of 256 tokens trains")
    options.add_argument("--fade", type=float, default=4.0, help="guess i counts e^(-i/FADE) as much as the first")
    options.add_argument("--matrix-rate", type=float, default=0.015)
    options.add_argument("--other-rate", type=float, default=0.002)
    args = options.parse_args()
    prepare(args)
    target = warm.frozen(args.target)
    tokenizer = warm.read_tokenizer(args.target)
    train, _ = corpus.split(args.corpus)
    head, optimiser, state = begin(args, target)
    written = answers.load(args.answers) if args.answers else []
    texts = Texts(tokenizer, train, corpus.material_of(train), args.seed * 1000 + state["step"], written)
    samples = load(args.out / "samples.pt", target, tokenizer)
    run(args, head, optimiser, state, target, texts, samples)


def run(args: argparse.Namespace, head: DFlash, optimiser: Optimiser, state: dict[str, Any], target: Llama,
        texts: Texts, samples: list[Sample]) -> None:  # fmt: skip
    """The loop: until the time is used up."""
    step, elapsed, budget = state["step"], state["elapsed"], args.minutes * 60.0
    log = (args.out / f"{args.kind}.log").open("a")

    def note(**values: Any) -> None:
        print(json.dumps({"step": step, "minute": round(elapsed / 60, 2), **values}), file=log, flush=True)

    def keep() -> None:
        save(args.out / f"{args.kind}.pt", {
            "model": head.state_dict(), "optimiser": optimiser.state_dict(), "shape": head.shape.as_dict(),
            "step": step, "elapsed": elapsed,
        })  # fmt: skip
        note(tokens_a_pass=tokens_a_pass(head, target, samples, 5))

    feeder = Feeder(texts, phase_at(PHASES, elapsed / budget))
    last, saved, window, shares = time.monotonic(), elapsed, 0.0, torch.zeros(head.shape.guesses)
    for batch in feeder:
        done = elapsed / budget
        if done >= 1.0:
            break
        feeder.phase = phase_at(PHASES, done)
        count = args.anchors * feeder.phase.length // 256
        with torch.autocast("cpu", torch.bfloat16):
            loss, shared = loss_of(head, target, batch, count, args.fade)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.step(args.matrix_rate * rate(done), args.other_rate * rate(done))
        step, now = step + 1, time.monotonic()
        elapsed, last = elapsed + min(now - last, LONGEST_STEP), now
        kept = 0.95 if window else 0.0
        window, shares = kept * window + (1 - kept) * float(loss.detach()), kept * shares + (1 - kept) * shared
        if step % 50 == 0:
            note(loss=round(window, 3), shared=[round(float(one), 3) for one in shares])
        if elapsed - saved > 180:
            saved = elapsed
            keep()
    keep()


if __name__ == "__main__":
    main()
