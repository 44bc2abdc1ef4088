"""One row: bias and penalties, what may be drawn, drawing it, and log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.types import (
    NO_TOKENS,
    Float32Array,
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    SamplingParams,
    SparseProbs,
    Tokens,
)
from tests.reference.numbers import exp, gumbel, lane_sum, log1

COLD = 1e-30
"""Temperatures below this are 0."""
TINY = 1e-300
"""Probabilities below this are 0."""


class Support(NamedTuple):
    """What is left of a row: all of it in id order, or a list, most likely first."""

    tokens: Tokens
    logits: Float32Array

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def scaled(self) -> Float64Array:
        """float64[n], logits below the largest one."""
        wide = self.logits.astype(np.float64)
        result: Float64Array = wide - (wide.max() + 0.0)  # not -0
        return result


def _has_penalties(sampling: SamplingParams) -> bool:
    """Compared in float32, as the kernels see them."""
    repeat, presence, frequency = np.array(
        [sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty], dtype=np.float32
    )
    return sampling.penalty_last_n != 0 and bool(repeat != 1 or presence != 0 or frequency != 0)


def patched(row: Float32Array, sampling: SamplingParams, window: Tokens) -> Float32Array:
    """A copy of the row with logit bias and penalties applied, in float32."""
    row = row.copy()
    with np.errstate(all="ignore"):
        for token, bias in sampling.logit_bias:
            if token < len(row):
                row[token] = row[token] + np.float32(bias)
        if not _has_penalties(sampling):
            return row
        tail = window if sampling.penalty_last_n < 0 else window[-sampling.penalty_last_n :]
        seen, counts = np.unique(tail, return_counts=True)
        counts = counts[(seen >= 0) & (seen < len(row))].astype(np.float32)
        seen = seen[(seen >= 0) & (seen < len(row))]
        repeat, x = np.float32(sampling.repeat_penalty), row[seen]
        scaled = np.where(x <= 0, x * repeat, x / repeat)
        frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
        row[seen] = scaled - (counts * frequency + presence)
    return row


def check_row(row: Float32Array, index: int) -> None:
    bad = np.flatnonzero(~(row <= np.finfo(np.float32).max))
    if len(bad):
        raise KernelError(f"row {index} of the logits holds NaN or +inf for token {bad[0]}.")
    if not np.any(row > -np.inf):
        raise KernelError(f"row {index} of the logits excludes every token: nothing is left to sample.")


def _order(tokens: Tokens, logits: Float32Array) -> npt.NDArray[np.intp]:
    """Most likely first, ties to the lower id."""
    return np.lexsort((tokens, -(logits + np.float32(0))))


def _pick(support: Support, entries: npt.NDArray[np.intp]) -> Support:
    tokens, logits = support.tokens[entries], support.logits[entries]
    order = _order(tokens, logits)
    return Support(tokens[order], logits[order])


def _typical(support: Support, typical_p: float) -> Support:
    scaled = support.scaled
    weights = exp(scaled)
    total = lane_sum(weights)
    probs = weights / total
    log_probs = scaled - log1(total)
    with np.errstate(all="ignore"):
        entropy = lane_sum(np.where(probs > 0, -(probs * log_probs), 0.0))
        distances = np.abs(-log_probs - entropy).astype(np.float32)
    order = np.argsort(distances, kind="stable")
    order = order[support.logits[order] > -np.inf]
    reached = np.flatnonzero(np.cumsum(probs[order]) > typical_p)
    return _pick(support, order[: reached[0] + 1] if len(reached) else order)


def _top_p(support: Support, top_p: float) -> Support:
    weights = exp(support.scaled)
    order = _order(support.tokens, support.logits)
    order = order[support.logits[order] > -np.inf]
    reached = np.flatnonzero(np.cumsum(weights[order] / lane_sum(weights)) >= top_p)
    return _pick(support, order[: reached[0] + 1] if len(reached) else order)


def find_support(row: Float32Array, sampling: SamplingParams) -> Support:
    """top-k, typical, top-p, min-p on a patched row; at temperature 0 top-k only."""
    support = Support(np.arange(len(row), dtype=np.int32), row)
    if sampling.top_k > 0:
        k = min(sampling.top_k, len(row))
        support = _pick(support, np.flatnonzero((row >= np.partition(row, -k)[-k]) & (row > -np.inf)))
        support = Support(support.tokens[:k], support.logits[:k])
    if sampling.temperature < COLD:
        return support
    if sampling.typical_p < 1.0:
        support = _typical(support, sampling.typical_p)
    if sampling.top_p < 1.0:
        support = _top_p(support, sampling.top_p)
    if sampling.min_p >= TINY:
        support = _pick(support, np.flatnonzero(support.scaled >= log1(sampling.min_p)))
    return support


def _softmax(support: Support, temperature: float) -> Float64Array:
    with np.errstate(over="ignore"):
        weights = exp(support.scaled / temperature)
    result: Float64Array = weights / lane_sum(weights)
    return result


def target_of(row: Float32Array, index: int, sampling: SamplingParams, window: Tokens) -> tuple[Support, Float64Array]:
    """The support and target_probs over it."""
    row = patched(row, sampling, window)
    check_row(row, index)
    if sampling.temperature < COLD:
        best = np.argmax(row)
        return Support(np.array([best], dtype=np.int32), row[[best]]), np.ones(1)
    support = find_support(row, sampling)
    return support, _softmax(support, sampling.temperature)


def best_by_score(
    row: Float32Array, sampling: SamplingParams, noise: Noise, position: int, count: int
) -> tuple[Support, npt.NDArray[np.intp]]:
    """The support of a patched row and which of its entries are drawn."""
    support = find_support(row, sampling)
    if sampling.temperature < COLD:
        order = _order(support.tokens, support.logits)
    else:
        scores = support.logits.astype(np.float64) / sampling.temperature
        scores += gumbel(noise, Purpose.SAMPLE, position, support.tokens)
        order = np.lexsort((support.tokens, -scores))
    return support, order[support.logits[order] > -np.inf][:count]


def sample(
    rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens, noise: Noise, position: int, count: int = 1
) -> tuple[Tokens, Float32Array]:
    row = patched(rows[index], sampling, window)
    check_row(row, index)
    support, drawn = best_by_score(row, sampling, noise, position, count)
    probs = _softmax(support, 1.0 if sampling.temperature < COLD else sampling.temperature)
    return support.tokens[drawn], probs[drawn].astype(np.float32)


def distribution(rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens) -> SparseProbs:
    support, probs = target_of(rows[index], index, sampling, window)
    order = _order(support.tokens, support.logits)
    order = order[probs[order] > 0]
    return SparseProbs(support.tokens[order], probs[order])


def _log_softmax(row: Float32Array, index: int) -> Float64Array:
    check_row(row, index)
    scaled = Support(NO_TOKENS, row).scaled
    result: Float64Array = scaled - log1(lane_sum(exp(scaled)))
    return result


def log_probs(rows: LogitRows, index: int, tokens: Tokens) -> Float64Array:
    return _log_softmax(rows[index], index)[tokens]


def top_log_probs(rows: LogitRows, index: int, count: int) -> tuple[Tokens, Float64Array]:
    row = rows[index]
    values = _log_softmax(row, index)
    order = _order(np.arange(len(row), dtype=np.int32), row)[:count]
    order = order[row[order] > -np.inf]
    return order.astype(np.int32), values[order]
