"""A trained head: a file that guesses from the hidden states of the one target it was trained for.

Each method's module has `load(path, target) -> Head`; `loading` finds the module of a file. It reads headers only, and
compares them with those of the model whose text is emitted. It raises a ModelFileError where a file is damaged or lacks
something, and a PairError where it is no such head, or made for another model: the message names the first fact that
differs. What llama.cpp would end the process over is refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from localspec.drafters.models.draft_model import BestFirst, DraftModel, DraftModelSettings
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor
from localspec.gguf.split import read_parts
from localspec.llama.cache.context import Context
from localspec.llama.exact.wide import Kernels
from localspec.llama.library.settings import FINAL, SHOWS_LAYERS, SHOWS_NEXTN, Tap
from localspec.llama.model import Model, TensorRows, check_text_model
from localspec.models.facts.checkpoint import is_checkpoint
from localspec.models.facts.heads import draft_kind, nextn_layers
from localspec.models.facts.pairing import MOST_SIZE_DIFFERENCE
from localspec.native.library import Int8Matrix
from localspec.types import Float32Array, LogitRows, Tokens


class Head:
    """One file that guesses for one target."""

    def __init__(
        self,
        name: str,
        path: Path,
        tap: Tap,
        weights: Callable[[Context], Any],
        context: Callable[[Any, Context], Any],
        kind: type[DraftModel] = BestFirst,
    ) -> None:
        """
        Args:
            name: the method: one of `methods.HEADS`; the drafter's name everywhere.
            path: file or folder of the head; the target's file if that contains the head.
            tap: states of the target that the head reads, by position. Ask for their span by name
                (`States.span(slot, tokens, FINAL)`): the target's context may keep more, for another head.
            weights: loads, when a drafter is first made, what all its drafters share; None = nothing.
            context: makes a drafter's `DraftContext`, as `kind` needs it, of the weights and the target.
            kind: of its drafters.
        """
        self.name, self.path, self.tap = name, path, tap
        self._load, self._context, self._kind = weights, context, kind
        self._weights: Any = None
        self._drafters: WeakSet[DraftModel] = WeakSet()

    def attach(self, target: Context, branches: int) -> DraftModel:
        """Makes a drafter with a cache of its own. The weights stay loaded until `close`.

        May be called again, when settings change: the drafter made before is closed after the new one was made, so
        a drafter's own `close` frees nothing that another one uses.

        Args:
            target: made with (at least) `tap`; its settings tell threads, slots and length.
            branches: guesses per position; 1 drafts a chain.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        if self._weights is None:
            self._weights = self._load(target)
        context = self._context(self._weights, target)
        settings = DraftModelSettings(branches)
        drafter = self._kind(context, target.model.end_tokens, settings, self.name, context.close)
        self._drafters.add(drafter)
        return drafter

    def close(self) -> None:
        """Frees drafters and weights; a second call does nothing."""
        for drafter in self._drafters:
            drafter.close()
        weights, self._weights = self._weights, None
        if hasattr(weights, "close"):  # arrays need none
            weights.close()


def beside(path: Path, kind: type[Model], target: Context, kernels: Kernels = "repacked", nextn: bool = False) -> Model:
    """The model of a head's file, on the devices of its target; `kernels` and `nextn` as in `Model.load`."""
    like = target.model
    return kind.load(path, gpu_layers=like.gpu_layers, device=like.device, kernels=kernels, nextn=nextn)


# -- what a header must say ------------------------------------------------------------------------------------------


def read_head(path: Path, methods: Collection[str], noun: str) -> Header:
    """The header of a GGUF file that holds a head of these methods, which people call `noun`.

    Raises:
        ModelFileError: it is in the form in which models are published for Python.
        PairError: it is something else.
    """
    if is_checkpoint(path):
        raise ModelFileError(
            f"{path.name} is {noun} as published for Python; localspec reads it as GGUF.",
            "Convert it with llama.cpp: convert_hf_to_gguf.py PATH --target-model-dir TARGET.",
        )
    header = check_text_model(path)
    kind = draft_kind(header)
    if kind.method not in methods:
        raise PairError(f"{path.name} is {kind.sentence}, not {noun}.")
    return header


def check_equal(path: Path, target: Header, facts: Iterable[tuple[str, object, object]]) -> None:
    """Compares a head with its target by (fact, of the target, of the head).

    Raises:
        PairError: names the first fact that differs.
    """
    for fact, ours, theirs in facts:
        if ours != theirs:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )


def check_sizes(path: Path, target: Header, hidden: int, vocabulary: int) -> None:
    """Compares the sizes of states and tokens of a head's matrices with its target's."""
    width, tokens = (
        target.number("embedding_length_out") or target.number("embedding_length"),
        target.count(_TOKENS_KEY),
    )
    check_equal(path, target, [("hidden size", width, hidden)])
    if abs(tokens - vocabulary) > MOST_SIZE_DIFFERENCE:  # families pad differently
        check_equal(path, target, [("vocabulary", tokens, vocabulary)])


def check_held(header: Header, names: Iterable[str]) -> None:
    """
    Raises:
        ModelFileError: it lacks a tensor.
    """
    held = {tensor.name for tensor in header.tensors}
    for name in names:
        if name not in held:
            raise ModelFileError(f"{header.path} lacks the tensor {name}.")


