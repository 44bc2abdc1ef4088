"""What the trainings of Medusa heads and of the MLP speculator share: states of the frozen target, the loop, export."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import answers
import corpus
import numpy as np
import torch
import warm
from batches import Feeder, Mixture, Phase
from model import Llama
from torch import Tensor, nn
from train import LONGEST_STEP, SHARES, budgeted, prepare, rate, save

PHASE = Phase(1.0, 256, 10, 70, SHARES)
POOL = 200  # batches that are kept and seen again; a batch of states costs more than a step on it
LIKELY = 16  # tokens of the target's distribution that are kept
PLACES = 768  # that a step learns from


@dataclass(frozen=True)
class States:
    """Rows of text with what the target computed for them."""

    tokens: Tensor  # int64[rows, length]
    hidden: Tensor  # float16[rows, length, hidden]: the final normed state of every token
    weights: Tensor  # float32[rows, length]: of the token AFTER each
    ids: Tensor  # int64[rows, length, LIKELY]: the most likely tokens after each
    probs: Tensor  # float32[rows, length, LIKELY]

    def later(self, chosen: Tensor, ahead: int) -> tuple[Tensor, Tensor, Tensor]:
        """ids, probs and weights after the places `ahead` of the chosen ones, which are [n, 2] rows and columns."""
        row, column = chosen[:, 0], chosen[:, 1] + ahead
        return self.ids[row, column], self.probs[row, column], self.weights[row, column]

    def places(self, ahead: int) -> Tensor:
        """int64[n, 2]: some places from which all of the next `ahead` tokens count."""
        length = self.tokens.shape[1] - ahead
        good = torch.stack([self.weights[:, step : step + length] > 0 for step in range(1, ahead + 1)]).all(0).nonzero()
        return good[torch.randperm(len(good))[:PLACES]]


def states_of(target: Llama, tokens: Tensor, hidden: Tensor, weights: Tensor) -> States:
    """With the target's distributions."""
    parts = [target.logits(row.bfloat16()).float().softmax(-1).topk(LIKELY) for row in hidden]
    return States(tokens, hidden, weights, torch.stack([part.indices for part in parts]),
                  torch.stack([part.values for part in parts]))  # fmt: skip


class Pool:
    """Batches of states: texts of the mixture, and answers that the target wrote itself; each is used several times."""

    def __init__(self, target: Llama, feeder: Feeder, written: list[answers.Answer], fresh: float, seed: int) -> None:
        self.target, self.fresh, self.rng = target, fresh, random.Random(seed)
        self.feeder = iter(feeder)
        self.kept: list[States] = []
        with torch.no_grad():
            self.own = list(self._packed(written))

    def _packed(self, written: list[answers.Answer]) -> Iterator[States]:
        """Answers as rows of one length; an answer's last token has no state and is not predicted from."""
        length = answers.MOST
        for start in range(0, len(written) - 31, 32):
            part = written[start : start + 32]
            tokens = torch.zeros(len(part), length, dtype=torch.long)
            hidden = torch.zeros(len(part), length, self.target.shape.hidden, dtype=torch.float16)
            weights = torch.zeros(len(part), length)
            for row, answer in enumerate(part):
                count = len(answer.states)
                tokens[row, :count], hidden[row, :count] = answer.tokens[:count], answer.states
                weights[row, : count - 1] = 1.0
            yield states_of(self.target, tokens, hidden, weights)

    @torch.no_grad()
    def _new(self) -> States:
        batch = next(self.feeder)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.target(batch.inputs)
        # A token counts if it is the assistant's; the state before it and the one after it are then both there.
        return states_of(self.target, batch.inputs, hidden.half(), batch.weights)

    def __iter__(self) -> Iterator[States]:
        while True:
            if self.own and self.rng.random() < 0.6:
                yield self.rng.choice(self.own)
            elif len(self.kept) < 8 or self.rng.random() < self.fresh:
                found = self._new()
                if len(self.kept) < POOL:
                    self.kept.append(found)
                else:
                    self.kept[self.rng.randrange(POOL)] = found
                yield found
            else:
                yield self.rng.choice(self.kept)


