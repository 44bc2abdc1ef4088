"""A trained head: a file that guesses from the hidden states of the one target it was trained for.

Each method's module has `load(path, target) -> Head`, which reads headers only; `runtime.heads` finds the module of a
file. What the head needs of the target's passes is its `tap`; the target's context keeps that (`llama.states`), and
the drafter that `attach` makes reads it by position, as a cache of the history like every drafter's.

Which tokens a head in a GGUF file reads and guesses: what would end the process is refused from its header.

The matrix that turns a model's final states into logits, for heads that guess through it.

What heads share that guess from the target's last final state alone (Medusa, MLP speculators).

They have no cache: the state of the last evaluated token is there or it is not (right after a prompt, whose states
were not asked for, it is not), so there is nothing to read and nothing to forget.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from localspec.engine.interfaces import Drafter
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, Tensor
from localspec.gguf.split import read_parts
from localspec.llama.cache.context import Context
from localspec.llama.exact.wide import Kernels
from localspec.llama.library.quantize import TensorRows
from localspec.llama.library.settings import FINAL, Tap
from localspec.llama.model import Model
from localspec.models.facts.pairing import MOST_SIZE_DIFFERENCE
from localspec.native.library import Int8Matrix
from localspec.types import Float32Array, LogitRows, Tokens


class Head(Protocol):
    """One file that guesses for one target."""

    name: str
    """The method: one of `methods.HEADS`; the drafter's name everywhere."""
    path: Path
    """File or folder of the head; the target's file if that contains the head."""
    tap: Tap
    """States of the target that the head reads. Ask for their span by name (`States.span(slot, tokens, FINAL)`): the
    context may keep more, for another head."""

    def attach(self, target: Context, branches: int) -> Drafter:
        """Makes the drafter of the head. Loads the weights, which stay loaded until `close`.

        May be called again, when settings change: the drafter made before is closed after the new one was made, so
        a drafter's own `close` frees nothing that another one uses.

        Args:
            target: made with (at least) `tap`; its settings tell threads, slots and length.
            branches: guesses per position; 1 drafts a chain.

        Raises:
            ModelFileError: the file is damaged.
            ModelError: llama.cpp refuses it, or there is no memory.
        """
        ...

    def close(self) -> None:
        """Frees what it loaded, without which its drafters cannot guess; a second call does nothing."""
        ...


class Weights:
    """The model of a head's file: loaded once, when a drafter is first made, and freed with the head."""

    def __init__(self, path: Path, kind: type[Model]) -> None:
        """`kind`: how it is loaded."""
        self._path, self._kind = path, kind
        self._model: Model | None = None

    def beside(self, like: Model, *, kernels: Kernels = "repacked", nextn: bool = False) -> Model:
        """The loaded model.

        Args:
            like: the target, on whose devices it goes.
            kernels: as in `Model.load`.
            nextn: as in `Model.load`.
        """
        if self._model is None:
            self._model = self._kind.load(
                self._path, gpu_layers=like.gpu_layers, device=like.device, kernels=kernels, nextn=nextn
            )
        return self._model

    def close(self) -> None:
        """Frees it; a second call does nothing."""
        model, self._model = self._model, None
        if model is not None:
            model.close()


_TOKENS_KEY = "tokenizer.ggml.tokens"


def check_rows(header: Header, tensors: Mapping[str, Tensor], target: Header) -> None:
    """Every token needs its embedding, and every row of the output matrix its token.

    Args:
        header: of the head.
        tensors: of the head, by name.
        target: of the model whose text is emitted.

    Raises:
        ModelFileError: it has embeddings of too few tokens.
        PairError: it guesses through the target's output matrix, which has another number of tokens.
    """
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
                return _in_8_bits(TensorRows(part, tensor))
    raise ModelFileError(f"{header.path} has no output matrix.")


def _in_8_bits(matrix: TensorRows) -> Int8Matrix:
    return Int8Matrix.in_parts((matrix.rows, matrix.columns), lambda start, stop: matrix.read(slice(start, stop)))


TAP = Tap(final="decoded")


class FinalState:
    """The part of a `draft_model.DraftContext` that does not depend on the method, but for `decode`."""

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

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """All but the last token."""
        return len(tokens) - 1

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


def check_sizes(path: Path, target: Header, hidden: int, vocabulary: int) -> None:
    """Whether a head's matrices go with the target's states and tokens.

    Raises:
        PairError: they do not; names the fact that differs.
    """
    width = target.number("embedding_length_out") or target.number("embedding_length")
    tokens = target.count("tokenizer.ggml.tokens")
    for fact, ours, theirs, most in (
        ("hidden size", width, hidden, 0),
        ("vocabulary", tokens, vocabulary, MOST_SIZE_DIFFERENCE),  # families pad differently
    ):
        if abs(ours - theirs) > most:
            raise PairError(
                f"{path.name} cannot draft for {target.path.name}: {fact}: {ours} in the target, {theirs} in the head."
            )
