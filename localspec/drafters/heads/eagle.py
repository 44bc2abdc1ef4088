"""EAGLE heads: one decoder layer that guesses on from what its target saw.

EAGLE-1 and EAGLE-2 (Li et al. 2024, arXiv 2401.15077, 2406.16858) share their heads and differ in the tree
(`draft_model`). The layer reads pairs of the target's final state and the token after it, and the target's own output
matrix reads the guess. Files are as published (yuhuili/EAGLE-*): config.json of a one-layer llama, and `embed_tokens`,
`fc` and `layers.0` as safetensors or a pickle of torch's. llama.cpp does not know these heads; they are computed here,
with matrices in 8 bits.

EAGLE-3 (Li et al. 2025, arXiv 2503.01840) reads what three layers of its target saw. Files are GGUF of llama.cpp's
architecture `eagle3`, as its own conversion writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from localspec.drafters.heads.head import (
    Head,
    beside,
    check_held,
    check_keys,
    check_sizes,
    guessed_ids,
    key_sizes,
    output_matrix,
    read_head,
    tapped_layers,
)
from localspec.drafters.heads.head_cache import MOST_PASS_ROWS, HeadCache, HeadModel, HeadPasses, HeadRow, own_cache
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.settings import FINAL, NEXTN, Tap
from localspec.llama.model import Model
from localspec.models.facts import pairing
from localspec.models.facts.heads import Tensors, check_forgets, config_of
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.types import Float32Array

_PREFIX = "layers.0."
_BEFORE, _AFTER = f"{_PREFIX}input_layernorm.weight", f"{_PREFIX}post_attention_layernorm.weight"
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_LINEAR_TENSORS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
           "mlp.up_proj", "mlp.down_proj")  # fmt: skip


@dataclass(frozen=True, slots=True)
class EagleShape:
    """The facts of config.json."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    epsilon: float
    rope_base: float

    @staticmethod
    def of(path: Path) -> EagleShape:
        """Raises ModelFileError: config.json is missing, or says what no such head has."""
        config = config_of(path)

        def number(key: str, default: int | None = None) -> int:
            value = default if config.get(key) is None else config[key]  # null is what such files call the default
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
                raise ModelFileError(f"{path.name}: {key} is {value!r:.60} in config.json; a whole number is needed.")
            return value

        def real(key: str, default: float) -> float:
            value = default if config.get(key) is None else config[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST_FLOAT:
                raise ModelFileError(f"{path.name}: {key} is {value!r:.60} in config.json; a number above 0 is needed.")
            return float(value)

        for key, usual in (("num_hidden_layers", 1), ("hidden_act", "silu"), ("rope_scaling", None)):
            if config.get(key, usual) != usual:
                raise ModelFileError(f"{path.name}: {key} is {config[key]!r}; localspec runs heads with {usual!r}.")
        hidden, heads = number("hidden_size"), number("num_attention_heads")
        shape = EagleShape(
            hidden, heads, number("num_key_value_heads", heads), number("head_dim", max(1, hidden // heads)),
            number("intermediate_size"), number("vocab_size"), real("rms_norm_eps", 1e-6), real("rope_theta", 10000.0),
        )  # fmt: skip
        if shape.heads % shape.kv_heads or shape.head_size % 2:
            raise ModelFileError(f"{path.name}: {heads} heads cannot share {shape.kv_heads} keys and values.")
        return shape

    def check(self, tensors: Tensors) -> None:
        hidden, queries, keys = self.hidden, self.heads * self.head_size, self.kv_heads * self.head_size
        tensors.need("embed_tokens.weight", self.vocabulary, hidden)
        tensors.need("fc.weight", hidden, 2 * hidden)
        tensors.need(_AFTER, hidden)
        inner = ((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries))
        outer = ((self.feed_forward, hidden), (self.feed_forward, hidden), (hidden, self.feed_forward))
        for name, shape in zip(_LINEAR_TENSORS, (*inner, *outer), strict=True):
            tensors.need(f"{_PREFIX}{name}.weight", *shape)
            if f"{_PREFIX}{name}.bias" in tensors.shapes:
                tensors.need(f"{_PREFIX}{name}.bias", shape[0])
        for name in (_BEFORE, "fc.bias"):
            if name in tensors.shapes:
                tensors.need(name, hidden)


def load(path: Path, target: Header) -> Head:
    """Reads the folder of a published head, or the weights file in it; see `head`."""
    shape = EagleShape.of(path)
    check_sizes(path, target, shape.hidden, shape.vocabulary)
    for key in ("logit_scale", "final_logit_softcapping"):
        if target.real(key):
            raise PairError(f"{target.path.name} scales its logits ({key}), and {path.name} guesses without that.")
    check_forgets(target)
    shape.check(Tensors(path))
    return Head(
        "eagle",
        path,
        Tap(final="all"),
        lambda target: EagleLayer(shape, Tensors(path), output_matrix(target.model.header)),
        EagleContext,
    )


class EagleLayer:
    """The weights, and what is computed with them row by row."""

    def __init__(self, shape: EagleShape, tensors: Tensors, output: Int8Matrix) -> None:
        self.shape, self.output = shape, output
        self._names = ["fc", *(f"{_PREFIX}{name}" for name in _LINEAR_TENSORS)]
        self._weights = {name: tensors.matrix(f"{name}.weight") for name in self._names}
        found = tensors.shapes
        self._biases = {name: tensors.array(f"{name}.bias") for name in self._names if f"{name}.bias" in found}
        self._embeddings = tensors.matrix("embed_tokens.weight")
        self._before = tensors.array(_BEFORE) if _BEFORE in found else None
        """Published heads have no norm before attention; some trained since do."""
        self._after = tensors.array(_AFTER)
        half = shape.head_size // 2
        self._rates = shape.rope_base ** (-np.arange(half, dtype=np.float32) / half)

    def _linear(self, name: str, inputs: npt.NDArray[np.floating], threads: int) -> Float32Array:
        found = kernels.matvec(self._weights[name], np.ascontiguousarray(inputs, dtype=np.float32), threads)
        return found + self._biases[name] if name in self._biases else found

    def _norm(self, rows: Float32Array, weight: Float32Array) -> Float32Array:
        scale = np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True) + np.float32(self.shape.epsilon))
        return np.asarray(rows / scale * weight, dtype=np.float32)

    def enter(self, rows: Sequence[HeadRow], threads: int) -> tuple[Float32Array, Float32Array]:
        """The input of the layer, and the same as its attention reads it; float32[n, hidden] each."""
        tokens = np.array([row.token for row in rows], dtype=np.int64)
        pairs = np.concatenate([self._embeddings.rows(tokens), np.stack([row.state for row in rows])], axis=1)
        x = self._linear("fc", pairs, threads)
        return x, x if self._before is None else self._norm(x, self._before)

    def heads(
        self, name: Literal["q", "k", "v"], h: Float32Array, positions: Float32Array, threads: int
    ) -> Float32Array:
        """Queries, keys or values, float32[n, heads, head size], of what attention reads."""
        found = self._linear(f"{_PREFIX}self_attn.{name}_proj", h, threads).reshape(len(h), -1, self.shape.head_size)
        if name == "v":
            return found
        angles = positions[:, None, None] * self._rates  # rotary positions, on pairs (i, i + half)
        cos, sin = np.cos(angles), np.sin(angles)
        left, right = np.split(found, 2, axis=2)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2).astype(np.float32)

    def attend(self, query: Float32Array, keys: Float32Array, values: Float32Array) -> Float32Array:
        """float32[heads * head size] of one row over float32[n, kv heads, head size]."""
        shape = self.shape
        grouped = query.reshape(shape.kv_heads, -1, shape.head_size)
        scores = np.einsum("ghd,ngd->ghn", grouped, keys) / np.float32(math.sqrt(shape.head_size))
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        return np.asarray(np.einsum("ghn,ngd->ghd", shares, values), dtype=np.float32).reshape(-1)

    def leave(self, x: Float32Array, mixed: Float32Array, threads: int) -> Float32Array:
        """float32[n, hidden] states after the layer."""
        x = x + self._linear(f"{_PREFIX}self_attn.o_proj", mixed, threads)
        h = self._norm(x, self._after)
        gate, up = (self._linear(f"{_PREFIX}mlp.{name}_proj", h, threads) for name in ("gate", "up"))
        inner = gate / (1.0 + np.exp(-np.clip(gate, -80.0, 80.0))) * up
        return x + self._linear(f"{_PREFIX}mlp.down_proj", inner, threads)


