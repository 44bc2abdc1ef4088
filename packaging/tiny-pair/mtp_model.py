"""A model with a multi-token-prediction layer (MTP, NextN) in plain PyTorch, in the shape llama.cpp calls `hy_v3`.

That architecture with dense layers alone: RMSNorm, grouped attention with normed queries and keys, SwiGLU. Its NextN
layer reads a token together with the state behind the token before it, and guesses what follows the token; guessing
deeper feeds its own state back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from model import Norm, rotate
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int = 4
    nextn: int = 1
    hidden: int = 128
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    feed_forward: int = 256
    vocabulary: int = 4096
    context: int = 2048
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    def as_dict(self) -> dict[str, float]:
        """For checkpoints."""
        return asdict(self)


Past = tuple[Tensor, Tensor]
"""Keys and values, (batch, heads, length, head size) each."""


class Block(nn.Module):
    """Attention, then SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.attention_norm = Norm(shape.hidden, shape.epsilon)
        self.q = nn.Linear(shape.hidden, inner, bias=False)
        self.k = nn.Linear(shape.hidden, kv, bias=False)
        self.v = nn.Linear(shape.hidden, kv, bias=False)
        self.o = nn.Linear(inner, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_size, shape.epsilon)
        self.k_norm = Norm(shape.head_size, shape.epsilon)
        self.feed_forward_norm = Norm(shape.hidden, shape.epsilon)
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Past]:
        """Queries, and the keys and values of the same rows, repeated to as many heads."""
        batch, length, _ = x.shape
        size, groups = self.shape.head_size, self.shape.heads // self.shape.kv_heads
        h = self.attention_norm(x)
        q = self.q_norm(self.q(h).view(batch, length, self.shape.heads, size)).transpose(1, 2)
        k = self.k_norm(self.k(h).view(batch, length, self.shape.kv_heads, size)).transpose(1, 2)
        v = self.v(h).view(batch, length, self.shape.kv_heads, size).transpose(1, 2)
        k = rotate(k, cos, sin).repeat_interleave(groups, dim=1)
        return rotate(q, cos, sin), (k, v.repeat_interleave(groups, dim=1))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What the layer makes of its input and the mixed values of all heads."""
        x = x + self.o(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))
        h = self.feed_forward_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """One layer over (batch, length, hidden)."""
        q, (k, v) = self.project(x, cos, sin)
        return self.finish(x, functional.scaled_dot_product_attention(q, k, v, is_causal=True))


class NextN(nn.Module):
    """The layer that guesses: a block behind a projection of (token embedding, state), and a norm of its own."""

    def __init__(self, shape: Shape) -> None:
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
        q, own = self.block.project(x, cos, sin)
        past.append(own)
        depth, length = len(past), x.shape[1]
        if depth == 1:
            mixed = functional.scaled_dot_product_attention(q, *own, is_causal=True)
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


class Mtp(nn.Module):
    """A decoder with tied embeddings. `forward` gives final hidden rows; `logits` maps them, and guessing states."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.nextn = NextN(shape)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name != "embedding":
                nn.init.normal_(weight, std=shape.hidden**-0.5 * 0.6)
                if name.endswith(("o.weight", "down.weight")):
                    nn.init.zeros_(weight)

    def angles(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions 0 to length - 1."""
        half = self.shape.head_size // 2
        rates = self.shape.rope_base ** (-torch.arange(half, device=like.device, dtype=torch.float32) / half)
        turns = torch.arange(length, device=like.device, dtype=torch.float32)[:, None] * rates
        return turns.cos().to(like.dtype), turns.sin().to(like.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of (batch, length) tokens."""
        x = functional.embedding(tokens, self.embedding)
        return x.to(torch.bfloat16) if torch.is_autocast_enabled(x.device.type) else x

    def forward(self, tokens: Tensor) -> Tensor:
        """Final normed hidden rows of (batch, length) tokens."""
        x = self.embed(tokens)
        cos, sin = self.angles(tokens.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        hidden: Tensor = self.norm(x)
        return hidden

    def guesses(self, tokens: Tensor, hidden: Tensor, depths: int) -> list[Tensor]:
        """Guessing states of every position, of each depth from 1 on; that of depth d behind position t was computed
        from the true hidden rows up to t - d and guessed states behind them."""
        embedded = self.embed(tokens)
        cos, sin = self.angles(tokens.shape[1], embedded)
        found, past, states = [], [], hidden
        for _ in range(depths):
            states = self.nextn(embedded, states, cos, sin, past)
            found.append(states)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the vocabulary for hidden rows."""
        return functional.linear(hidden, self.embedding.to(hidden.dtype))
