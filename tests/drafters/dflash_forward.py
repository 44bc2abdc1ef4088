"""Heads of the architecture `dflash` in numpy: an independent opinion about what a block says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.drafters.dflash_files import CANDIDATES, GROUP, HEADS, KERNEL, KV_HEADS, SIZE

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class DFlashForward:
    """One head over one target's tables, in float64."""

    weights: Mapping[str, npt.NDArray[Any]]
    embeddings: Matrix
    """float64[vocabulary, hidden]."""
    output: Matrix
    """float64[what it guesses, hidden]."""
    causal: bool = False
    window: int = 0
    """Tokens that the first layer sees; 0 = all."""

    def block(self, states: Matrix, tokens: npt.NDArray[Any]) -> tuple[Matrix, Matrix]:
        """(normed states, logits) of the rows of a block, before any bias.

        Args:
            states: float64[n, inputs * hidden]: what the target's layers saw at positions 0 to n - 1.
            tokens: int[rows]: the token at position n, and masks.
        """
        seen, count = len(states), len(tokens)
        fused = self._norm(states @ self._of("fc").T, "enc.output_norm")
        x, at = self.embeddings[tokens], np.arange(seen, seen + count)
        layers = sum(name.endswith("attn_q.weight") for name in self.weights)
        for layer in range(layers):
            start, dynamic = f"blk.{layer}.", None
            h = self._norm(x, f"{start}attn_norm")
            if f"{start}attn_conv_base" in self.weights:
                dynamic = h @ self._of(f"{start}attn_conv_proj").T
                h = self._mixed(h, dynamic, f"{start}attn", 0)
            h = self._attend(fused, h, np.arange(seen), at, start, self.window if layer == 0 else 0)
            x = x + (h if dynamic is None else self._mixed(h, dynamic, f"{start}attn", 1))
            h = self._norm(x, f"{start}ffn_norm")
            if f"{start}ffn_conv_base" in self.weights:
                dynamic = h @ self._of(f"{start}ffn_conv_proj").T
                h = self._mixed(h, dynamic, f"{start}ffn", 0)
            gate = h @ self._of(f"{start}ffn_gate").T
            h = (gate / (1 + np.exp(-gate)) * (h @ self._of(f"{start}ffn_up").T)) @ self._of(f"{start}ffn_down").T
            x = x + (h if dynamic is None else self._mixed(h, dynamic, f"{start}ffn", 1))
        x = self._norm(x, "output_norm")
        return x, x @ self.output.T

    def biased(self, logits: Matrix, previous: int) -> Matrix:
        """A DSpark row with the bias of the token before."""
        found: Matrix = logits + self._of("markov_w2") @ self._of("markov_w1")[previous]
        return found

    def chosen(self, state: Matrix, logits: Matrix, previous: int) -> dict[int, float]:
        """Candidates of a DFlash2 row, and what each is worth after a token."""
        ids = np.argsort(-logits)[:CANDIDATES]
        before = self._of("selector_predecessor")[previous] * (self._of("selector_hidden") @ state)
        return {int(token): float(logits[token] + self._of("selector_successor")[token] @ before) for token in ids}

    def _of(self, name: str) -> Matrix:
        return self.weights[f"{name}.weight"].astype(np.float64)

    def _norm(self, x: Matrix, name: str) -> Matrix:
        found: Matrix = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * self._of(name)
        return found

    def _attend(self, seen: Matrix, h: Matrix, before: Any, at: Any, start: str, window: int) -> Matrix:
        """Attention of the block's rows over what the target saw and over the block."""
        query = _turned(
            self._norm((h @ self._of(f"{start}attn_q").T).reshape(-1, HEADS, SIZE), f"{start}attn_q_norm"), at
        )
        keys, values, places = [], [], np.concatenate([before, at])
        for x, positions in ((seen, before), (h, at)):
            key = self._norm((x @ self._of(f"{start}attn_k").T).reshape(-1, KV_HEADS, SIZE), f"{start}attn_k_norm")
            keys.append(_turned(key, positions))
            values.append((x @ self._of(f"{start}attn_v").T).reshape(-1, KV_HEADS, SIZE))
        key, value = (np.concatenate(part).repeat(HEADS // KV_HEADS, axis=1) for part in (keys, values))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(SIZE)
        if self.causal:
            scores = np.where(places[None, None] <= at[None, :, None], scores, -np.inf)
        if window:
            scores = np.where(at[None, :, None] - places[None, None] < window, scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        found: Matrix = np.einsum("hqk,khd->qhd", shares, value).reshape(len(h), -1) @ self._of(f"{start}attn_output").T
        return found

    def _mixed(self, h: Matrix, dynamic: Matrix, part: str, side: int) -> Matrix:
        """DFlash2's convolution: each row mixed with the rows before it, by weights that depend on the row."""
        groups = h.shape[1] // GROUP
        factors = dynamic.reshape(len(h), 2, KERNEL, groups)[:, side].repeat(GROUP, axis=-1)
        factors = factors + self.weights[f"{part}_conv_base"][side].astype(np.float64)
        found = np.zeros_like(h)
        for step in range(min(KERNEL, len(h))):
            found[step:] += factors[step:, step] * h[: len(h) - step]
        return found


def _turned(x: Matrix, positions: Any) -> Matrix:
    """Rotary positions on pairs (i, i + half)."""
    half = SIZE // 2
    turns = np.outer(positions, 10000.0 ** (-np.arange(half) / half))[:, None, :]
    first, second = x[..., :half], x[..., half:]
    cosine, sine = np.cos(turns), np.sin(turns)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)
