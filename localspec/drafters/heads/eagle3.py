"""EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840): one layer that guesses on from what three layers of its target saw.

Files are GGUF of llama.cpp's architecture `eagle3`, as its own conversion writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import Head, beside, check_held, check_rows, guessed_ids, read_head, tapped_layers
from localspec.drafters.heads.head_cache import (
    MOST_PASS_ROWS,
    HeadCache,
    HeadModel,
    HeadPasses,
    HeadRow,
    own_cache,
)
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.settings import NEXTN, Tap
from localspec.llama.model import Model
from localspec.models.facts import pairing
from localspec.models.facts.heads import check_forgets
from localspec.types import Float32Array


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
        self._passes = HeadPasses(model, params, MOST_PASS_ROWS, self._n_slots * self.n_paths, width)

    def close(self) -> None:
        self._passes.handle.close()

    def _compute(self, rows: Sequence[HeadRow], asked: bool) -> tuple[Float32Array, Float32Array] | None:
        """All rows are outputs or none: llama.cpp hands out the first ones, whichever were asked for."""
        passes, count, states = self._passes, len(rows), np.stack([row.state for row in rows])
        if rows[0].sequence is None:
            first = self._api.llama_memory_seq_pos_max(passes.memory, 0) + 1  # means nothing, but is checked
            batch = passes.batch(list(range(first, first + count)), [(0, 1)] * count, True, states=states)
            passes.handle.call(self._api.llama_encode, batch)
            states = passes.states(count).copy()
        positions, tokens, ways = [row.position for row in rows], [row.token for row in rows], self.n_paths
        ids = [(row.slot * ways, ways) if row.sequence is None else (row.slot * ways + row.sequence, 1) for row in rows]
        passes.decode(passes.batch(positions, ids, asked, tokens=tokens, states=states))
        return (passes.states(count), passes.logits(count)) if asked else None

    def _remove(self, slot: int, start: int) -> None:
        self._passes.remove(-1 if self._n_slots == 1 else slot, start)

    def _fork(self, slot: int, source: int, sequence: int, start: int, stop: int) -> None:
        first = slot * self.n_paths
        self._api.llama_memory_seq_cp(self._passes.memory, first + source, first + sequence, start, stop)


_LAYER_TENSORS = (
    "attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up",
    "ffn_down",
)  # fmt: skip
"""Tensors of its layer, without which llama.cpp refuses the file."""


def load(path: Path, target: Header) -> Head:
    header = read_head(path, ("eagle3",), "an EAGLE-3 head")
    check_forgets(target)
    pairing.check(target, header)
    layers, count = tapped_layers(header, target, three=True)
    _check_tensors(header, target)
    return Head(
        "eagle3",
        path,
        Tap(tuple(sorted({layer for layer in layers if layer < count})), nextn=count in layers),
        lambda target: beside(path, HeadModel, target),
        lambda model, target: Eagle3Context(model, target, layers),
    )


def _check_tensors(header: Header, target: Header) -> None:
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if header.n_layers != 1:
        raise ModelFileError(
            f"{header.path.name} is corrupt: an EAGLE-3 head has one layer, this has {header.n_layers}."
        )
    key, value = (header.number(f"attention.{part}_length") for part in ("key", "value"))
    if key != value:
        raise ModelFileError(f"{header.path.name} is corrupt: keys have {key} numbers, and values {value}.")
    norms = ("fc", "output_norm", *(["enc.output_norm"] if header.flag("eagle3.norm_before_fc") else []))
    check_held(header, (f"{name}.weight" for name in (*norms, *(f"blk.0.{part}" for part in _LAYER_TENSORS))))
    hidden, wide = header.number("embedding_length"), target.number("embedding_length")
    size, turned = key or hidden // max(1, header.number("attention.head_count")), header.number("rope.dimension_count")
    if turned > size or turned % 2:
        raise ModelFileError(f"{header.path.name} is corrupt: it turns {turned} of {size} numbers of a key.")
    for name, role in (("token_embd.weight", "embeddings"), ("output.weight", "output matrix")):
        if name not in tensors and hidden != wide:
            raise PairError(
                f"{header.path.name} cannot draft for {target.path.name}: it brings no {role}, and hidden size is"
                f" {wide} in the target and {hidden} in the head."
            )
    check_rows(header, tensors, target)
    guessed_ids(header, tensors, target)
