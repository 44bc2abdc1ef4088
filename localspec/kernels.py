"""The one door to acceleration: C if the library was built, numpy otherwise, with the same bits.

`LOCALSPEC_BACKEND=native|reference` forces one. Rows may be written while a call lasts (logit bias and penalties are
applied in place) and hold what they held when it returns.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from localspec import native, reference
from localspec.errors import KernelError
from localspec.native.matrix import Int8Matrix
from localspec.native.successors import Guess
from localspec.native.suffix import Continuation, Followed
from localspec.types import (
    Float32Array,
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)

UInt32Array = npt.NDArray[np.uint32]


class NgramSearch(Protocol):
    """See `indexes.NgramIndex`."""

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None: ...
    def lookup(self, max_tokens: int) -> tuple[Tokens, int]: ...
    def check_integrity(self) -> str: ...
    def memory_bytes(self) -> int: ...
    def close(self) -> None: ...


class SuffixSearch(Protocol):
    """See `indexes.SuffixIndex`."""

    def add(self, sequences: Sequence[Tokens]) -> int: ...
    def remove(self, sequence: int) -> None: ...
    def sync(self, tokens: Tokens, unchanged: int = 0) -> None: ...
    def guess(
        self, context: Tokens, max_nodes: int, max_depth: int, tree: bool = False, runs_on: bool = False
    ) -> Continuation: ...
    def follow(
        self, tokens: Tokens, unchanged: int, max_nodes: int, max_depth: int, tree: bool = False, other: Any = None
    ) -> Followed: ...
    def check_integrity(self) -> str: ...
    def tokens_held(self) -> int: ...
    def memory_bytes(self) -> int: ...
    def close(self) -> None: ...


class SuccessorSearch(Protocol):
    """See `indexes.SuccessorIndex`."""

    def clear(self) -> None: ...
    def learn(self, rows: LogitRows, indices: Sequence[int], tokens: Sequence[int]) -> None: ...
    def guess(
        self, token: int, temperature: float, noise: Noise, position: int, max_nodes: int, max_depth: int, breadth: int
    ) -> Guess: ...
    def memory_bytes(self) -> int: ...


class Backend(Protocol):
    """What both implementations offer; the functions of this module describe it."""

    @property
    def name(self) -> str: ...
    def philox4x32_10(self, counter: UInt32Array, key: UInt32Array) -> UInt32Array: ...
    def uniform(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array: ...
    def gumbel(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array: ...
    def log(self, x: Float64Array) -> Float64Array: ...
    def exp(self, x: Float64Array) -> Float64Array: ...
    def sample(
        self,
        rows: LogitRows,
        index: int,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        count: int = 1,
    ) -> tuple[Tokens, Float32Array]: ...
    def distribution(self, rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens) -> SparseProbs: ...
    def log_probs(self, rows: LogitRows, index: int, tokens: Tokens) -> Float64Array: ...
    def top_log_probs(self, rows: LogitRows, index: int, count: int) -> tuple[Tokens, Float64Array]: ...
    def verify(
        self,
        rows: LogitRows,
        tokens: Tokens,
        parents: Tokens,
        probs: tuple[SparseProbs, ...] | None,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        rule: Rule,
    ) -> tuple[Tokens, int]: ...
    def matvec(self, matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array: ...
    def NgramIndex(self, min_ngram: int, max_ngram: int) -> NgramSearch: ...  # noqa: N802 (a class in the reference)
    def SuffixIndex(self, depth: int) -> SuffixSearch: ...  # noqa: N802 (a class in the reference)
    def SuccessorIndex(self) -> SuccessorSearch: ...  # noqa: N802 (a class in the reference)


@functools.cache
def _choose() -> tuple[Backend, str]:
    """The backend and why it is the one."""
    wish = os.environ.get("LOCALSPEC_BACKEND", "")
    if wish not in ("", "native", "reference"):
        raise KernelError(f"LOCALSPEC_BACKEND is {wish!r}; it can be native or reference.")
    if wish == "reference":
        return reference, "LOCALSPEC_BACKEND=reference"
    try:
        kernels = native.load()
    except KernelError as error:
        if wish:
            raise
        return reference, str(error)
    return kernels, "LOCALSPEC_BACKEND=native" if wish else f"built, using {kernels.isa}"


def backend() -> Backend:
    """The one in use."""
    return _choose()[0]


def backend_name() -> str:
    """ "native" or "reference"."""
    return _choose()[0].name


def backend_reason() -> str:
    """Why it is that one: a sentence or phrase for a person."""
    return _choose()[1]


def cpu_features() -> str:
    """What the native dispatcher saw, e.g. "x86-64 avx2 avx512"; the architecture's name without the library."""
    backend = _choose()[0]
    return backend.cpu_features if isinstance(backend, native.NativeKernels) else platform.machine()


# Numbers


def philox4x32_10(counter: UInt32Array, key: UInt32Array) -> UInt32Array:
    """uint32[4] random words for a uint32[4] counter and a uint32[2] key (Salmon et al. 2011)."""
    return _choose()[0].philox4x32_10(counter, key)