def agreement(scores: Tensor, wanted: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The loss of guesses, and the share that is the target's most likely token.

    Args:
        scores: float[n, vocabulary] of a head.
        wanted: of `States.later`.

    Returns:
        Weighted means: KL(target || head) plus total variation distance over the likely tokens; top-1 agreement.
    """
    ids, probs, marks = wanted
    scores = scores.float()
    found = scores.gather(1, ids) - scores.logsumexp(-1, keepdim=True)
    loss = (probs * (probs.clamp(min=1e-6).log() - found)).sum(-1) + 0.5 * (probs - found.exp()).abs().sum(-1)
    hits = (scores.detach().argmax(-1) == ids[:, 0]).float()
    return (loss * marks).sum() / marks.sum(), (hits * marks).sum() / marks.sum()


Loss = Callable[[States], tuple[Tensor, list[Tensor]]]
"""Loss and the agreements by depth."""


def run(model: nn.Module, target: Llama, args: argparse.Namespace, loss: Loss, feeder: Feeder) -> None:
    """Trains until the time is used up; a checkpoint is taken up again."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)
    checkpoint: Path = args.out / f"{args.name}.pt"
    step, elapsed = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, elapsed = state["step"], state["elapsed"]
    written = answers.load(args.answers) if args.answers else []
    pool = Pool(target, feeder, written, args.fresh, args.seed + step)

    def keep() -> None:
        save(checkpoint, {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step,
                          "elapsed": elapsed})  # fmt: skip

    last = saved = time.monotonic()
    means: list[float] = []
    with (args.out / f"{args.name}.log").open("a") as log:
        for states in pool:
            done = elapsed / (60.0 * args.minutes)
            if done >= 1.0:
                break
            with torch.autocast("cpu", torch.bfloat16):
                value, hits = loss(states)
            value.backward()  # type: ignore[no-untyped-call, unused-ignore]
            for group in optimiser.param_groups:
                group["lr"] = args.rate * rate(done)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            now = time.monotonic()
            elapsed, last = elapsed + min(now - last, LONGEST_STEP), now
            found = [float(value.detach()), *map(float, hits)]
            means = [0.97 * old + 0.03 * new for old, new in zip(means, found, strict=True)] if means else found
            if step % 20 == 0:
                told = {"step": step, "minute": round(elapsed / 60, 2), "loss": round(means[0], 3),
                        "top1": [round(item, 3) for item in means[1:]]}  # fmt: skip
                print(json.dumps(told), file=log, flush=True)
            if now - saved > 60 * args.save_every:
                saved = now
                keep()
    keep()


def parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """The options that both trainings share."""
    options = budgeted(description, minutes=40.0, threads=1)
    options.add_argument("--target", type=Path, default=answers.TARGET_FILE, help="GGUF of this recipe")
    options.add_argument("--answers", type=Path, help="file of answers.py, to train on beside the mixture")
    options.add_argument("--name", default=name)
    options.add_argument("--rate", type=float, default=1e-3)
    options.add_argument("--fresh", type=float, default=0.15, help="share of the mixture's batches that are new")
    options.add_argument("--save-every", type=float, default=2.0, help="minutes")
    return options


def begin(args: argparse.Namespace) -> tuple[Llama, Feeder]:
    """The frozen target and the texts."""
    prepare(args)
    target = warm.frozen(args.target)
    train, _ = corpus.split(args.corpus)
    mixture = Mixture(warm.read_tokenizer(args.target), train, corpus.material_of(train), args.seed * 1000)
    return target, Feeder(mixture, PHASE)


def sha256(path: Path) -> str:
    """Of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def rounded(weight: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """A matrix in 8 bits, in the form of compressed-tensors: int8[rows, columns] and a float32[rows, 1] scale."""
    found = weight.detach().float().numpy()
    scale = np.maximum(np.abs(found).max(1, keepdims=True), 1e-12) / np.float32(127)
    return {"": np.rint(found / scale).astype(np.int8), "_scale": scale.astype(np.float32)}


def publish(made: nn.Module, target: Path, path: Path, facts: dict[str, Any], prefix: str = "") -> None:
    """A head with its matrices in 8 bits, and config.json beside it; both name the target's file.

    Args:
        made: whose tensors are named as the method publishes them, but for `prefix`.
        path: the safetensors file; its folder is made.
        facts: for config.json.
    """
    digest = sha256(target)
    told = json.dumps({**facts, "target_sha256": digest}, indent=2, sort_keys=True)
    path.parent.mkdir(exist_ok=True)
    (path.parent / "config.json").write_text(told + "\n")
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for name, weight in made.state_dict().items():
        if weight.ndim == 1:
            tensors[prefix + name] = weight.numpy()
        else:
            tensors |= {prefix + name + end: array for end, array in rounded(weight).items()}
    write(path, tensors, {"format": "pt", "target_sha256": digest})


KINDS = {"int8": "I8", "float32": "F32", "float16": "F16"}


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]], facts: dict[str, str]) -> None:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": KINDS[str(tensor.dtype)], "shape": list(tensor.shape), "data_offsets": [start, end]
        }  # fmt: skip
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())
