"""Adapt the draft to guess K tokens in one pass (PARD, arXiv 2504.18583), on the target's probabilities.

After the last token stand K - 1 mask tokens, all the same one; the row of the last token predicts the next token and
the row of mask j the one j later. In training every such group of masks stands beside the real tokens of the row, sees
the tokens up to its own last one and the masks before it in its group, and nothing else sees it: what one causal pass
over history and masks computes. Deeper masks are kept for fewer and fewer places (conditional drop token), a mask only
where the ones before it in its group are kept.

The extra layer begins as nothing (its outputs are zero) on top of the draft's own. The last share of the time trains
through the rounding of Q4_0, which is what is shipped.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizer as tokens
import torch
import warm
from batches import Phase, phase_at
from export import quantise, write_f16
from model import DRAFT, Llama, causal
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import linear, pad
from train import SHARES, parser, prepare, run

DATA = Path(__file__).resolve().parents[2] / "localspec" / "data"
MASK = tokens.SPECIALS.index("<|mask|>")
KEEP, KEEP_LEAST = 0.65, 0.15
"""Of the places that keep mask j, this share keeps mask j + 1, down to the second."""
ROUNDED_FROM = 0.7
PHASES = (
    Phase(0.85, 256, 3, 70, SHARES),
    Phase(1.00, 640, 1, 180, SHARES),
)


def kept(weights: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Which masks stand beside a batch of rows.

    Args:
        weights: (rows, length), above 0 where the next token counts.
        depth: K.

    Returns:
        Two (rows, masks) tensors: the place of the token before the group, and j from 1; j = 0 is padding.
    """
    rows, length = weights.shape
    luck = torch.rand(rows, length)
    counts = weights > 0
    steps = torch.zeros(rows, length, depth, dtype=torch.bool)
    going = counts.clone()
    for j in range(1, depth):
        later = torch.zeros_like(counts)
        later[:, : length - j] = counts[:, j:]
        going = going & later & (luck < max(KEEP**j, KEEP_LEAST))
        steps[:, :, j] = going
    most = int(steps.sum((1, 2)).max())
    places = torch.zeros(rows, most, dtype=torch.long)
    depths = torch.zeros(rows, most, dtype=torch.long)
    for row in range(rows):
        found = steps[row].nonzero()
        places[row, : len(found)] = found[:, 0]
        depths[row, : len(found)] = found[:, 1]
    return places, depths


