"""An EAGLE-3 head in numpy: an independent opinion about what it guesses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.types import Tokens

Matrix = npt.NDArray[np.float64]


def _read(path: Path) -> dict[str, Matrix]:
    import gguf

    return {
        tensor.name: np.array(tensor.data)
        if tensor.tensor_type == gguf.GGMLQuantizationType.I64
        else gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        for tensor in gguf.GGUFReader(path).tensors
    }


class Eagle3Forward:
    """Reads a GGUF file of the architecture `eagle3` that has no embeddings of its own; computes in float64."""

    def __init__(self, path: Path, target: Path) -> None:
        import gguf

        self._weights, fields = _read(path), gguf.GGUFReader(path).fields
        self._embeddings = _read(target)["token_embd.weight"]
        self._heads, self._kv_heads, self._size = (
            int(fields[f"eagle3.attention.{name}"].contents()) for name in ("head_count", "head_count_kv", "key_length")
        )

    def row(self, states: Matrix, tokens: Tokens) -> Matrix:
        """Logits of the tokens that the head knows, in its own order, behind the last of `tokens`.

        Args:
            states: float[n, 3 * hidden]: what the head's layers of the target saw, from position 0 on.
            tokens: int32[m], m > n: a history of n + 1 tokens, and what is guessed to follow it.
        """
        fused = states @ self._weights["fc.weight"].T
        keys: list[Matrix] = []
        values: list[Matrix] = []
        own = np.zeros(0)
        for position, token in enumerate(tokens[1:].tolist()):
            own = self._cell(fused[position] if position < len(fused) else own, token, position, keys, values)
        found: Matrix = self._norm("output_norm", own) @ self._weights["output.weight"].T
        return found

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The tokens that the head knows, as the target numbers them."""
        return self._weights["d2t"].astype(np.int64)

    def _cell(self, state: Matrix, token: int, position: int, keys: list[Matrix], values: list[Matrix]) -> Matrix:
        """What the layer makes of a state and the token behind it; its key and value are added to those before."""
        embedded = self._norm("blk.0.attn_norm", self._embeddings[token])
        h = np.concatenate([embedded, self._norm("blk.0.attn_norm_2", state)])
        query, key, value = (
            (self._weights[f"blk.0.attn_{part}.weight"] @ h).reshape(-1, self._size) for part in ("q", "k", "v")
        )
        keys.append(_turned(key, position))
        values.append(value)
        query, groups = _turned(query, position), self._heads // self._kv_heads
        scores = np.einsum("hd,nhd->hn", query, np.stack(keys).repeat(groups, axis=1)) / np.sqrt(self._size)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        mixed = np.einsum("hn,nhd->hd", shares, np.stack(values).repeat(groups, axis=1)).reshape(-1)
        x = state + self._weights["blk.0.attn_output.weight"] @ mixed
        h = self._norm("blk.0.ffn_norm", x)
        gate = self._weights["blk.0.ffn_gate.weight"] @ h
        h = gate / (1 + np.exp(-gate)) * (self._weights["blk.0.ffn_up.weight"] @ h)
        found: Matrix = x + self._weights["blk.0.ffn_down.weight"] @ h
        return found

    def _norm(self, name: str, x: Matrix) -> Matrix:
        found: Matrix = x / np.sqrt((x**2).mean() + 1e-5) * self._weights[f"{name}.weight"]
        return found


def _turned(x: Matrix, position: int) -> Matrix:
    """Rotary positions on pairs (2i, 2i + 1)."""
    half = x.shape[1] // 2
    pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * position * 10000.0 ** (-np.arange(half) / half))
    return np.stack([pairs.real, pairs.imag], axis=2).reshape(x.shape)
