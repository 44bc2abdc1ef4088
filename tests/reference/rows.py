"""One row: bias and penalties, what may be drawn, drawing it, and log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from localspec.errors import KernelError
from localspec.native.kernels import NO_NOISE
from localspec.types import (
    NO_BREAKERS,
    NO_TOKENS,
    Float32Array,
    Float64Array,
    LogitRows,
    ModelSampling,
    Noise,
    Purpose,
    SamplingParams,
    SparseProbs,
    Tokens,
)
from tests.reference.numbers import exp, gumbel, lane_sum, log1, uniform

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
    """A copy of the row with logit bias, penalties and DRY applied, in float32."""
    row = row.copy()
    with np.errstate(all="ignore"):
        for token, bias in sampling.logit_bias:
            if token < len(row):
                row[token] = row[token] + np.float32(bias)
        if _has_penalties(sampling):
            _penalise(row, sampling, window)
        if sampling.dry_multiplier and sampling.dry_penalty_last_n:
            for token, penalty in _dry(sampling, window, len(row)).items():
                row[token] = row[token] - np.float32(penalty)
    return row


def _penalise(row: Float32Array, sampling: SamplingParams, window: Tokens) -> None:
    """Repeat, presence and frequency penalty, written into the row."""
    tail = window if sampling.penalty_last_n < 0 else window[-sampling.penalty_last_n :]
    seen, counts = np.unique(tail, return_counts=True)
    counts = counts[(seen >= 0) & (seen < len(row))].astype(np.float32)
    seen = seen[(seen >= 0) & (seen < len(row))]
    repeat, x = np.float32(sampling.repeat_penalty), row[seen]
    scaled = np.where(x <= 0, x * repeat, x / repeat)
    frequency, presence = np.float32(sampling.frequency_penalty), np.float32(sampling.presence_penalty)
    row[seen] = scaled - (counts * frequency + presence)


def _dry(sampling: SamplingParams, window: Tokens, n_vocab: int) -> dict[int, float]:
    """DRY's penalty of each token that would go on with a repetition."""
    text = window.tolist() if sampling.dry_penalty_last_n < 0 else window[-sampling.dry_penalty_last_n :].tolist()
    known, n = sampling.breakers if isinstance(sampling, ModelSampling) else NO_BREAKERS, len(text)
    ends = zip(known.heads.tolist(), known.offsets[:-1].tolist(), known.offsets[1:].tolist(), strict=True)
    breakers = [[head, *known.tails[start:stop].tolist()] for head, start, stop in ends]
    limit = n
    for at in reversed(range(n)):
        lengths = [len(one) for one in breakers if text[at : at + len(one)] == one]
        if lengths:
            limit = n - at - max(lengths)
            break
    if n <= sampling.dry_allowed_length or limit < sampling.dry_allowed_length:
        return {}
    longest: dict[int, int] = {}
    for k in range(1, n):
        same = 0
        while same < n - k and text[n - 1 - same] == text[n - 1 - k - same]:
            same += 1
        if min(same, limit) >= sampling.dry_allowed_length and 0 <= text[n - k] < n_vocab:
            longest[text[n - k]] = max(longest.get(text[n - k], 0), min(same, limit))
    most = int(88.7228391 / log1(sampling.dry_base)) if sampling.dry_base > 1.000001 else 2**31
    return {
        token: sampling.dry_multiplier * _power(sampling.dry_base, min(length - sampling.dry_allowed_length, most))
        for token, length in longest.items()
        if [token] not in breakers
    }


def _power(base: float, exponent: int) -> float:
    """By squaring, as C does it."""
    result = 1.0
    while exponent > 0:
        result = result * base if exponent & 1 else result
        base, exponent = base * base, exponent >> 1
    return result


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


def _near(support: Support, limit: float) -> Support:
    return _pick(support, np.flatnonzero(support.scaled >= limit))


def _deviation(row: Float32Array) -> float:
    """The standard deviation of the logits that are not excluded."""
    counts = row > -np.inf
    mean = lane_sum(np.where(counts, row.astype(np.float64), 0.0)) / counts.sum()
    with np.errstate(invalid="ignore"):
        off = np.where(counts, row.astype(np.float64) - mean, 0.0)
    return float(np.sqrt(lane_sum(off * off) / counts.sum()))


def _xtc(support: Support, threshold: float) -> tuple[Support, int]:
    """Without the likely tokens, but for the least likely of them, and how many went."""
    weights = exp(support.scaled)
    likely = np.count_nonzero((weights / lane_sum(weights) >= threshold) & (support.logits > -np.inf))
    if likely < 2:
        return support, 0
    order = _order(support.tokens, support.logits)
    return _pick(support, order[support.logits[order] > -np.inf][likely - 1 :]), likely - 1


