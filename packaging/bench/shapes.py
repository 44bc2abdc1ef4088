"""Sizes of common models of the llama architecture, for benchmark models that cost what these cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class Matrix(NamedTuple):
    """A weight matrix of the architecture."""

    name: str
    layer: int
    """-1 outside the layers."""
    rows: int
    columns: int

    @property
    def title(self) -> str:
        """Its name in the file."""
        return f"{self.name}.weight" if self.layer < 0 else f"blk.{self.layer}.{self.name}.weight"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model of the llama architecture with tied embeddings."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    context: int = 4096

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    def matrices(self, vocabulary: int) -> Iterator[Matrix]:
        """Every weight matrix, in the order of the file."""
        kv = self.head_size * self.kv_heads
        yield Matrix("token_embd", -1, vocabulary, self.hidden)
        for layer in range(self.layers):
            yield Matrix("attn_q", layer, self.hidden, self.hidden)
            yield Matrix("attn_k", layer, kv, self.hidden)
            yield Matrix("attn_v", layer, kv, self.hidden)
            yield Matrix("attn_output", layer, self.hidden, self.hidden)
            yield Matrix("ffn_gate", layer, self.feed_forward, self.hidden)
            yield Matrix("ffn_up", layer, self.feed_forward, self.hidden)
            yield Matrix("ffn_down", layer, self.hidden, self.feed_forward)

    def norms(self) -> Iterator[str]:
        """Every vector of norm weights, `hidden` long."""
        yield "output_norm.weight"
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"


SHAPES = {
    "small": Shape(hidden=512, layers=6, heads=8, kv_heads=2, feed_forward=1024),
    "100m": Shape(hidden=768, layers=12, heads=12, kv_heads=4, feed_forward=3072),
    "500m": Shape(hidden=1024, layers=24, heads=16, kv_heads=8, feed_forward=5632),
    "1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, feed_forward=8192),
    "3b": Shape(hidden=3072, layers=28, heads=48, kv_heads=16, feed_forward=8192),
}
"""Parameters without the vocabulary's: 13 M (for trying things out), 0.1, 0.5, 1.0 and 2.8 billion. Heads have 64
values, as the bundled pair's; rows are multiples of 256 values, as llama.cpp's K formats want."""
