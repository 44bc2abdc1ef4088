"""Train a small model with a multi-token-prediction layer: the model on the shipped target's probabilities, its layer
on its own, guessing up to three tokens deep with its own states fed back.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import torch
import warm
from batches import FIRST_SHARES, Phase, phase_at
from model import Llama
from mtp_model import Mtp, MtpShape
from torch import Tensor
from train import SHARES, parser, prepare, run

PHASES = (
    Phase(0.30, 128, 16, 20, FIRST_SHARES),
    Phase(0.75, 256, 8, 70, SHARES),
    Phase(1.00, 640, 4, 180, SHARES),
)
GUESS_WEIGHTS = (0.5, 0.5, 0.5)
"""Of the depths' losses beside that of the model itself."""
DEEPEST = (1, 1, 2, 3)
"""How deep a step guesses is drawn from these: depth costs time, and the first guess matters most."""


def apart(truth: Tensor, scores: Tensor) -> Tensor:
    """KL divergence plus total variation distance of every row, which is what acceptance costs.

    Args:
        truth: log-probabilities.
        scores: logits.
    """
    found = scores.float().log_softmax(-1)
    probs = truth.exp()
    return (probs * (truth - found)).sum(-1) + 0.5 * (probs - found.exp()).abs().sum(-1)


def loss_of(model: Mtp, target: Llama, inputs: Tensor, weights: Tensor) -> Tensor:
    """The model's distance from the target, and the guesses' distances from the model."""
    chosen = weights.reshape(-1).nonzero().squeeze(1)
    marks = weights.reshape(-1)[chosen] / weights.sum()
    with torch.no_grad():
        truth = target.logits(target(inputs).reshape(-1, target.shape.hidden)[chosen]).float().log_softmax(-1)
    hidden = model(inputs)

    def scores(states: Tensor) -> Tensor:
        return model.logits(states.reshape(-1, model.shape.hidden)[chosen])

    said = scores(hidden)
    loss = (apart(truth, said) * marks).sum()
    own = said.detach().float().log_softmax(-1)
    guesses = model.guesses(inputs, hidden, random.choice(DEEPEST))
    for weight, states in zip(GUESS_WEIGHTS, guesses, strict=False):
        loss = loss + weight * (apart(own, scores(states)) * marks).sum()
    return loss


def start(target: Llama, shape: MtpShape) -> Mtp:
    """A fresh model whose embeddings are the target's, turned and cut to its width (principal components)."""
    model = Mtp(shape)
    with torch.no_grad():
        left, sizes, _ = torch.linalg.svd(target.embedding.float(), full_matrices=False)
        cut = left[:, : shape.hidden] * sizes[: shape.hidden]
        model.embedding.copy_(cut * (target.embedding.std() / cut.std()))
    return model


def main() -> None:
    """Train OUT/mtp.pt."""
    options = parser(__doc__)
    options.add_argument("--name", default="mtp")
    options.add_argument("--target", type=Path, required=True, help="the shipped target's GGUF file")
    args = options.parse_args()
    random.seed(args.seed)
    prepare(args)
    target = warm.frozen(args.target).to(args.device)
    tokenizer = warm.read_tokenizer(args.target)
    tokenizer.save(str(args.out / "tokenizer.json"))
    model = start(target, MtpShape())

    def loss(inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        del labels
        return loss_of(model, target, inputs, weights)

    run(model, args, loss, partial(phase_at, PHASES), tokenizer)


if __name__ == "__main__":
    main()