def uniform(noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
    """float64[n] in (0, 1), one per token id: (x + 0.5) / 2^32, x the first Philox word."""
    return _choose()[0].uniform(noise, purpose, position, tokens)


def gumbel(noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
    """float64[n] = -log(-log(uniform)), with our own log."""
    return _choose()[0].gumbel(noise, purpose, position, tokens)


def log(x: Float64Array) -> Float64Array:
    """Natural logarithm of positive normal float64[n], the same bits everywhere."""
    return _choose()[0].log(x)


def exp(x: Float64Array) -> Float64Array:
    """e^x of float64[n] <= 700, the same bits everywhere; exactly 0 below -690."""
    return _choose()[0].exp(x)


# One row


def _check_row(rows: LogitRows, index: int) -> None:
    if not 0 <= index < len(rows):
        raise KernelError(f"row {index} was asked for; there are {len(rows)}.")


def sample(
    rows: LogitRows,
    index: int,
    sampling: SamplingParams,
    window: Tokens,
    noise: Noise,
    position: int,
    count: int = 1,
) -> tuple[Tokens, Float32Array]:
    """The `count` best tokens by log probability + Gumbel noise (Purpose.SAMPLE), best first, ties to the lower id.

    One is an exact sample (Gumbel-max), more are samples without replacement in the order in which they were drawn
    (Gumbel-top-k, Kool et al. 2019). At temperature 0 the most likely ones; of the other settings only bias,
    penalties and top-k apply then.

    Args:
        rows: Logits as the model left them; only rows[index] is touched.
        window: int32[m], the tokens before this row's; the last `penalty_last_n` count.
        position: Absolute position of the token that is drawn.

    Returns:
        int32[k] ids and float32[k] probabilities after the transform (at temperature 0: softmax over the top-k at
        temperature 1), k <= count: fewer when the support is smaller.

    Raises:
        KernelError: NaN or +inf in the row, every token excluded, or `index` or `count` out of range.
    """
    _check_row(rows, index)
    if count < 1:
        raise KernelError(f"{count} tokens were asked for; 1 is the least.")
    return _choose()[0].sample(rows, index, sampling, window, noise, position, count)


def distribution(rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens) -> SparseProbs:
    """rows[index] after bias, penalties, top-k, typical, top-p, min-p and temperature; `window` as for `sample`.

    Raises:
        KernelError: NaN or +inf in the row, every token excluded, or `index` out of range.
    """
    _check_row(rows, index)
    return _choose()[0].distribution(rows, index, sampling, window)


def log_probs(rows: LogitRows, index: int, tokens: Tokens | Sequence[int]) -> Float64Array:
    """float64[n], log-softmax of the raw rows[index] at int32[n] ids; -inf for an excluded token.

    Raises:
        KernelError: NaN or +inf in the row, every token excluded, or an index or id out of range.
    """
    _check_row(rows, index)
    ids = np.asarray(tokens, dtype=np.int32)
    if len(ids) and not 0 <= ids.min() <= ids.max() < rows.n_vocab:
        raise KernelError(f"token ids {ids.min()} to {ids.max()} do not fit a vocabulary of {rows.n_vocab}.")
    return _choose()[0].log_probs(rows, index, ids)


def top_log_probs(rows: LogitRows, index: int, count: int) -> tuple[Tokens, Float64Array]:
    """int32[k] most likely ids of the raw rows[index], best first, and their log-softmax, float64[k]; k <= count.

    Raises:
        KernelError: NaN or +inf in the row, every token excluded, or `index` or `count` out of range.
    """
    _check_row(rows, index)
    if count < 1:
        raise KernelError(f"{count} tokens were asked for; 1 is the least.")
    return _choose()[0].top_log_probs(rows, index, count)


# Verification


def verify(
    rows: LogitRows,
    tokens: Tokens,
    parents: Tokens,
    probs: tuple[SparseProbs, ...] | None,
    sampling: SamplingParams,
    window: Tokens,
    noise: Noise,
    position: int,
    rule: Rule,
) -> tuple[Tokens, int]:
    """What the target says to a draft: which nodes it would have said itself, and its own token after them.

    *coupled* draws the target's token of each row with the noise that plain decoding would use and follows the child
    that equals it. *rejection* accepts a child with probability min(1, target_probs / draft_probs), else takes what is
    left of target_probs to the next sibling (Leviathan et al. 2023, Chen et al. 2023). *block* decides about a chain
    as a whole (Sun et al. 2024).

    Args:
        rows: Row 0 follows the history, row 1 + i follows node i. Rows off the path are not touched (*block*: rows
            after the accepted prefix may be).
        tokens: int32[n] draft nodes; siblings are distinct.
        parents: int32[n], -1 is the history's last token; parents before children, siblings in trial order.
        probs: What each token was drawn from, given that its earlier siblings were not it; None for deterministic
            guesses. *coupled* ignores it.
        window: int32[m], the whole history.
        noise: For *rejection* and *block* its `round` is the history length.
        position: Absolute position of the token drawn from row 0, that is, the history length.

    Returns:
        int32[a] accepted nodes along the path, and the next token.

    Raises:
        KernelError: NaN or +inf in a row on the path, every token of it excluded, lengths that do not match, parents
            after children, a tree under *block*, or a token to which its own draft_probs give 0.
    """
    n = len(tokens)
    if len(parents) != n or len(rows) <= n or (probs is not None and len(probs) != n):
        given = "no" if probs is None else len(probs)
        raise KernelError(
            f"a draft of {n} tokens came with {len(parents)} parents, {given} probs and {len(rows)} rows."
        )
    return _choose()[0].verify(rows, tokens, parents, probs, sampling, window, noise, position, rule)


# Drafter heads


def matvec(matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array:
    """float32[n, rows]: the matrix times each of float32[n, columns] inputs.

    An input is rounded to 15 bits beside its largest entry; sums are exact integers. One that holds NaN or inf gives
    NaN. At most so many threads take part, as far as the matrix is worth them; the bits are the same.

    Raises:
        KernelError: the inputs have another number of columns.
    """
    if inputs.ndim != 2 or inputs.shape[1] != matrix.shape[1] or inputs.dtype != np.float32:
        raise KernelError(f"inputs are {inputs.dtype}{list(inputs.shape)}; the matrix has {matrix.shape[1]} columns.")
    return _choose()[0].matvec(matrix, inputs, threads)
