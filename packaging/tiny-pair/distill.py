"""Train the draft against the target's probabilities, on the same mixture of chats."""

from __future__ import annotations

from functools import partial

import tokenizer as tokens
import torch
import warm
from batches import FIRST_SHARES, Phase, phase_at
from model import DRAFT, Llama, Shape
from torch import Tensor
from train import SHARES, parser, prepare, run

PHASES = (
    Phase(0.12, 128, 32, 20, FIRST_SHARES),
    Phase(0.60, 256, 16, 70, SHARES),
    Phase(0.87, 640, 8, 180, SHARES),
    Phase(1.00, 2048, 3, 600, SHARES),
)


def loss_of(draft: Llama, target: Llama, distance_weight: float, inputs: Tensor, weights: Tensor) -> Tensor:
    """KL(target || draft) plus a share of their total variation distance, which is what acceptance costs."""
    chosen = weights.reshape(-1).nonzero().squeeze(1)
    marks = weights.reshape(-1)[chosen]
    with torch.no_grad():
        hidden = target(inputs).reshape(-1, target.shape.hidden)
        target_log = target.logits(hidden[chosen]).float().log_softmax(-1)
        target_probs = target_log.exp()
    hidden = draft(inputs).reshape(-1, draft.shape.hidden)
    draft_log = draft.logits(hidden[chosen]).float().log_softmax(-1)
    divergence = (target_probs * (target_log - draft_log)).sum(-1)
    distance = 0.5 * (target_probs - draft_log.exp()).abs().sum(-1)
    return ((divergence + distance_weight * distance) * marks).sum() / marks.sum()


def start(target: Llama) -> Llama:
    """A fresh draft that begins with the target's embedding and final norm."""
    draft = Llama(DRAFT)
    with torch.no_grad():
        draft.embedding.copy_(target.embedding)
        draft.norm.weight.copy_(target.norm.weight)
    return draft


def main() -> None:
    """Distil the draft from OUT/target.pt."""
    options = parser(__doc__)
    options.add_argument("--name", default="draft")
    options.add_argument("--distance-weight", type=float, default=1.0)
    args = options.parse_args()
    prepare(args)
    state = torch.load(args.out / "target.pt", map_location=args.device, weights_only=True)
    target = Llama(Shape(**state["shape"])).to(args.device)
    target.load_state_dict(state["model"])
    target.requires_grad_(False)
    if args.compile:
        for block in target.blocks:
            block.compile(dynamic=False)
    draft = start(target)
    if args.start:
        warm.read_weights(args.start, draft)

    def loss(inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        del labels
        return loss_of(draft, target, args.distance_weight, inputs, weights)

    run(draft, args, loss, partial(phase_at, PHASES), tokens.load(args.out / "tokenizer.json"))


if __name__ == "__main__":
    main()