def _dynamic_temperature(support: Support, size: int, sampling: SamplingParams) -> float:
    weights = exp(support.scaled)
    total = lane_sum(weights)
    probs = weights / total
    with np.errstate(all="ignore"):
        entropy = lane_sum(np.where(probs > 0, -(probs * (support.scaled - log1(total))), 0.0))
    low, high = max(sampling.temperature - sampling.dynatemp_range, 0.0), sampling.temperature + sampling.dynatemp_range
    share, power = entropy / log1(float(size)), 0.0 if sampling.dynatemp_exponent > 0.0 else 1.0
    if share >= TINY:
        power = float(exp(np.array([sampling.dynatemp_exponent * log1(share)]))[0])
    return low + (high - low) * power


def xtc_falls(sampling: SamplingParams, noise: Noise, position: int) -> bool:
    """XTC's coin for the token at a position; no round has a say."""
    everywhere = Noise(noise.seed, noise.stream)
    coin = uniform(everywhere, Purpose.SAMPLE, position, np.array([-1], dtype=np.int32))[0]
    return sampling.xtc_probability > 0 and bool(coin <= sampling.xtc_probability)


def find_support(row: Float32Array, sampling: SamplingParams, xtc: bool) -> tuple[Support, float]:
    """What may be drawn of a patched row, and at which temperature; at temperature 0 top-k only."""
    support = Support(np.arange(len(row), dtype=np.int32), row)
    size = k = min(sampling.top_k, len(row)) or len(row)
    if sampling.temperature >= COLD and sampling.top_n_sigma > 0:
        support = _near(support, -(sampling.top_n_sigma * _deviation(row)))
        support = Support(support.tokens[:k], support.logits[:k])
    elif sampling.top_k > 0:
        support = _pick(support, np.flatnonzero((row >= np.partition(row, -k)[-k]) & (row > -np.inf)))
        support = Support(support.tokens[:k], support.logits[:k])
    if sampling.temperature < COLD:
        return support, sampling.temperature
    if sampling.typical_p < 1.0:
        support = _typical(support, sampling.typical_p)
    if sampling.top_p < 1.0:
        support = _top_p(support, sampling.top_p)
    if sampling.min_p >= TINY:
        support = _near(support, log1(sampling.min_p))
    if sampling.typical_p < 1.0 or sampling.top_p < 1.0 or sampling.min_p >= TINY:
        size = len(support)
    if xtc and sampling.xtc_threshold <= 0.5:
        support, gone = _xtc(support, sampling.xtc_threshold)
        size -= gone
    temperature = sampling.temperature
    if sampling.dynatemp_range > 0 and size > 1:
        temperature = _dynamic_temperature(support, size, sampling)
    if temperature < COLD:
        return _pick(support, _order(support.tokens, support.logits)[:1]), 1.0
    return support, temperature


def _softmax(support: Support, temperature: float) -> Float64Array:
    with np.errstate(over="ignore"):
        weights = exp(support.scaled / temperature)
    result: Float64Array = weights / lane_sum(weights)
    return result


def target_of(
    row: Float32Array, index: int, sampling: SamplingParams, window: Tokens, noise: Noise, position: int
) -> tuple[Support, Float64Array]:
    """The support and target_probs over it."""
    row = patched(row, sampling, window)
    check_row(row, index)
    if sampling.temperature < COLD:
        best = np.argmax(row)
        return Support(np.array([best], dtype=np.int32), row[[best]]), np.ones(1)
    support, temperature = find_support(row, sampling, xtc_falls(sampling, noise, position))
    return support, _softmax(support, temperature)


def best_by_score(
    row: Float32Array, sampling: SamplingParams, noise: Noise, position: int, count: int
) -> tuple[Support, npt.NDArray[np.intp], float]:
    """The support of a patched row, which of its entries are drawn, and at which temperature."""
    support, temperature = find_support(row, sampling, xtc_falls(sampling, noise, position))
    if sampling.temperature < COLD:
        order = _order(support.tokens, support.logits)
    else:
        scores = support.logits.astype(np.float64) / temperature
        scores += gumbel(noise, Purpose.SAMPLE, position, support.tokens)
        order = np.lexsort((support.tokens, -scores))
    return support, order[support.logits[order] > -np.inf][:count], temperature


def sample(
    rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens, noise: Noise, position: int, count: int = 1
) -> tuple[Tokens, Float32Array]:
    row = patched(rows[index], sampling, window)
    check_row(row, index)
    support, drawn, temperature = best_by_score(row, sampling, noise, position, count)
    probs = _softmax(support, 1.0 if temperature < COLD else temperature)
    return support.tokens[drawn], probs[drawn].astype(np.float32)


def distribution(
    rows: LogitRows, index: int, sampling: SamplingParams, window: Tokens, noise: Noise = NO_NOISE, position: int = 0
) -> SparseProbs:
    support, probs = target_of(rows[index], index, sampling, window, noise, position)
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