class EagleContext(HeadCache):
    """Evaluates histories and what is guessed after them; keys and values are kept in float32."""

    def __init__(self, layer: EagleLayer, target: Context) -> None:
        """`target`: made with `Tap(final="all")`; must stay open as long as this is used."""
        super().__init__(target, (FINAL,), layer.shape.vocabulary)
        self._layer, self._threads = layer, target.threads
        room = (self._n_slots, self.n_ctx, layer.shape.kv_heads, layer.shape.head_size)
        self._keys, self._values = np.empty(room, dtype=np.float32), np.empty(room, dtype=np.float32)
        """For each slot, keys and values of the trunk by position."""
        self._guessed: list[dict[tuple[int, ...], tuple[Float32Array, Float32Array]]] = [{} for _ in self._trunks]
        """Key and value of every guess, by slot and path."""

    def _compute(self, rows: Sequence[HeadRow], wanted: Sequence[int]) -> Iterable[tuple[Float32Array, Float32Array]]:
        layer, threads = self._layer, self._threads
        x, h = layer.enter(rows, threads)
        positions = np.array([row.position for row in rows], dtype=np.float32)
        keys, values = layer.heads("k", h, positions, threads), layer.heads("v", h, positions, threads)
        for row, key, value in zip(rows, keys, values, strict=True):
            if row.sequence is None:
                self._keys[row.slot, row.position], self._values[row.slot, row.position] = key, value
            else:
                assert row.path is not None
                self._guessed[row.slot][row.path] = key, value
        if not wanted:
            return ()
        queries = layer.heads("q", h[wanted], positions[wanted], threads)
        mixed = [layer.attend(query, *self._seen(rows[index])) for query, index in zip(queries, wanted, strict=True)]
        states = layer.leave(x[wanted], np.stack(mixed), threads)
        return zip(states, kernels.matvec(layer.output, states, threads), strict=True)

    def _seen(self, row: HeadRow) -> tuple[Float32Array, Float32Array]:
        """Keys and values of what a row looks back on, its own included."""
        trunk, path = self._trunks[row.slot], row.path or ()
        cells = slice(trunk.start, row.position + 1 - len(path))
        keys, values = self._keys[row.slot, cells], self._values[row.slot, cells]
        if not path:
            return keys, values
        own = [self._guessed[row.slot][path[:length]] for length in range(1, len(path) + 1)]
        return np.concatenate([keys, [key for key, _ in own]]), np.concatenate([values, [value for _, value in own]])

    def _remove(self, slot: int, start: int) -> None:
        self._guessed[slot].clear()  # a trunk that shrinks takes its guesses along, and the rest is overwritten

    def close(self) -> None:
        """There is nothing to free."""