class Sight:
    """Attention of rows with masks after them, as if each group of masks stood alone after its own token."""

    def __init__(self, length: int, places: Tensor, depths: Tensor, depth: int) -> None:
        self.length, self.most = length, depth - 1
        self.unseen = (torch.arange(length) > places[:, :, None])[:, None]
        # A group's masks stand one after the other: one of depth j sees itself and the j - 1 before it.
        back = torch.arange(self.most - 1, -1, -1)
        self.apart = (back >= depths[:, :, None].clamp(min=1))[:, None]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `model.Attend`."""
        here = self.length
        k_real, v_real = k[:, :, :here], v[:, :, :here]
        real = causal(q[:, :, :here], k_real, v_real)
        masks = q[:, :, here:] * q.shape[-1] ** -0.5
        far = (masks @ k_real.mT).masked_fill(self.unseen, -torch.inf)
        near = (masks[..., None] * self._before(k)).sum(-2).masked_fill(self.apart, -torch.inf)
        shares = torch.cat((far, near), -1).softmax(-1).to(v.dtype)
        mixed = shares[..., :here] @ v_real + (shares[..., None, here:] * self._before(v)).sum(-1)
        return torch.cat((real, mixed), 2)

    def _before(self, x: Tensor) -> Tensor:
        """(batch, heads, masks, head size, depth - 1): of each mask those before it, itself last."""
        return pad(x[:, :, self.length :], (0, 0, self.most - 1, 0)).unfold(2, self.most, 1)


def rounded(weight: Tensor) -> Tensor:
    """What Q4_0 makes of a matrix; gradients pass through."""
    blocks = weight.detach().reshape(-1, 32)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = largest / -8
    steps = torch.where(scale == 0, torch.zeros_like(blocks), blocks / scale)
    whole = (steps + 8.5).floor().clamp(0, 15) - 8
    near = (whole * scale.half().float()).reshape(weight.shape)
    return weight + (near - weight.detach())


def start(path: Path, layers: int) -> Llama:
    """The draft, with layers that do nothing yet on top."""
    shipped = Llama(DRAFT)
    warm.read_weights(path, shipped)
    model = Llama(replace(DRAFT, layers=layers))
    model.load_state_dict(shipped.state_dict(), strict=False)
    with torch.no_grad():  # never seen in training so far: it begins as nothing in particular
        model.embedding[MASK] = model.embedding[len(tokens.SPECIALS) :].mean(0)
    return model


class Divergence(torch.autograd.Function):
    """KL(target || draft) plus a share of their total variation distance, of rows of scores; its gradient comes with
    the value, a few rows at a time, as all of them as probabilities would not fit a processor's caches."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target_log: Tensor, taught: Tensor, marks: Tensor, share: float) -> Tensor:
        """`taught`: the row of `target_log` for each of `scores`; `marks`: its weight."""
        total = torch.zeros(())
        slope = torch.empty_like(scores)
        for start in range(0, len(scores), 256):
            part = slice(start, start + 256)
            wanted_log = target_log[taught[part]]
            found_log = scores[part].float().log_softmax(-1)
            found, wanted = found_log.exp(), wanted_log.exp()
            mark = marks[part, None]
            difference = found - wanted
            total += ((wanted_log - found_log).mul_(wanted).sum(-1, keepdim=True) * mark).sum()
            total += 0.5 * share * (difference.abs().sum(-1, keepdim=True) * mark).sum()
            side = difference.sign().mul_(0.5 * share).mul_(found)
            difference += side - found.mul_(side.sum(-1, keepdim=True))
            slope[part] = difference.mul_(mark)
        ctx.save_for_backward(slope.div_(marks.sum()))
        return total / marks.sum()

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Of the scores only."""
        (slope,) = ctx.saved_tensors
        return slope * above.to(slope.dtype), None, None, None, None


class Loss:
    """KL(target || draft) plus a share of their total variation distance, over all places and depths."""

    def __init__(self, draft: Llama, target: Llama, depth: int, distance_weight: float) -> None:
        self.draft, self.target = draft, target
        self.depth, self.distance_weight = depth, distance_weight
        self.rounding = False

    def __call__(self, inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The mean over everything that is predicted, weighted as its token is."""
        del labels
        rows, length = inputs.shape
        places, depths = kept(weights, self.depth)
        everything = torch.cat((inputs, torch.full_like(places, MASK)), 1)
        positions = torch.cat((torch.arange(length).expand(rows, length), places + depths), 1)
        predicted = positions.clone()  # the place whose next token a row predicts
        marks = weights.gather(1, predicted)
        marks[:, length:][depths == 0] = 0.0
        named = {
            name: rounded(weight) if self.rounding and weight.ndim == 2 else weight
            for name, weight in self.draft.named_parameters()
        }
        sight = Sight(length, places, depths, self.depth)
        hidden = functional_call(self.draft, named, (everything, positions, sight))
        row, column = (marks > 0).nonzero(as_tuple=True)
        scores = linear(hidden[row, column], named["embedding"].to(hidden.dtype))
        with torch.no_grad():
            taught = (weights > 0).nonzero()
            where = torch.zeros(rows, length, dtype=torch.long)
            where[taught[:, 0], taught[:, 1]] = torch.arange(len(taught))
            states = self.target(inputs)[taught[:, 0], taught[:, 1]]
            target_log = self.target.logits(states).float().log_softmax(-1)
        value: Tensor = Divergence.apply(
            scores, target_log, where[row, predicted[row, column]], marks[row, column], self.distance_weight
        )
        return value


def export(checkpoint: Path, args: argparse.Namespace) -> None:
    """The checkpoint as a GGUF whose name says that it is PARD."""
    tokenizer, f16 = args.out / "tokenizer.json", args.out / f"{args.name}-f16.gguf"
    warm.read_tokenizer(args.draft).save(str(tokenizer))
    target = hashlib.sha256(args.target.read_bytes()).hexdigest()
    write_f16(checkpoint, tokenizer, f16, "localspec tiny PARD", {"localspec.target_sha256": target})
    quantise(f16, args.export, args.kind, pure=True)


def main() -> None:
    """Adapt the shipped draft to the shipped target."""
    options = parser(__doc__)
    options.set_defaults(matrix_rate=0.005, other_rate=0.0008, examine_every=1000.0)
    options.add_argument("--name", default="pard")
    options.add_argument("--target", type=Path, default=DATA / "tiny-target-q8_0.gguf")
    options.add_argument("--draft", type=Path, default=DATA / "tiny-draft-q8_0.gguf")
    options.add_argument("--depth", type=int, default=8, help="tokens guessed in one pass")
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--distance-weight", type=float, default=1.0)
    options.add_argument("--export", type=Path, help="train no more, write the last checkpoint as GGUF")
    options.add_argument("--kind", default="Q4_0", help="number format of that file")
    args = options.parse_args()
    prepare(args)
    if args.export:
        export(args.out / f"{args.name}.pt", args)
        return
    random.seed(args.seed)
    target = warm.frozen(args.target)
    draft = start(args.draft, args.layers)
    loss = Loss(draft, target, args.depth, args.distance_weight)

    def phase(done: float) -> Phase:
        loss.rounding = done >= ROUNDED_FROM
        return phase_at(PHASES, done)

    run(draft, args, loss, phase, warm.read_tokenizer(args.draft))


if __name__ == "__main__":
    main()
