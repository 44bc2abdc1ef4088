"""Data every layer shares: tokens, probabilities, logits rows, sampling settings, noise. No behaviour beyond checks.

Shapes and dtypes are part of the contract; `engine/interfaces.py` is the page to read next.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import UsageError
from localspec.options import Rule as Rule
from localspec.options import SamplingParams as SamplingParams

Tokens: TypeAlias = npt.NDArray[np.int32]
Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]

NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)
NO_TOKENS.flags.writeable = False


class Purpose(IntEnum):
    """What a random number is used for; part of the noise counter, so that no two uses share a number."""

    SAMPLE = 0
    ACCEPT = 1
    RESIDUAL = 2
    BRANCH = 3


@dataclass(frozen=True, slots=True)
class Noise:
    """Names a stream of counter-based random numbers; holds no state. Philox4x32-10 (Salmon et al. 2011) with key =
    `seed` (low word first) and counter = (token id, absolute position, purpose | round << 2, stream). A number is a
    function of these alone, so any entry can be computed alone and in any order."""

    seed: int  # 0 to 2^64 - 1
    stream: int = 0  # index of the choice when one request asks for several (`n` > 1)
    round: int = 0
    """0 under *coupled*. *Rejection* and *block* put the history length at draft time here, so that no pass meets
    numbers that an earlier pass has conditioned on."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to be read by a model, in which only some spellings of special tokens are these tokens."""

    text: str
    breaks: tuple[int, ...] = ()  # indexes into `text`, ascending: a spelling across one is text like any other


@dataclass(frozen=True, slots=True)
class SparseProbs:
    """A distribution over a few tokens; every other token has probability 0."""

    tokens: Tokens  # int32[m], distinct, most likely first, ties to the lower id
    probs: Float64Array  # float64[m], each > 0, summing to 1


@dataclass(frozen=True, slots=True, eq=False)
class Breakers:
    """Sequences of tokens that no repetition goes across. Equal to itself alone."""

    heads: Tokens  # int32[n], the first token of each, ascending
    offsets: Tokens  # int32[n + 1], where the other tokens of each begin and end in `tails`
    tails: Tokens  # int32[m]


NO_BREAKERS = Breakers(NO_TOKENS, np.zeros(1, dtype=np.int32), NO_TOKENS)


@dataclass(frozen=True, slots=True)
class ModelSampling(SamplingParams):
    breakers: Breakers = NO_BREAKERS  # what `dry_sequence_breakers` are in its tokens


class LogitRows:
    """Rows of logits where the model left them: pointers, not copies. Valid until the next pass of the context that
    made them. `rows[i]` is a float32[n_vocab] view."""

    __slots__ = ("_keep", "_pointers", "n_vocab")

    def __init__(self, pointers: Sequence[int] | npt.NDArray[np.uintp], n_vocab: int, keep: object = None) -> None:
        self._pointers = np.asarray(pointers, dtype=np.uintp)
        self.n_vocab = n_vocab
        self._keep = keep  # the owner of the memory

    @classmethod
    def from_matrix(cls, matrix: Float32Array) -> LogitRows:
        """Rows of a C-contiguous float32[n, n_vocab] matrix (fakes, tests)."""
        if matrix.dtype != np.float32 or matrix.ndim != 2 or not matrix.flags.c_contiguous:
            raise UsageError(f"logits are {matrix.dtype}{list(matrix.shape)}; a contiguous float32 matrix is needed.")
        start, stride = matrix.ctypes.data, matrix.strides[0]
        return cls([start + stride * i for i in range(matrix.shape[0])], matrix.shape[1], matrix)

    @property
    def pointers(self) -> npt.NDArray[np.uintp]:
        """uintp[n], address of each row's first float32."""
        return self._pointers

    def pointer(self, index: int) -> int:
        """The address of one row's first float32."""
        return int(self._pointers[index])

    def __len__(self) -> int:
        return len(self._pointers)

    def __getitem__(self, index: int) -> Float32Array:
        floats = ctypes.cast(int(self._pointers[index]), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(floats, shape=(self.n_vocab,))


@dataclass(frozen=True, slots=True)
class Feed:
    """What one slot puts into a pass: its whole history and the draft to check after it."""

    slot: int
    tokens: Tokens  # int32[n], the whole history; at least one token
    prompt_length: int  # leading tokens that are prompt, prefilled in chunks on a fixed grid; others come one by one
    draft_tokens: Tokens = field(default_factory=lambda: NO_TOKENS)  # int32[k], draft nodes, parents before children
    draft_parents: Tokens = field(default_factory=lambda: NO_TOKENS)  # int32[k], an index; -1 = the last of `tokens`
