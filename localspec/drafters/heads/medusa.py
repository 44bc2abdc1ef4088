"""Medusa heads (Cai et al. 2024, arXiv 2401.10774): several guesses at once from the target's last final state.

Head d guesses the token d + 1 places after the last one without knowing what the heads before it guessed, so that
every combination of their guesses is a path, and the likeliest of those make the tree. The target decides as about any
draft; the *typical acceptance* of the paper, which changes the text, is not offered.

Files are as FasterDecoding publishes them: a state dictionary `medusa_lm_head.pt` (or .safetensors) with
"<head>.<layer>.linear.weight" and ".bias" of residual blocks, then "<head>.<layers>.weight", an output matrix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import TAP, FinalGuesses, FinalState, Head, check_sizes
from localspec.errors import ModelFileError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.models.facts.checkpoint import Tensors
from localspec.models.facts.heads import check_forgets
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.types import Feed, Float32Array, LogitRows

_TENSOR_NAME = re.compile(r"((?:medusa_head\.)?)(\d+)\.(\d+)\.(?:linear\.)?weight")


def load(path: Path, target: Header) -> Head:
    """Reads a folder or a weights file; see `head`. How many heads it has is taken from the weights: published
    config.json files say too few."""
    check_forgets(target)
    tensors = Tensors(path)
    for blocks, out in _layout(tensors):
        vocabulary, hidden = (*tensors.shapes[out], 0, 0)[:2]
        check_sizes(path, target, hidden, vocabulary)
        tensors.need(out, vocabulary, hidden)
        for block in blocks:
            tensors.need(f"{block}.weight", hidden, hidden)
            tensors.need(f"{block}.bias", hidden)
    return Head("medusa", path, TAP, lambda _: read(path), MedusaContext)


def _layout(tensors: Tensors) -> list[tuple[list[str], str]]:
    """(names of its residual blocks without ".weight", name of its output matrix) of every head, in order.

    Raises:
        ModelFileError: numbers are missing.
    """
    found: dict[int, dict[int, str]] = {}
    for name in tensors.shapes:
        if match := _TENSOR_NAME.fullmatch(name):
            found.setdefault(int(match[2]), {})[int(match[3])] = name
    if not found or sorted(found) != list(range(len(found))):
        raise ModelFileError(f"{tensors.path.name} has Medusa heads {sorted(found)}; they are counted from 0.")
    layers = max(map(len, found.values()))
    layout = []
    for head, names in sorted(found.items()):
        for layer in range(layers):
            kind = "weight" if layer == layers - 1 else "linear.weight"
            name = names.get(layer, "")
            if not name.endswith(f"{head}.{layer}.{kind}"):
                raise ModelFileError(f"{tensors.path.name} lacks the tensor {head}.{layer}.{kind}.")
        blocks = [names[layer].removesuffix(".weight") for layer in range(layers - 1)]
        layout.append((blocks, names[layers - 1]))
    return layout


@dataclass(frozen=True, slots=True)
class _Weights:
    blocks: tuple[tuple[Int8Matrix, Float32Array], ...]
    """Weight and bias of every residual block."""
    out: Int8Matrix

    def scores(self, states: Float32Array, threads: int) -> Float32Array:
        """float32[n, vocabulary] of float32[n, hidden] final states."""
        for weight, bias in self.blocks:
            inner = kernels.matvec(weight, states, threads) + bias
            states = states + inner / (1.0 + np.exp(-np.clip(inner, -80.0, 80.0)))
        return kernels.matvec(self.out, states, threads)


def read(path: Path) -> list[_Weights]:
    tensors = Tensors(path)
    return [
        _Weights(
            tuple((tensors.matrix(f"{block}.weight"), tensors.array(f"{block}.bias")) for block in blocks),
            tensors.matrix(out),
        )
        for blocks, out in _layout(tensors)
    ]


class MedusaContext(FinalState):
    """The row after a path is that of the head which guesses so far ahead."""

    def __init__(self, weights: Sequence[_Weights], target: Context) -> None:
        super().__init__(target)
        self._weights = weights

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after each feed, all -inf further ahead than there are heads, or where the state is not held. One
        product computes a head's rows for all slots, and reads the weights once."""
        places: list[tuple[FinalGuesses, int] | None] = []
        for feed in feeds:
            found = self._after(feed)
            head = len(self._weights) if found is None else len(found[1]) - 1
            places.append(None if found is None or head >= len(self._weights) else (found[0], head))
        for head in sorted({place[1] for place in places if place is not None}):
            after = {id(place[0]): place[0] for place in places if place is not None and place[1] == head}
            if wanted := [one for one in after.values() if head not in one.known]:
                rows = self._weights[head].scores(np.stack([one.state for one in wanted]), self._threads)
                for one, scores in zip(wanted, rows, strict=True):
                    one.known[head] = self._row(scores)
        return [self._row(None) if place is None else place[0].known[place[1]] for place in places]
