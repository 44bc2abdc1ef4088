"""A target's shape and weights, as far as a draft model can be cut from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.errors import ModelError
from localspec.gguf import Header, Tensor
from localspec.llama.library.unpack import TensorRows
from localspec.types import Float32Array

_NORMS = frozenset(("attn_norm.weight", "ffn_norm.weight"))
_MATRICES = frozenset(
    f"{name}.weight" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
)
_BIASES = frozenset(("attn_q.bias", "attn_k.bias", "attn_v.bias"))
_HEAD_NORMS = frozenset(("attn_q_norm.weight", "attn_k_norm.weight"))
SLOWER = "rope_freqs.weight"
"""Tensor of what rotary positions are divided by, in models whose context was extended (Llama 3)."""
ARCHITECTURES = {"llama": False, "qwen2": True, "qwen3": True}
"""Those whose layers are known: whether rotary positions turn the two halves of a head (else neighbours in pairs)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a target, and what a layer needs to be computed."""

    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    rope_base: float
    epsilon: float

    @property
    def halves(self) -> bool:
        """Whether rotary positions turn the two halves of a head."""
        return ARCHITECTURES[self.architecture]

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.feed_forward


def read_shape(header: Header) -> Shape:
    """The shape of a target that a draft model can be cut from.

    Raises:
        ModelError: its layers are of a kind that is not known here; the sentence names what is in the way.
    """
    if fault := _fault(header):
        raise ModelError(
            f"No draft model can be cut from {header.path.name}: {fault}.",
            f"Its layers must be plain ones of {', '.join(ARCHITECTURES)}.",
        )
    heads, hidden = header.number("attention.head_count"), header.number("embedding_length")
    embedding = next(tensor for tensor in header.tensors if tensor.name == "token_embd.weight")
    return Shape(
        header.architecture,
        header.n_layers,
        hidden,
        header.number("feed_forward_length"),
        heads,
        header.number("attention.head_count_kv") or heads,
        header.number("attention.key_length") or hidden // heads,
        embedding.shape[1],
        float(header.real("rope.freq_base") or 10_000.0),
        float(header.real("attention.layer_norm_rms_epsilon")),
    )


def _fault(header: Header) -> str:
    """Why no draft model can be cut from it: a clause; "" = one can."""
    if header.architecture not in ARCHITECTURES:
        return f"its architecture is {header.architecture or 'not stated'}"
    if header.metadata.get("split.count"):
        return "it is split into several files"
    names = {tensor.name: tensor for tensor in header.tensors}
    known = _NORMS | _MATRICES | _BIASES | _HEAD_NORMS
    for number in range(header.n_layers):
        own = {name.split(".", 2)[2] for name in names if name.startswith(f"blk.{number}.")}
        if odd := sorted(own - known):
            return f"layer {number} has {odd[0]}"
        if gone := sorted((_NORMS | _MATRICES) - own):
            return f"layer {number} has no {gone[0]}"
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in names:
            return f"it has no {name}"
    stated = {key.removeprefix(f"{header.architecture}."): value for key, value in header.metadata.items()}
    factors = (stated.get(name, 1.0) for name in ("rope.scaling.factor", "rope.scale_linear"))
    if stated.get("rope.scaling.type", "none") != "none" or any(factor not in (0.0, 1.0) for factor in factors):
        return "its positions are scaled"
    if not isinstance(stated.get("attention.head_count_kv", 0), int):
        return "its layers differ in heads"
    heads, hidden = header.number("attention.head_count"), header.number("embedding_length")
    if not header.n_layers or not heads or not hidden or not header.number("feed_forward_length"):
        return "its header does not state its sizes"
    size = header.number("attention.key_length") or hidden // heads
    if stated.get("attention.scale") or (header.number("attention.value_length") or hidden // heads) != size:
        return "its attention is of another kind"
    if header.number("rope.dimension_count") not in (0, size):
        return "only a part of each head has positions"
    return ""


def cut_layers(layers: int, kept: int) -> list[int]:
    """Which layers of a target a draft model is made of: the first ones and the last ones, half of each."""
    kept = min(kept, layers)
    first = math.ceil(kept / 2)
    return [*range(first), *range(layers - (kept - first), layers)]


class Weights:
    """Tensors of a target's file, unpacked when they are asked for."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self._tensors = {tensor.name: tensor for tensor in header.tensors}

    def layer(self, number: int) -> dict[str, Float32Array]:
        """float32 arrays of a layer by their names in it, such as "attn_q.weight" [rows, columns]."""
        start = f"blk.{number}."
        names = (name for name in self._tensors if name.startswith(start))
        return {name.removeprefix(start): self.whole(name) for name in names}

    def whole(self, name: str) -> Float32Array:
        """float32[rows, columns] or float32[n]."""
        tensor = self._tensors[name]
        if len(tensor.shape) == 1:
            return self._vector(tensor)
        return TensorRows(self._header, tensor).read(slice(None))

    def rows(self, name: str, rows: Sequence[int] | np.ndarray) -> Float32Array:
        """float32[n, columns]: these rows of a matrix."""
        return TensorRows(self._header, self._tensors[name]).read(np.asarray(rows))

    @property
    def slower(self) -> Float32Array | None:
        """float32[head_size / 2]: by what the turns of rotary positions are divided (Llama 3); None = by nothing."""
        return self.whole(SLOWER) if SLOWER in self._tensors else None

    @property
    def output(self) -> str:
        """The name of the output matrix: where a file has none, the embedding is it."""
        return "output.weight" if "output.weight" in self._tensors else "token_embd.weight"

    def _vector(self, tensor: Tensor) -> Float32Array:
        if tensor.type not in ("F32", "F16"):
            raise ModelError(f"{tensor.name} of {self._header.path.name} is in {tensor.type}, which is not read here.")
        kind = np.float32 if tensor.type == "F32" else np.float16
        found = np.fromfile(self._header.path, dtype=kind, count=tensor.shape[0], offset=tensor.offset)
        return found.astype(np.float32)
