"""A llama model in numpy, written from the architecture's papers: an independent opinion about hidden states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]


class ForwardPass:
    """Reads a GGUF file of the architecture `llama` whole; weights are dequantised to float64."""

    def __init__(self, path: Path) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self.weights: dict[str, Matrix] = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in reader.tensors
        }

        def fact(name: str, default: Any = None) -> Any:
            field = reader.get_field(f"llama.{name}")
            return default if field is None else field.contents()

        self.layers, self.heads = int(fact("block_count")), int(fact("attention.head_count"))
        self.kv_heads = int(fact("attention.head_count_kv", self.heads))
        self.epsilon = float(fact("attention.layer_norm_rms_epsilon"))
        self.base = float(fact("rope.freq_base", 10000.0))
        self.width = int(fact("embedding_length"))
        self.head = int(fact("attention.key_length", self.width // self.heads))

    def __call__(self, tokens: npt.NDArray[np.int32]) -> tuple[list[Matrix], Matrix]:
        """(what goes into each layer, final states): float64[n, n_embd] each."""
        state, inputs = self.weights["token_embd.weight"][tokens], []
        for layer in range(self.layers):
            inputs.append(state)
            state = state + self._attention(layer, self._norm(f"blk.{layer}.attn_norm.weight", state))
            state = state + self._feed_forward(layer, self._norm(f"blk.{layer}.ffn_norm.weight", state))
        return inputs, self._norm("output_norm.weight", state)

    def _norm(self, name: str, state: Matrix) -> Matrix:
        scale = np.sqrt((state**2).mean(axis=1, keepdims=True) + self.epsilon)
        normed: Matrix = state / scale * self.weights[name]
        return normed

    def _attention(self, layer: int, state: Matrix) -> Matrix:
        count = len(state)
        query, key, value = (
            (state @ self.weights[f"blk.{layer}.attn_{name}.weight"].T).reshape(count, -1, self.head) for name in "qkv"
        )
        query, key = self._turned(query), self._turned(key)
        group = self.heads // self.kv_heads
        key, value = key.repeat(group, axis=1), value.repeat(group, axis=1)
        scores = np.einsum("ihd,jhd->hij", query, key) / np.sqrt(self.head)
        scores[:, np.triu_indices(count, 1)[0], np.triu_indices(count, 1)[1]] = -np.inf
        scores = np.exp(scores - scores.max(axis=2, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(axis=2, keepdims=True), value)
        out: Matrix = mixed.reshape(count, -1) @ self.weights[f"blk.{layer}.attn_output.weight"].T
        return out

    def _turned(self, heads: Matrix) -> Matrix:
        """Rotary positions; GGUF files of llama have even and odd entries in pairs."""
        angle = np.arange(len(heads))[:, None] * self.base ** (-np.arange(0, self.head, 2) / self.head)
        cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        turned = np.empty_like(heads)
        turned[..., 0::2], turned[..., 1::2] = even * cosine - odd * sine, even * sine + odd * cosine
        return turned

    def _feed_forward(self, layer: int, state: Matrix) -> Matrix:
        gate, up = (state @ self.weights[f"blk.{layer}.ffn_{name}.weight"].T for name in ("gate", "up"))
        out: Matrix = (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"blk.{layer}.ffn_down.weight"].T
        return out
