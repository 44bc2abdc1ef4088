"""An EAGLE-3 head in plain PyTorch, computed as llama.cpp's architecture `eagle3` does.

One layer over pairs (what the target saw at position p, the token at p + 1); it says what comes at p + 2. After the
first guess its own state before the output norm takes the place of the target's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from model import Layer, Norm, angles, rotate
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a head, and which layers of the target it looks into."""

    layers: tuple[int, ...] = (1, 3, 5)
    """Their inputs are read, counted from 0."""
    hidden: int = 256
    target_hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    feed_forward: int = 384
    vocabulary: int = 1536
    """The target's most frequent tokens; the head guesses no other."""
    context: int = 2048
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    def as_dict(self) -> dict[str, object]:
        """For checkpoints."""
        return asdict(self)


class Eagle3(Layer):
    """Fuses the target's states, and runs one decoder layer for each guess."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, kv = shape.hidden, shape.kv_heads * shape.head_size
        self.fc = nn.Linear(len(shape.layers) * shape.target_hidden, hidden, bias=False)
        self.token_norm = Norm(hidden, shape.epsilon)
        self.state_norm = Norm(hidden, shape.epsilon)
        self.q = nn.Linear(2 * hidden, shape.heads * shape.head_size, bias=False)
        self.k = nn.Linear(2 * hidden, kv, bias=False)
        self.v = nn.Linear(2 * hidden, kv, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_size, hidden, bias=False)
        self.feed_forward_norm = Norm(hidden, shape.epsilon)
        self.gate = nn.Linear(hidden, shape.feed_forward, bias=False)
        self.up = nn.Linear(hidden, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, hidden, bias=False)
        self.norm = Norm(hidden, shape.epsilon)
        # The output matrix; called so because `muon.Optimiser` leaves a matrix of this name to AdamW.
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, hidden) * 0.02)
        for name, weight in self.named_parameters():
            if weight.ndim == 2 and name != "embedding":
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5 * 0.6)
        nn.init.zeros_(self.o.weight)
        nn.init.zeros_(self.down.weight)
        with torch.no_grad():  # begins with what the highest of the layers sees
            self.fc.weight.mul_(0.1)
            self.fc.weight[:, -shape.target_hidden :] += torch.eye(hidden)

    def unroll(self, states: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """States before the output norm, one tensor for each step.

        Row j of step k has seen the target's states up to j and has guessed k times since: it looks back on the true
        cells up to j and on its own k later ones, as it will when it drafts (training-time test, arXiv 2503.01840).

        Args:
            states: (batch, n, layers * target_hidden), of the positions 0 to n - 1.
            embedded: (batch, n + 1, hidden), of the tokens at 0 to n.
            steps: at least 1; step k is (batch, n - k, hidden) long.
        """
        found: list[Tensor] = []
        keys: list[Tensor] = []
        values: list[Tensor] = []
        given = self.fc(states)
        length = states.shape[1]
        causal = torch.full((length, length), float("-inf")).triu(1)
        for step in range(steps):
            n = length - step
            given = given[:, :n]
            q, k, v = self._heads(embedded[:, 1 + step :][:, :n], given, step)
            keys.append(k)
            values.append(v)
            scores = (q @ keys[0][:, :, :n].mT).float() * self.shape.head_size**-0.5 + causal[:n, :n]
            own = [(q * key[:, :, :n]).sum(-1, keepdim=True).float() for key in keys[1:]]
            scores = torch.cat([scores, *(one * self.shape.head_size**-0.5 for one in own)], dim=-1)
            shares = scores.softmax(-1).to(q.dtype)
            mixed = shares[..., :n] @ values[0][:, :, :n]
            for index, value in enumerate(values[1:]):
                mixed = mixed + shares[..., n + index, None] * value[:, :, :n]
            given = self.finish(given, mixed)
            found.append(given)
        return found

    def _heads(self, embedded: Tensor, given: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = given.shape
        size = self.shape.head_size
        pair = torch.cat((self.token_norm(embedded), self.state_norm(given)), dim=-1)
        cos, sin = angles(size, self.shape.rope_base, length, pair, first)
        q = rotate(self.q(pair).view(batch, length, -1, size).transpose(1, 2), cos, sin)
        k = rotate(self.k(pair).view(batch, length, -1, size).transpose(1, 2), cos, sin)
        v = self.v(pair).view(batch, length, -1, size).transpose(1, 2)
        groups = self.shape.heads // self.shape.kv_heads
        return q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

    def logits(self, states: Tensor) -> Tensor:
        """Scores of the head's own vocabulary."""
        return functional.linear(self.norm(states), self.embedding.to(states.dtype))
