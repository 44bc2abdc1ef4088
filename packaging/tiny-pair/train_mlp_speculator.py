"""Train an MLP speculator on the final states of the frozen target (Wertheimer et al. 2024).

From the last state and the token after it comes a state of its own, from that one and the next guess another, and so
on; an output matrix reads each. Weights are tied over the steps.
"""

from __future__ import annotations

import heads
import torch
from model import Llama
from torch import Tensor, nn
from torch.nn import functional

FADE = 0.85  # weight of a step's loss against the one before it
EPSILON = 1e-6


class ScaleShiftNorm(nn.Module):
    """Unit mean square, then a scale and a shift."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        return functional.rms_norm(x, (x.shape[-1],), None, EPSILON) * self.weight + self.bias


class Speculator(nn.Module):
    """The tied form: one embedding, norm and output matrix; the first projection reads the target's states."""

    def __init__(self, target: Llama, inner: int, steps: int) -> None:
        super().__init__()
        size, self.inner, self.steps = target.shape.vocabulary, inner, steps
        self.emb = nn.ModuleList([nn.Embedding(size, inner)])
        self.proj = nn.ModuleList(
            [nn.Linear(target.shape.hidden, inner, bias=False), nn.Linear(inner, inner, bias=False)]
        )
        self.ln = nn.ModuleList([ScaleShiftNorm(inner)])
        self.head = nn.ModuleList([nn.Linear(inner, size, bias=False)])
        self.state_weight = 0.5 ** (0.5 / steps)
        self.emb_weight = ((1 - self.state_weight**2) * (inner / 2)) ** 0.5
        with torch.no_grad():  # the directions in which the target's embeddings differ most
            left, spread, right = torch.linalg.svd(target.embedding, full_matrices=False)
            self.emb[0].weight.copy_(left[:, :inner] * size**0.5 * inner**-0.5)
            self.head[0].weight.copy_(left[:, :inner] * spread[:inner])
            self.proj[0].weight.copy_(right[:inner])
            self.proj[1].weight.copy_(torch.eye(inner))

    def step(self, number: int, state: Tensor, tokens: Tensor) -> Tensor:
        """The state after `tokens`: [n, inner]."""
        mixed = self.proj[min(number, 1)](state) + self.emb[0](tokens) * (self.emb_weight / self.state_weight)
        found: Tensor = functional.gelu(self.ln[0](mixed))
        return found


def loss_of(model: Speculator, states: heads.States) -> tuple[Tensor, list[Tensor]]:
    """Each step's distance to what the target says there; the tokens in between are the text's."""
    chosen = states.places(model.steps)
    row, column = chosen[:, 0], chosen[:, 1]
    total, hits = torch.zeros(()), []
    state = states.hidden[row, column].bfloat16()
    for number in range(model.steps):
        state = model.step(number, state, states.tokens[row, column + number + 1])
        value, hit = heads.agreement(model.head[0](state), states.later(chosen, number + 1))
        total = total + FADE**number * value
        hits.append(hit)
    return total, hits


def main() -> None:
    """Train and write OUT/tiny-mlp-speculator/."""
    options = heads.parser(__doc__, "mlp_speculator")
    options.add_argument("--inner", type=int, default=96)
    options.add_argument("--steps", type=int, default=4)
    args = options.parse_args()
    target, feeder = heads.begin(args)
    model = Speculator(target, args.inner, args.steps)
    heads.run(model, target, args, lambda states: loss_of(model, states), feeder)
    facts = {
        "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": target.shape.hidden, "inner_dim": args.inner,
        "model_type": "mlp_speculator", "n_candidates": 1, "n_predict": args.steps, "scale_input": False,
        "tie_weights": True, "top_k_tokens_per_head": [1] * args.steps, "vocab_size": target.shape.vocabulary,
    }  # fmt: skip
    path = args.out / "tiny-mlp-speculator" / "model.safetensors"
    heads.publish(model, args.target, path, facts, prefix="speculator.")


if __name__ == "__main__":
    main()
