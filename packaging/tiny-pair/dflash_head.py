"""A DFlash or DSpark head in plain PyTorch, computed as llama.cpp's architecture `dflash` does.

The head keeps keys and values of what the target saw at the positions before the last token. It runs one block after
them: the last token (the anchor), then mask tokens. Every row of the block sees those positions and the whole block.
Row i of DFlash predicts the token in its own place, from row 1 on. Row i of DSpark predicts the token after it, and a
low-rank table adds what the token in place i says of the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from eagle3_head import HeadShape
from model import Layer, Norm, angles, rotate
from tokenizer import SPECIALS
from torch import Tensor, nn
from torch.nn import functional

MASK = SPECIALS.index("<|mask|>")
TABLES = ("markov_before", "markov_after", "confidence.weight")
"""Parameters that `muon.Optimiser` leaves to AdamW: two embeddings, and a matrix of one row."""


@dataclass(frozen=True)
class BlockShape(HeadShape):
    """The sizes of a head, and which layers of the target it looks into."""

    vocabulary: int = 4096
    blocks: int = 2
    """Layers of the head itself."""
    block: int = 7
    """Rows of a block, the anchor's included."""
    rank: int = 32
    """Of the table of a DSpark head; 0 makes a DFlash head."""

    @property
    def first(self) -> int:
        """The first row of a block that predicts."""
        return 0 if self.rank else 1

    @property
    def guesses(self) -> int:
        """How many tokens a block predicts."""
        return self.block - self.first


def shape_of(kind: str) -> BlockShape:
    """Seven guesses, so that the target verifies eight rows: "dspark" or "dflash"."""
    return BlockShape() if kind == "dspark" else BlockShape(block=8, rank=0)


class BlockLayer(Layer):
    """Attention of blocks to the target's states and to themselves, then SwiGLU."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, inner, kv = shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.attention_norm = Norm(hidden, shape.epsilon)
        self.q = nn.Linear(hidden, inner, bias=False)
        self.k = nn.Linear(hidden, kv, bias=False)
        self.v = nn.Linear(hidden, kv, bias=False)
        self.o = nn.Linear(inner, hidden, bias=False)
        self.q_norm = Norm(shape.head_size, shape.epsilon)
        self.k_norm = Norm(shape.head_size, shape.epsilon)
        self.feed_forward_norm = Norm(hidden, shape.epsilon)
        self.gate = nn.Linear(hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, hidden, bias=False)

    def _cells(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (batch, KV heads, length, head size) of rows."""
        rows = (*x.shape[:2], self.shape.kv_heads, self.shape.head_size)
        k = rotate(self.k_norm(self.k(x).view(rows)).transpose(1, 2), cos, sin)
        return k, self.v(x).view(rows).transpose(1, 2)

    def forward(self, x: Tensor, fused: Tensor, far: tuple[Tensor, Tensor], near: tuple[Tensor, Tensor],
                unseen: Tensor) -> Tensor:  # fmt: skip
        """One layer over all blocks.

        Args:
            x: (batch, anchors * block, hidden).
            fused: (batch, n, hidden), of the target's states.
            far: cosines and sines of the n positions.
            near: of the rows of the blocks, (batch, 1, anchors * block, half a head).
            unseen: bool (batch, 1, anchors * block, n), true where a position is not before the row's anchor.
        """
        shape, (batch, length, _) = self.shape, x.shape
        h = self.attention_norm(x)
        q = self.q_norm(self.q(h).view(batch, length, shape.heads, shape.head_size)).transpose(1, 2)
        q = rotate(q, *near) * shape.head_size**-0.5
        groups = shape.heads // shape.kv_heads
        k, v = (cells.repeat_interleave(groups, 1) for cells in self._cells(fused, *far))
        own, said = (cells.repeat_interleave(groups, 1) for cells in self._cells(h, *near))

        def apart(rows: Tensor) -> Tensor:
            return rows.reshape(batch, shape.heads, -1, shape.block, shape.head_size)

        history = (q @ k.mT).masked_fill(unseen, -torch.inf)
        within = (apart(q) @ apart(own).mT).flatten(2, 3)
        shares = torch.cat((history, within), -1).float().softmax(-1).to(v.dtype)
        n = history.shape[-1]
        near_shares = shares[..., n:].reshape(batch, shape.heads, -1, shape.block, shape.block)
        return self.finish(x, shares[..., :n] @ v + (near_shares @ apart(said)).flatten(2, 3))


