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


class Rule(IntEnum):
    """How a draft is verified (docs/exactness.md). The numbers are those of native/localspec.h."""

    COUPLED = 0
    REJECTION = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True)
class Noise:
    """Names a stream of counter-based random numbers; holds no state.

    Philox4x32-10 (Salmon et al. 2011) with key = `seed` (low word first) and counter =
    (token id, absolute position, purpose | round << 2, stream). A number is a function of these alone, so any
    entry can be computed alone and in any order.
    """

    seed: int
    """0 to 2^64 - 1."""
    stream: int = 0
    """Index of the choice when one request asks for several (`n` > 1)."""
    round: int = 0
    """0 under *coupled*. *Rejection* and *block* put the history length at draft time here, so that no pass meets
    numbers that an earlier pass has conditioned on."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to be read by a model, in which only some spellings of special tokens are these tokens."""

    text: str
    breaks: tuple[int, ...] = ()
    """Indexes into `text`, ascending: where a spelling goes across one, it is text like any other."""


@dataclass(frozen=True, slots=True)
class SparseProbs:
    """A distribution over a few tokens; every other token has probability 0."""

    tokens: Tokens
    """int32[m], distinct, most likely first, ties to the lower id."""
    probs: Float64Array
    """float64[m], each > 0, summing to 1."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from a logits row. Order and defaults are llama.cpp's.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
    At temperature 0 only bias, penalties and DRY count.
    """

    temperature: float = 0.8
    """0 picks the most likely token (ties to the lowest id)."""
    top_k: int = 40
    """Keep this many most likely tokens; 0 keeps all."""
    top_p: float = 0.95
    """Keep the smallest set of most likely tokens with at least this much probability; 1 keeps all."""
    min_p: float = 0.05
    """Drop tokens less likely than this share of the most likely one; 0 keeps all."""
    typical_p: float = 1.0
    """Locally typical sampling: keep this much probability, nearest to the entropy first; 1 keeps all."""
    top_n_sigma: float = -1.0
    """Drop tokens whose logit is more than this many standard deviations below the largest; 0 or less keeps all."""
    xtc_probability: float = 0.0
    """Chance of each token that XTC takes out all likely tokens but the least likely of them; 0 is off."""
    xtc_threshold: float = 0.1
    """Probability from which on a token is likely to XTC; above 0.5 XTC is off."""
    dynatemp_range: float = 0.0
    """The temperature is this much lower where the model is sure, and this much higher where it is not; 0 is off."""
    dynatemp_exponent: float = 1.0
    """How the temperature goes from the lowest to the highest: entropy, as a share of the largest, to this power."""
    repeat_penalty: float = 1.0
    """Divide (or multiply, if negative) the logit of a token seen lately by this; 1 is off."""
    presence_penalty: float = 0.0
    """Subtract this from the logit of a token seen lately."""
    frequency_penalty: float = 0.0
    """Subtract this once for every time a token was seen lately."""
    penalty_last_n: int = 64
    """How many last tokens, prompt included, count as "lately"; 0 none, -1 all."""
    dry_multiplier: float = 0.0
    """DRY's penalty of a token that would go on with a repetition of the allowed length; 0 is off."""
    dry_base: float = 1.75
    """DRY's penalty grows by this factor for every token that the repetition is longer."""
    dry_allowed_length: int = 2
    """Repetitions of fewer tokens are free."""
    dry_penalty_last_n: int = -1
    """How many last tokens, prompt included, DRY looks for repetitions in; 0 none, -1 all."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that no repetition goes across."""
    logit_bias: tuple[tuple[int, float], ...] = field(default=())
    """(token id, value added to its logit); -inf bans the token."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("top_n_sigma", -1.0, 100.0),
            ("xtc_probability", 0.0, 1.0),
            ("xtc_threshold", 0.0, 1.0),
            ("dynatemp_range", 0.0, 100.0),
            ("dynatemp_exponent", 0.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("dry_multiplier", 0.0, 100.0),
            ("dry_base", 1.0, 100.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:  # NaN fails too
                raise UsageError(f"{name} is {value}; it must be between {low:g} and {high:g}.")
        if not 1e-3 <= self.repeat_penalty <= 100.0:  # logits are divided by it, and must not overflow
            raise UsageError(f"repeat_penalty is {self.repeat_penalty}; it must be between 0.001 and 100.")
        if self.top_k < 0:
            raise UsageError(f"top_k is {self.top_k}; it must be 0 (all tokens) or more.")
        if self.penalty_last_n < -1:
            raise UsageError(f"penalty_last_n is {self.penalty_last_n}; it must be -1 (all), 0 (none) or more.")
        if self.dry_allowed_length < 0:
            raise UsageError(f"dry_allowed_length is {self.dry_allowed_length}; it must be 0 or more.")
        if self.dry_penalty_last_n < -1:
            raise UsageError(f"dry_penalty_last_n is {self.dry_penalty_last_n}; it must be -1 (all), 0 (none) or more.")
        if len(self.dry_sequence_breakers) > 64 or not all(0 < len(text) <= 40 for text in self.dry_sequence_breakers):
            raise UsageError("dry_sequence_breakers must be at most 64 texts of 1 to 40 characters each.")
        for token, bias in self.logit_bias:
            if token < 0 or bias != bias or bias == np.inf:
                raise UsageError(f"logit_bias has {token}: {bias}; ids start at 0 and values are below infinity.")


@dataclass(frozen=True, slots=True, eq=False)
class Breakers:
    """Sequences of tokens that no repetition goes across. Equal to itself alone."""

    heads: Tokens
    """int32[n], the first token of each, ascending."""
    offsets: Tokens
    """int32[n + 1], where the other tokens of each begin and end in `tails`."""
    tails: Tokens
    """int32[m]."""


NO_BREAKERS = Breakers(NO_TOKENS, np.zeros(1, dtype=np.int32), NO_TOKENS)


@dataclass(frozen=True, slots=True)
class ModelSampling(SamplingParams):
    """The settings for one model."""

    breakers: Breakers = NO_BREAKERS
    """What `dry_sequence_breakers` are in its tokens."""


class LogitRows:
    """Rows of logits where the model left them: pointers, not copies.

    Valid until the next pass of the context that made them. `rows[i]` is a float32[n_vocab] view.
    """

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

    def first(self, count: int) -> LogitRows:
        """The first `count` rows."""
        return LogitRows(self._pointers[:count], self.n_vocab, self)

    def __len__(self) -> int:
        return len(self._pointers)

    def __getitem__(self, index: int) -> Float32Array:
        floats = ctypes.cast(int(self._pointers[index]), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(floats, shape=(self.n_vocab,))


@dataclass(frozen=True, slots=True)
class Feed:
    """What one slot puts into a pass: its whole history and the draft to check after it."""

    slot: int
    tokens: Tokens
    """int32[n], the whole history; at least one token."""
    prompt_length: int
    """How many leading tokens are prompt (prefilled in chunks on a fixed grid); the rest was generated one by one."""
    draft_tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[k], draft nodes, parents before children."""
    draft_parents: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[k], index of each node's parent; -1 is the last history token."""
