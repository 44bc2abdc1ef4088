"""Heads that guess several tokens from the target's last final state alone.

Medusa heads (Cai et al. 2024, arXiv 2401.10774): head d guesses the token d + 1 places after the last one without
knowing what the heads before it guessed, so that every combination of their guesses is a path, and the likeliest of
those make the tree. The target decides as about any draft; the *typical acceptance* of the paper, which changes the
text, is not offered. Files are as FasterDecoding publishes them: a state dictionary `medusa_lm_head.pt` (or
.safetensors) with "<head>.<layer>.linear.weight" and ".bias" of residual blocks, then "<head>.<layers>.weight", an
output matrix.

MLP speculators (Wertheimer et al. 2024, arXiv 2404.19124) are a small recurrence: a step mixes the state so far with
the embedding of the token that was guessed last, and an output matrix reads the next guess. Files are as
ibm-ai-platform publishes its accelerators: config.json (`model_type` "mlp_speculator") and safetensors
"speculator.emb.N.weight", "proj", "ln" (weight and bias) and "head", one of each a step, or with `tie_weights` one for
all, but for the first projection.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from localspec.drafters.heads.head import Head, check_sizes
from localspec.errors import ModelFileError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import FINAL, Tap
from localspec.models.facts.heads import Tensors, check_forgets, config_of
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.types import Feed, Float32Array, LogitRows, Tokens

TAP = Tap(final="decoded")


@dataclass(slots=True)
class FinalGuesses:
    """Results of a head after one final state of the target."""

    state: Float32Array
    rows: dict[int, LogitRows] = field(default_factory=dict)  # of Medusa: {head: its row}
    steps: dict[bytes, tuple[Float32Array, LogitRows]] = field(default_factory=dict)
    """Of MLP speculators: {bytes of a path: state and row after it}."""


class FinalState:
    """A `DraftContext` that guesses from the target's last final state alone (Medusa, MLP speculators), on any path.

    It has no cache: the state of the last evaluated token is there or it is not (right after a prompt, whose states
    were not asked for, it is not), so there is nothing to read and nothing to forget."""

    def __init__(self, target: Context) -> None:
        """`target`: made with `TAP` at least."""
        assert target.states is not None
        self.n_ctx, self.n_vocab, self.n_paths = target.n_ctx, target.n_vocab, target.max_leaves
        self._states, self._threads = target.states, target.threads
        self._nothing = np.full((1, self.n_vocab), -np.inf, dtype=np.float32)
        self._guesses: dict[int, FinalGuesses] = {}

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """There is nothing to read."""
        return len(tokens) - 1

    reusable = prefill_chunk

    def close(self) -> None:
        """There is nothing to free."""

    def _after(self, feed: Feed) -> tuple[FinalGuesses, Tokens] | None:
        """The results after the last state of the target that serves a feed, and the feed's tokens after it, at
        least one; None where the state is not held, or is no number."""
        start, stop = self._states.span(feed.slot, feed.tokens, FINAL)
        stop = min(stop, len(feed.tokens) - 1)
        if stop <= start:
            return None
        state = self._states.read(feed.slot, FINAL, stop - 1, stop)[0]
        if not np.isfinite(state).all():
            return None
        guesses = self._guesses.get(feed.slot)
        if guesses is None or not np.array_equal(guesses.state, state):
            guesses = self._guesses[feed.slot] = FinalGuesses(state)
        return guesses, feed.tokens[stop:]

    def _row(self, scores: Float32Array | None) -> LogitRows:
        """A head's scores as a row of the target's vocabulary; None = nothing to guess."""
        if scores is None:
            return LogitRows.from_matrix(self._nothing)
        if len(scores) == self.n_vocab and scores.flags.c_contiguous:
            return LogitRows.from_matrix(scores[None])
        row = self._nothing.copy()
        row[0, : len(scores)] = scores[: self.n_vocab]
        return LogitRows.from_matrix(row)


_TENSOR_NAME = re.compile(r"((?:medusa_head\.)?)(\d+)\.(\d+)\.(?:linear\.)?weight")


def load_medusa(path: Path, target: Header) -> Head:
    """How many heads a folder or a weights file has is taken from the weights: published config.json files say too
    few."""
    check_forgets(target)
    tensors = Tensors(path)
    for blocks, out in _layout(tensors):
        vocabulary, hidden = (*tensors.shapes[out], 0, 0)[:2]
        check_sizes(path, target, hidden, vocabulary)
        tensors.need(out, vocabulary, hidden)
        for block in blocks:
            tensors.need(f"{block}.weight", hidden, hidden)
            tensors.need(f"{block}.bias", hidden)
    return Head("medusa", path, TAP, lambda _: read_medusa(path), MedusaContext)


def _layout(tensors: Tensors) -> list[tuple[list[str], str]]:
    """(names of its residual blocks without ".weight", name of its output matrix) of every head, in order. Raises
    ModelFileError: numbers are missing."""
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
class _MedusaHead:
    blocks: tuple[tuple[Int8Matrix, Float32Array], ...]
    """Weight and bias of every residual block."""
    out: Int8Matrix

    def scores(self, states: Float32Array, threads: int) -> Float32Array:
        """float32[n, vocabulary] of float32[n, hidden] final states."""
        for weight, bias in self.blocks:
            inner = kernels.matvec(weight, states, threads) + bias
            states = states + inner / (1.0 + np.exp(-np.clip(inner, -80.0, 80.0)))
        return kernels.matvec(self.out, states, threads)


def read_medusa(path: Path) -> list[_MedusaHead]:
    tensors = Tensors(path)
    return [
        _MedusaHead(
            tuple((tensors.matrix(f"{block}.weight"), tensors.array(f"{block}.bias")) for block in blocks),
            tensors.matrix(out),
        )
        for blocks, out in _layout(tensors)
    ]


class MedusaContext(FinalState):
    """The row after a path is that of the head which guesses so far ahead."""

    def __init__(self, weights: Sequence[_MedusaHead], target: Context) -> None:
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
            if wanted := [one for one in after.values() if head not in one.rows]:
                rows = self._weights[head].scores(np.stack([one.state for one in wanted]), self._threads)
                for one, scores in zip(wanted, rows, strict=True):
                    one.rows[head] = self._row(scores)
        return [self._row(None) if place is None else place[0].rows[place[1]] for place in places]


_EPSILON = np.float32(1e-6)
_MOST_STEPS = 64


@dataclass(frozen=True, slots=True)
class SpeculatorShape:
    """The facts of config.json."""

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
        """Raises ModelFileError: config.json is missing, or a number in it is none."""
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


def load_mlp(path: Path, target: Header) -> Head:
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
    return Head("mlp", path, TAP, lambda _: read_mlp(path, shape), partial(MlpContext, shape))


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


def read_mlp(path: Path, shape: SpeculatorShape) -> list[_Step]:
    tensors = Tensors(path)
    prefix = _prefix(tensors)
    once = cache(tensors.matrix)

    def matrix(name: str, step: int) -> Int8Matrix:
        return once(f"{prefix}{name}.{shape.part(name, step)}.weight")

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
            if key not in guesses.steps:
                mixed = kernels.matvec(step.proj, state[None], self._threads)[0]
                mixed = mixed + self._token_weight * step.emb.rows(np.array([int(path[number])]))[0]
                after = _gelu(_unit(mixed) * step.scale + step.shift)
                guesses.steps[key] = after, self._row(kernels.matvec(step.head, after[None], self._threads)[0])
            state, row = guesses.steps[key]
        return row


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