class Eagle3Context(HeadCache):
    """An encoder fuses what layers of the target saw, and one decoder layer evaluates histories and what is guessed
    after them. Sequences are llama.cpp's: the trunk carries all of a slot's, a guess the one of its path."""

    def __init__(self, model: Model, target: Context, layers: Sequence[int]) -> None:
        """Beside a target that has a tap of `layers`, whose inputs the head was trained on, in this order; the
        target's number of layers stands for what follows the last. Both models must stay open."""
        self._api = lib.api()
        last = int(self._api.llama_model_n_layer(target.model.handle))
        super().__init__(target, [NEXTN if layer == last else layer for layer in layers], model.n_vocab)
        params = own_cache(model, target, MOST_PASS_ROWS, MOST_PASS_ROWS, self.n_paths)
        width = int(self._api.llama_model_n_embd(model.handle))
        self._passes = HeadPasses(model, params, width)

    def _compute(self, rows: Sequence[HeadRow], wanted: Sequence[int]) -> Iterable[tuple[Float32Array, Float32Array]]:
        """All rows are outputs or none: llama.cpp hands out the first ones, whichever were asked for."""
        passes, count, states = self._passes, len(rows), np.stack([row.state for row in rows])
        if rows[0].sequence is None:
            first = self._api.llama_memory_seq_pos_max(passes.memory, 0) + 1  # means nothing, but is checked
            batch = passes.batch(list(range(first, first + count)), [(0, 1)] * count, True, states=states)
            passes.handle.call(self._api.llama_encode, batch)
            states = passes.states(count).copy()
        positions, tokens, ways = [row.position for row in rows], [row.token for row in rows], self.n_paths
        ids = [(row.slot * ways, ways) if row.sequence is None else (row.slot * ways + row.sequence, 1) for row in rows]
        passes.decode(passes.batch(positions, ids, bool(wanted), tokens=tokens, states=states))
        return [(passes.states(count)[row], passes.logits(count)[row]) for row in wanted]

    def _fork(self, slot: int, source: int, sequence: int, start: int, stop: int) -> None:
        first = slot * self.n_paths
        self._api.llama_memory_seq_cp(self._passes.memory, first + source, first + sequence, start, stop)


def load_eagle3(path: Path, target: Header) -> Head:
    header = read_head(path, ("eagle3",), "an EAGLE-3 head")
    check_forgets(target)
    pairing.check(target, header)
    layers, count = tapped_layers(header, target, three=True)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if header.n_layers != 1:
        raise ModelFileError(
            f"{header.path.name} is corrupt: an EAGLE-3 head has one layer, this has {header.n_layers}."
        )
    check_keys(header, *key_sizes(header))
    norms = ("fc", "output_norm", *(["enc.output_norm"] if header.flag("eagle3.norm_before_fc") else []))
    check_held(header, (f"{name}.weight" for name in norms), "attn_norm_2", "attn_k", "attn_v")
    hidden, wide = header.number("embedding_length"), target.number("embedding_length")
    for name, role in (("token_embd.weight", "embeddings"), ("output.weight", "output matrix")):
        if name not in tensors and hidden != wide:
            raise PairError(
                f"{header.path.name} cannot draft for {target.path.name}: it brings no {role}, and hidden size is"
                f" {wide} in the target and {hidden} in the head."
            )
    guessed_ids(header, tensors, target)
    tap = Tap(tuple(sorted({layer for layer in layers if layer < count})), nextn=count in layers)
    return Head(
        "eagle3",
        path,
        tap,
        lambda target: beside(path, HeadModel, target),
        lambda model, target: Eagle3Context(model, target, layers),
    )
