"""MLP speculators (Wertheimer et al. 2024, arXiv 2404.19124): a small recurrence after the target's last final state.

A step mixes the state so far with the embedding of the token that was guessed last, and an output matrix reads the
next guess. Files are as ibm-ai-platform publishes its accelerators: config.json (`model_type` "mlp_speculator") and
safetensors "speculator.emb.N.weight", "proj", "ln" (weight and bias) and "head", one of each a step, or with
`tie_weights` one for all, but for the first projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import TAP, FinalState, Head, check_sizes
from localspec.errors import ModelFileError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.models.facts.checkpoint import Tensors, config_of
from localspec.models.facts.heads import check_forgets
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.types import Feed, Float32Array, LogitRows

_EPSILON = np.float32(1e-6)
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class SpeculatorShape:
    """What config.json says."""

    hidden: int
    """`emb_dim`: size of the target's states."""
    inner: int
    """`inner_dim`: size of the speculator's own states; a 0 in the file means `emb_dim`."""
    steps: int
    """`n_predict`: number of tokens that it guesses."""
    vocabulary: int
    tied: bool
    """`tie_weights`: whether all steps share their weights."""
    scaled: bool
    """`scale_input`: the target's state is scaled to a mean square of 1/2 first."""

    @staticmethod
    def of(path: Path) -> SpeculatorShape:
        """
        Raises:
            ModelFileError: config.json is missing, or a number in it is none.
        """
        config = config_of(path)
        numbers = {}
        for key in ("emb_dim", "inner_dim", "n_predict", "vocab_size"):
            value = config.get(key, 0 if key == "inner_dim" else None)
            most = _MOST_STEPS if key == "n_predict" else 2**31
            if isinstance(value, bool) or not isinstance(value, int) or not (key != "inner_dim") <= value < most:
                raise ModelFileError(f"{key} is {value!r} in config.json of {path}; a number is needed.")
            numbers[key] = value
        inner = numbers["inner_dim"] or numbers["emb_dim"]
        tied, scaled = config.get("tie_weights") is True, config.get("scale_input") is True
        return SpeculatorShape(numbers["emb_dim"], inner, numbers["n_predict"], numbers["vocab_size"], tied, scaled)

    def part(self, name: str, step: int) -> int:
        """The number under which a part of a step ("emb", "proj", "ln", "head") lies in the file."""
        return min(step, 1 if name == "proj" else 0) if self.tied else step


def load(path: Path, target: Header) -> Head:
    """Reads a folder, or a weights file with its config.json beside it; see `head`."""
    check_forgets(target)
    shape, tensors = SpeculatorShape.of(path), Tensors(path)
    check_sizes(path, target, shape.hidden, shape.vocabulary)
    prefix = _prefix(tensors)
    for step in range(shape.steps):
        for name, size in (
            ("emb", (shape.vocabulary, shape.inner)),
            ("proj", (shape.inner, shape.inner if step else shape.hidden)),
            ("ln", (shape.inner,)),
            ("head", (shape.vocabulary, shape.inner)),
        ):
            tensors.need(f"{prefix}{name}.{shape.part(name, step)}.weight", *size)
        tensors.need(f"{prefix}ln.{shape.part('ln', step)}.bias", shape.inner)
    return Head("mlp", path, TAP, lambda _: read(path, shape), partial(MlpContext, shape))


def _prefix(tensors: Tensors) -> str:
    return "speculator." if any(name.startswith("speculator.") for name in tensors.shapes) else ""


@dataclass(frozen=True, slots=True)
class _Step:
    """Weights of one step; tied ones are the same objects."""

    emb: Int8Matrix
    proj: Int8Matrix
    scale: Float32Array
    shift: Float32Array
    head: Int8Matrix


def read(path: Path, shape: SpeculatorShape) -> list[_Step]:
    tensors = Tensors(path)
    prefix = _prefix(tensors)
    matrices: dict[str, Int8Matrix] = {}

    def matrix(name: str, step: int) -> Int8Matrix:
        name = f"{prefix}{name}.{shape.part(name, step)}.weight"
        if name not in matrices:
            matrices[name] = tensors.matrix(name)
        return matrices[name]

    def norm(name: str, step: int) -> Float32Array:
        return tensors.array(f"{prefix}ln.{shape.part('ln', step)}.{name}")

    return [
        _Step(matrix("emb", step), matrix("proj", step), norm("weight", step), norm("bias", step),
              matrix("head", step))
        for step in range(shape.steps)
    ]  # fmt: skip


class MlpContext(FinalState):
    """Keeps the states of the paths after the target's last one, by the bytes of the tokens after it."""

    def __init__(self, shape: SpeculatorShape, steps: Sequence[_Step], target: Context) -> None:
        super().__init__(target)
        self._steps, self._shape = steps, shape
        kept = 0.5 ** (0.5 / shape.steps)
        self._token_weight = np.float32(math.sqrt((1.0 - kept**2) * (shape.inner / 2)) / kept)
        """Weight of a token's embedding when it is added to the state; the norm after the sum rescales both."""

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """The row after each feed, all -inf further ahead than it was trained for, or where the state is not held."""
        return [self._said(feed) for feed in feeds]

    def _said(self, feed: Feed) -> LogitRows:
        """Computes what is not known yet of the steps along a path."""
        found = self._after(feed)
        if found is None:
            return self._row(None)
        guesses, path = found
        if len(path) > len(self._steps) or int(path.max()) >= self._shape.vocabulary:
            return self._row(None)
        state = guesses.state
        if self._shape.scaled:
            state = _unit(state) * np.float32(math.sqrt(0.5))
        for number, step in enumerate(self._steps[: len(path)]):
            key = path[: number + 1].tobytes()
            if key not in guesses.known:
                mixed = kernels.matvec(step.proj, state[None], self._threads)[0]
                mixed = mixed + self._token_weight * step.emb.rows(np.array([int(path[number])]))[0]
                after = _gelu(_unit(mixed) * step.scale + step.shift)
                guesses.known[key] = after, self._row(kernels.matvec(step.head, after[None], self._threads)[0])
            state, row = guesses.known[key]
        return row  # type: ignore[no-any-return]


def _unit(x: Float32Array) -> Float32Array:
    """Scaled to a mean square of 1."""
    found: Float32Array = x / np.sqrt(np.mean(x * x) + _EPSILON)
    return found


def _gelu(x: Float32Array) -> Float32Array:
    """x times the normal distribution's P(X <= x), to 1e-6: erf after Abramowitz and Stegun 7.1.26."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x) / math.sqrt(2.0))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-0.5 * x * x)
    found: Float32Array = (x * np.where(x < 0, tail, 1.0 - tail)).astype(np.float32)
    return found
