"""A model with a multi-token-prediction layer (MTP, NextN) in plain PyTorch, in the shape llama.cpp calls `hy_v3`.

That architecture with dense layers alone: RMSNorm, grouped attention with normed queries and keys, SwiGLU. Its NextN
layer reads a token together with the state after the token before it, and guesses what follows the token; guessing
deeper feeds its own state back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from model import Block, Decoder, Norm, Shape, causal
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class MtpShape(Shape):
    """The sizes of a model; its heads are wider than hidden / heads."""

    layers: int = 4
    hidden: int = 128
    feed_forward: int = 256
    nextn: int = 1
    head_size: int = 64
    normed: ClassVar[bool] = True


Past = tuple[Tensor, Tensor]
"""Keys and values, (batch, heads, length, head size) each."""


class NextN(nn.Module):
    """The layer that guesses: a block after a projection of (token embedding, state), and a norm of its own."""

    def __init__(self, shape: MtpShape) -> None:
        super().__init__()
        self.token_norm = Norm(shape.hidden, shape.epsilon)
        self.state_norm = Norm(shape.hidden, shape.epsilon)
        self.join = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.block = Block(shape)
        self.norm = Norm(shape.hidden, shape.epsilon)

    def forward(self, embedded: Tensor, states: Tensor, cos: Tensor, sin: Tensor, past: list[Past]) -> Tensor:
        """Guessing states of every position at the depth `len(past) + 1`.

        Row t reads token t and the state of row t - 1. Of a draft that has reached depth d the last d - 1 positions
        were computed from guessed states, those before from true ones: row t of depth d therefore sees the keys of
        depth 1 up to t - d + 1, those of depth i at t - d + i, and its own.

        Args:
            past: the keys and values of the depths so far; those of this one are appended.
        """
        before = functional.pad(states[:, :-1], (0, 0, 1, 0))
        x = self.join(torch.cat((self.token_norm(embedded), self.state_norm(before)), dim=-1))
        q, k, v = self.block.project(x, cos, sin)
        past.append((k, v))
        depth, length = len(past), x.shape[1]
        if depth == 1:
            mixed = causal(q, k, v)
        else:
            seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(1 - depth)
            scores = (q @ past[0][0].mT).masked_fill(~seen, -torch.inf)
            nearer = [(_behind(k, depth - i), _behind(v, depth - i)) for i, (k, v) in enumerate(past[1:], 2)]
            scores = torch.cat((scores, *((q * k).sum(-1, keepdim=True) for k, _ in nearer)), dim=-1)
            shares = (scores.float() * q.shape[-1] ** -0.5).softmax(-1).to(q.dtype)
            mixed = shares[..., :length] @ past[0][1]
            for i, (_, v) in enumerate(nearer):
                mixed = mixed + shares[..., length + i, None] * v
        state: Tensor = self.norm(self.block.finish(x, mixed))
        return state


def _behind(x: Tensor, rows: int) -> Tensor:
    """Row t of the result is row t - rows."""
    return functional.pad(x[:, :, : x.shape[2] - rows], (0, 0, rows, 0)) if rows else x


class Mtp(Decoder):
    """A decoder with the layer that guesses beside it; `logits` maps guessing states, too."""

    shape: MtpShape

    def __init__(self, shape: MtpShape) -> None:
        super().__init__(shape)
        self.nextn = NextN(shape)
        self.initialise()

    def guesses(self, tokens: Tensor, hidden: Tensor, depths: int) -> list[Tensor]:
        """Guessing states of every position, of each depth from 1 on; that of depth d after position t was computed
        from the true hidden rows up to t - d and guessed states after them."""
        embedded = self.embed(tokens)
        cos, sin = self.angles(tokens.shape[1], embedded)
        found, states = list[Tensor](), hidden
        past: list[Past] = []
        for _ in range(depths):
            states = self.nextn(embedded, states, cos, sin, past)
            found.append(states)
        return found
