"""The shipped MTP model in numpy: an independent opinion about what its MTP layer guesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.types import Tokens

Matrix = npt.NDArray[np.float64]
Past = tuple[Matrix, Matrix]
"""Keys and values, (n, heads, head size) each."""


class MtpForward:
    """Reads a GGUF file of the architecture `hy_v3` with dense layers and MTP layers; computes in float64."""

    def __init__(self, path: Path) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self.weights: dict[str, Matrix] = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }
        names = ("head_count", "head_count_kv", "key_length")
        self.heads, self.kv_heads, self.size = (
            int(reader.fields[f"hy_v3.attention.{name}"].contents()) for name in names
        )
        blocks, self.nextn = (
            int(reader.fields[f"hy_v3.{name}"].contents()) for name in ("block_count", "nextn_predict_layers")
        )
        self.layers = blocks - self.nextn

    def guesses(self, history: Tokens, guessed: Tokens) -> list[Matrix]:
        """Logits behind a history whose states the model computed, and behind each guessed token, whose it did not.

        Of several MTP layers each reads what the model computed, and its depth's one what was guessed so far.
        """
        final = self._norm("output_norm", self._trunk(history[:-1]))
        states = np.concatenate([np.zeros((1, final.shape[1])), final])
        own: list[Matrix] = []
        for depth in range(len(guessed) + 1):
            layer = self.layers + (depth if self.nextn > 1 else 0)
            state, past = self._nextn(layer, history, states, np.arange(len(history)), None)
            if depth:
                at = len(history) + np.arange(depth)
                state, _ = self._nextn(layer, guessed[:depth], np.stack(own), at, past)
            own.append(state[-1])
        return [state @ self.weights["token_embd.weight"].T for state in own]

    def _trunk(self, tokens: Tokens) -> Matrix:
        x = self.weights["token_embd.weight"][tokens]
        for layer in range(self.layers):
            x, _ = self._block(layer, x, np.arange(len(tokens)), None)
        return x

    def _nextn(
        self, layer: int, tokens: Tokens, states: Matrix, at: npt.NDArray[np.int64], past: Past | None
    ) -> tuple[Matrix, Past]:
        name = f"blk.{layer}.nextn"
        embedded = self._norm(f"{name}.enorm", self.weights["token_embd.weight"][tokens])
        joined = np.concatenate([embedded, self._norm(f"{name}.hnorm", states)], axis=1)
        x, past = self._block(layer, joined @ self.weights[f"{name}.eh_proj.weight"].T, at, past)
        return self._norm(f"{name}.shared_head_norm", x), past

    def _block(self, layer: int, x: Matrix, at: npt.NDArray[np.int64], past: Past | None) -> tuple[Matrix, Past]:
        name, n = f"blk.{layer}", len(x)
        h = self._norm(f"{name}.attn_norm", x)
        q, k, v = (
            (h @ self.weights[f"{name}.attn_{part}.weight"].T).reshape(n, heads, self.size)
            for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads))
        )
        q, k = (_turned(self._norm(f"{name}.attn_{part}_norm", value), at) for part, value in (("q", q), ("k", k)))
        if past is not None:
            k, v = np.concatenate([past[0], k]), np.concatenate([past[1], v])
        groups = self.heads // self.kv_heads
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(groups, axis=1)) / np.sqrt(self.size)
        scores[:, np.arange(len(k)) > at[:, None]] = -np.inf
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, v.repeat(groups, axis=1)).reshape(n, -1)
        x = x + mixed @ self.weights[f"{name}.attn_output.weight"].T
        h = self._norm(f"{name}.ffn_norm", x)
        gate = h @ self.weights[f"{name}.ffn_gate.weight"].T
        h = gate / (1 + np.exp(-gate)) * (h @ self.weights[f"{name}.ffn_up.weight"].T)
        return x + h @ self.weights[f"{name}.ffn_down.weight"].T, (k, v)

    def _norm(self, name: str, x: Matrix) -> Matrix:
        found: Matrix = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * self.weights[f"{name}.weight"]
        return found


def _turned(x: Matrix, at: npt.NDArray[np.int64]) -> Matrix:
    """Rotary positions on pairs (i, i + half)."""
    half = x.shape[2] // 2
    angle = at[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    left, right = x[..., :half], x[..., half:]
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2)
