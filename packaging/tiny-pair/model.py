"""The llama architecture in plain PyTorch, small enough to read in one sitting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

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


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on pairs (i, i + half)."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values (batch, heads, length, head size) to what attention mixes of the values."""


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Everyone sees what is before it, and itself."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """Attention with grouped keys and values, then SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_size
        self.attention_norm = Norm(shape.hidden, shape.epsilon)
        self.q = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k = nn.Linear(shape.hidden, kv, bias=False)
        self.v = nn.Linear(shape.hidden, kv, bias=False)
        self.o = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.feed_forward_norm = Norm(shape.hidden, shape.epsilon)
        self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend = causal) -> Tensor:
        """One layer over (batch, length, hidden)."""
        batch, length, _ = x.shape
        size, groups = self.shape.head_size, self.shape.heads // self.shape.kv_heads
        h = self.attention_norm(x)
        q = rotate(self.q(h).view(batch, length, self.shape.heads, size).transpose(1, 2), cos, sin)
        k = rotate(self.k(h).view(batch, length, self.shape.kv_heads, size).transpose(1, 2), cos, sin)
        v = self.v(h).view(batch, length, self.shape.kv_heads, size).transpose(1, 2)
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        mixed = attend(q, k, v)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, -1))
        h = self.feed_forward_norm(x)
        out: Tensor = x + self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


class Llama(nn.Module):
    """A decoder with tied embeddings. `forward` gives final hidden rows; `logits` maps them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
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

    def forward(self, tokens: Tensor, positions: Tensor | None = None, attend: Attend = causal) -> Tensor:
        """Final normed hidden rows of (batch, length) tokens.

        `positions` (batch, length) and `attend` are for rows that do not stand one behind the other.
        """
        x = functional.embedding(tokens, self.embedding)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.bfloat16)
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
