"""Train Medusa heads on the final states of the frozen target (Cai et al. 2024, Medusa-1).

Head d reads the state of the last evaluated token and guesses the token d + 2 places after it: a residual block
(x + SiLU(Wx + b)), then an output matrix of its own, which begins as the target's.
"""

from __future__ import annotations

import heads
import torch
from model import Llama
from torch import Tensor, nn
from torch.nn import functional

FADE = 0.8  # weight of a head's loss against the one before it


class ResBlock(nn.Module):
    """A residual block that begins as nothing."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        found: Tensor = x + functional.silu(self.linear(x))
        return found


def medusa(target: Llama, count: int, layers: int) -> nn.ModuleList:
    """Heads in the published layout: "0.0.linear.weight", "0.0.linear.bias", "0.1.weight", "1.0.linear.weight" ..."""
    made = nn.ModuleList()
    for _ in range(count):
        out = nn.Linear(target.shape.hidden, target.shape.vocabulary, bias=False)
        with torch.no_grad():
            out.weight.copy_(target.embedding)
        made.append(nn.Sequential(*(ResBlock(target.shape.hidden) for _ in range(layers)), out))
    return made


def loss_of(made: nn.ModuleList, states: heads.States) -> tuple[Tensor, list[Tensor]]:
    """Each head's distance to what the target says there: from the state at t to the one d + 1 places after it."""
    chosen = states.places(len(made))
    here = states.hidden[chosen[:, 0], chosen[:, 1]].bfloat16()
    total, hits = torch.zeros(()), []
    for depth, head in enumerate(made):
        value, hit = heads.agreement(head(here), states.later(chosen, depth + 1))
        total = total + FADE**depth * value
        hits.append(hit)
    return total, hits


def main() -> None:
    """Train and write OUT/tiny-medusa/."""
    options = heads.parser(__doc__, "medusa")
    options.add_argument("--heads", type=int, default=2)
    options.add_argument("--layers", type=int, default=1)
    args = options.parse_args()
    target, feeder = heads.begin(args)
    made = medusa(target, args.heads, args.layers)
    heads.run(made, target, args, lambda states: loss_of(made, states), feeder)
    facts = {
        "base_model_name_or_path": args.target.stem, "hidden_size": target.shape.hidden, "medusa_num_heads": args.heads,
        "medusa_num_layers": args.layers, "vocab_size": target.shape.vocabulary,
    }  # fmt: skip
    heads.publish(made, args.target, args.out / "tiny-medusa" / "medusa_lm_head.safetensors", facts)


if __name__ == "__main__":
    main()