class DFlash(nn.Module):
    """Fuses the target's states, and runs blocks after them."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(len(shape.layers) * shape.target_hidden, shape.hidden, bias=False)
        self.state_norm = Norm(shape.hidden, shape.epsilon)
        self.blocks = nn.ModuleList(BlockLayer(shape) for _ in range(shape.blocks))
        self.norm = Norm(shape.hidden, shape.epsilon)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * 0.6)
                if name.endswith(("o.weight", "down.weight")):
                    nn.init.zeros_(weight)
        with torch.no_grad():  # begins with what the highest of the layers sees
            self.fc.weight.mul_(0.3)
            self.fc.weight[:, -shape.target_hidden :] += torch.eye(shape.hidden)
        if shape.rank:
            self.markov_before = nn.Parameter(torch.randn(shape.vocabulary, shape.rank))
            self.markov_after = nn.Parameter(torch.zeros(shape.vocabulary, shape.rank))
            self.confidence = nn.Linear(shape.hidden + shape.rank, 1)
            nn.init.zeros_(self.confidence.weight)
            nn.init.zeros_(self.confidence.bias)

    def forward(self, states: Tensor, places: Tensor, embedded: Tensor, mask: Tensor) -> Tensor:
        """Final normed rows of the blocks, (batch, anchors, block, hidden).

        Args:
            states: (batch, n, layers * target_hidden), of the positions 0 to n - 1.
            places: int64 (batch, anchors), the positions of the anchors; a block sees the states before its own.
            embedded: (batch, anchors, hidden), of the anchors' tokens.
            mask: (hidden,), the mask token's embedding.
        """
        shape, (batch, anchors) = self.shape, places.shape
        fused = self.state_norm(self.fc(states))
        rows = mask.to(fused.dtype).expand(batch, anchors, shape.block - 1, shape.hidden)
        x = torch.cat((embedded.to(fused.dtype)[:, :, None], rows), 2).flatten(1, 2)
        n = states.shape[1]
        cos, sin = angles(shape.head_size, shape.rope_base, n + shape.block, fused)
        positions = (places[:, :, None] + torch.arange(shape.block)).flatten(1)
        near = cos[positions][:, None], sin[positions][:, None]
        unseen = (torch.arange(n) >= places.repeat_interleave(shape.block, 1)[:, :, None])[:, None]
        for block in self.blocks:
            x = block(x, fused, (cos[:n], sin[:n]), near, unseen)
        hidden: Tensor = self.norm(x)
        return hidden.view(batch, anchors, shape.block, shape.hidden)

    def logits(self, hidden: Tensor, table: Tensor, before: Tensor) -> Tensor:
        """Scores of the vocabulary for rows (n, hidden), given the target's embeddings and the tokens (n,) before the
        ones that are predicted, which only a DSpark head asks for."""
        if self.shape.rank:
            hidden = torch.cat((hidden, self.markov_before[before].to(hidden.dtype)), -1)
            table = torch.cat((table, self.markov_after), -1)
        return functional.linear(hidden, table.to(hidden.dtype))

    def trust(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Logits of the confidence that a guess is accepted, (n,)."""
        rows = torch.cat((hidden, self.markov_before[before].to(hidden.dtype)), -1)
        found: Tensor = self.confidence(rows)[:, 0]
        return found