def tapped_layers(header: Header, target: Header, three: bool = False) -> tuple[tuple[int, ...], int]:
    """The target's layers whose inputs a head reads, and how many it has, those of multi-token prediction not counted.
    A head that reads `three` may also read what follows the last.

    Raises:
        ModelFileError: it does not name them.
        PairError: the target has too few, or this llama.cpp does not show them.
    """
    layers, count = header.array(f"{header.architecture}.target_layers"), target.n_layers - nextn_layers(target)
    sound = all(isinstance(layer, int) and layer >= 0 for layer in layers)
    if not layers or not sound or (three and len(layers) != 3):
        named = f"{list(layers)}, not three" if three else list(layers)[:8]
        raise ModelFileError(f"{header.path.name} is corrupt: it names target layers {named}.")
    if max(layers) >= count + three:
        counted = "" if three else ", counted from 0"
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: number of layers is {count} in the target, and"
            f" the head reads layer {max(layers)}{counted}."
        )
    found, architecture = tuple(map(int, layers)), target.architecture
    if architecture not in SHOWS_LAYERS or (count in found and architecture not in SHOWS_NEXTN):
        raise PairError(
            f"llama.cpp does not show what goes into layers of the architecture {architecture}, which"
            f" {header.path.name} reads."
        )
    return found, count


_TOKENS_KEY = "tokenizer.ggml.tokens"


def check_rows(header: Header, tensors: Mapping[str, Tensor], target: Header) -> None:
    """Refuses embeddings of too few tokens, and a head that guesses through the target's output matrix of another
    size."""
    tokens, targets = header.count(_TOKENS_KEY), target.count(_TOKENS_KEY)
    own = tensors.get("token_embd.weight")
    rows = tokens if own is None else (*own.shape, 1)[1]
    if rows < tokens:
        raise ModelFileError(f"{header.path.name} is corrupt: it has embeddings of {rows} tokens, and {tokens} tokens.")
    if not tensors.keys() & {"output.weight", "d2t"} and tokens != targets:
        raise PairError(
            f"{header.path.name} cannot draft for {target.path.name}: it brings no output matrix, and there are"
            f" {targets} tokens in the target and {tokens} in the head."
        )


def guessed_ids(header: Header, tensors: Mapping[str, Tensor], target: Header) -> npt.NDArray[np.int64] | None:
    """int64[n]: the tokens that the head can guess, in the order of its output matrix; None = all, in their own order.

    Raises:
        ModelFileError: the list has no output matrix of its size, or names a token twice.
        PairError: it names a token that the target does not have.
    """
    ids, output = tensors.get("d2t"), tensors.get("output.weight")
    if ids is None:
        return None
    if ids.type != "I64" or output is None or output.shape[-1:] != ids.shape:
        raise ModelFileError(
            f"{header.path} is corrupt: d2t is {ids.type}{list(ids.shape)}, which no output matrix fits."
        )
    found = np.frombuffer(header.read(ids.offset, ids.size), dtype="<i8").astype(np.int64)
    size = min(target.count(_TOKENS_KEY), header.count(_TOKENS_KEY))
    if len(found) and (found.min() < 0 or found.max() >= size):
        wrong = int(found[(found < 0) | (found >= size)][0])
        raise PairError(f"{header.path.name} guesses token {wrong}; {target.path.name} has 0 to {size - 1}.")
    if len(np.unique(found)) != len(found):
        raise ModelFileError(f"{header.path} is corrupt: d2t names a token twice.")
    return found


def output_matrix(header: Header) -> Int8Matrix:
    """The output matrix of the model in a file, in 8 bits; the embeddings if one matrix serves as both.

    Raises:
        ModelFileError: it has neither, or in a number format that ggml does not unpack.
    """
    held = [(part, tensor) for part in read_parts(header.path) for tensor in part.tensors]
    for name in ("output.weight", "token_embd.weight"):
        for part, tensor in held:
            if tensor.name == name:
                matrix = TensorRows(part, tensor)
                return Int8Matrix.in_parts((matrix.rows, matrix.columns), partial(_part, matrix))
    raise ModelFileError(f"{header.path} has no output matrix.")


def _part(matrix: TensorRows, start: int, stop: int) -> Float32Array:
    return matrix.read(slice(start, stop))


# -- final states --------------------------------------------------------------------------------------------------

TAP = Tap(final="decoded")


class FinalState:
    """What contexts have in common that guess from the target's last final state alone (Medusa, MLP speculators).

    They have no cache: the state of the last evaluated token is there or it is not (right after a prompt, whose states
    were not asked for, it is not), so there is nothing to read and nothing to forget.
    """

    def __init__(self, target: Context) -> None:
        """`target`: made with `TAP` at least."""
        assert target.states is not None
        self.n_ctx, self.n_vocab = target.n_ctx, target.n_vocab
        self.n_paths = target.max_leaves
        """Most paths of a slot (`draft_model.TreeContext`); here more paths cost nothing."""
        self._states, self._threads = target.states, target.threads
        self._nothing = np.full((1, self.n_vocab), -np.inf, dtype=np.float32)

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """There is nothing to read."""
        return len(tokens) - 1

    reusable = prefill_chunk

    def close(self) -> None:
        """There is nothing to free."""

    def _last(self, slot: int, tokens: Tokens) -> tuple[int, Float32Array] | None:
        """How many of the tokens the target has evaluated, at most all but the last, and float32[n_embd], the final
        state of the last of those; None where it is not held, or is no number.
        """
        start, stop = self._states.span(slot, tokens, FINAL)
        stop = min(stop, len(tokens) - 1)
        if stop <= start:
            return None
        state = self._states.read(slot, FINAL, stop - 1, stop)[0]
        return (stop, state) if np.isfinite(state).all() else None

    def _row(self, scores: Float32Array | None) -> LogitRows:
        """A head's scores as a row of the target's vocabulary; None = nothing to guess."""
        if scores is None:
            return LogitRows.from_matrix(self._nothing)
        if len(scores) == self.n_vocab and scores.flags.c_contiguous:
            return LogitRows.from_matrix(scores[None])
        row = self._nothing.copy()
        row[0, : len(scores)] = scores[: self.n_vocab]
        return LogitRows.from_matrix(row)
