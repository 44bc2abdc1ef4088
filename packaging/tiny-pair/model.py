"""The llama architecture in plain PyTorch, small enough to read in one sitting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 768
    vocabulary: int = 4096
    context: int = 2048
    rope_base: float = 10000.0
    epsilon: float = 1e-5
    normed: ClassVar[bool] = False
    """Whether the queries and keys of each head go through a norm."""

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden // self.heads

    def as_dict(self) -> dict[str, float]:
        """For checkpoints."""
        return asdict(self)


TARGET = Shape(layers=6, feed_forward=768)
DRAFT = Shape(layers=2, feed_forward=256)
# Our names of a layer's tensors and GGUF's.
LAYER_TENSORS = {
    "attention_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
    "feed_forward_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Scale every row to unit mean square."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


def angles(size: int, base: float, length: int, like: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """Cosines and sines of `length` positions from `first` on, for heads of that size."""
    half = size // 2
    rates = base ** (-torch.arange(half, device=like.device, dtype=torch.float32) / half)
    turns = torch.arange(first, first + length, device=like.device, dtype=torch.float32)[:, None] * rates
    return turns.cos().to(like.dtype), turns.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on pairs (i, i + half)."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values (batch, heads, length, head size) to what attention mixes of the values."""


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Everyone sees what is before it, and itself."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Layer(nn.Module):
    """What every decoder layer ends with. A derived class makes the parts: their order is that of the random
    numbers they begin with, and of the optimiser's state."""

    o: nn.Linear
    feed_forward_norm: Norm
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What the layer makes of its input and the mixed values of all heads: SwiGLU after the attention's output."""
        x = x + self.o(mixed.transpose(1, 2).reshape(*x.shape[:2], -1))
        h = self.feed_forward_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


class Block(Layer):
    """Attention with grouped keys and values, then SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.attention_norm = Norm(shape.hidden, shape.epsilon)
        self.q = nn.Linear(shape.hidden, inner, bias=False)
        self.k = nn.Linear(shape.hidden, kv, bias=False)
        self.v = nn.Linear(shape.hidden, kv, bias=False)
        self.o = nn.Linear(inner, shape.hidden, bias=False)
        self.q_norm = Norm(shape.head_size, shape.epsilon) if shape.normed else nn.Identity()
        self.k_norm = Norm(shape.head_size, shape.epsilon) if shape.normed else nn.Identity()
        self.feed_forward_norm = Norm(shape.hidden, shape.epsilon)
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, and the keys and values of the same rows, repeated to as many heads."""
        batch, length, _ = x.shape
        size, groups = self.shape.head_size, self.shape.heads // self.shape.kv_heads
        h = self.attention_norm(x)
        q = self.q_norm(self.q(h).view(batch, length, self.shape.heads, size)).transpose(1, 2)
        k = self.k_norm(self.k(h).view(batch, length, self.shape.kv_heads, size)).transpose(1, 2)
        v = self.v(h).view(batch, length, self.shape.kv_heads, size).transpose(1, 2)
        k = rotate(k, cos, sin).repeat_interleave(groups, dim=1)
        return rotate(q, cos, sin), k, v.repeat_interleave(groups, dim=1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend = causal) -> Tensor:
        """One layer over (batch, length, hidden)."""
        return self.finish(x, attend(*self.project(x, cos, sin)))


class Decoder(nn.Module):
    """Blocks between tied embeddings. `forward` gives final hidden rows; `logits` maps them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)

    def initialise(self) -> None:
        """Random matrices; those whose result is added to a layer's input begin as nothing."""
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name != "embedding":
                nn.init.normal_(weight, std=self.shape.hidden**-0.5 * 0.6)
                if name.endswith(("o.weight", "down.weight")):
                    nn.init.zeros_(weight)

    def angles(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions 0 to length - 1."""
        return angles(self.shape.head_size, self.shape.rope_base, length, like)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings of (batch, length) tokens."""
        x = functional.embedding(tokens, self.embedding)
        return x.to(torch.bfloat16) if torch.is_autocast_enabled(x.device.type) else x

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attend: Attend = causal) -> Tensor:
        """Final normed hidden rows of (batch, length) tokens.

        `positions` (batch, length) and `attend` are for rows that do not stand one after the other.
        """
        x = self.embed(tokens)
        cos, sin = self.angles(tokens.shape[1] if positions is None else int(positions.max()) + 1, x)
        if positions is not None:
            cos, sin = cos[positions][:, None], sin[positions][:, None]
        for block in self.blocks:
            x = block(x, cos, sin, attend)
        hidden: Tensor = self.norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the vocabulary for hidden rows."""
        return functional.linear(hidden, self.embedding.to(hidden.dtype))


class Llama(Decoder):
    """The architecture of the target and the draft."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.initialise()
