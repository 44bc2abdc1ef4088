"""What passes cost on this machine: one curve for all widths and cached lengths, learned from every pass.

The curve begins as a table: an estimate from the model's header, or what was timed beforehand. Three numbers adapt it:
the machine's pace, what further rows cost, and what the cached length costs. Besides, a width may deviate from the
curve, as a kernel's tiles end there. Neighbouring widths share a deviation in part, and deviations fade. What is
believed is a Gaussian over the logarithms of all these. So a pass of any width, or a prompt, says something of every
width (an extended Kalman filter, iterated where it is far off).

A pass that took much longer than believed counts as a little longer, until several did in a row: something else delayed
it. A pass that took much shorter is believed at once: no accident makes a pass faster.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.planning.cost_table import CostTable
from localspec.planning.learning import IN_A_ROW, RATE
from localspec.types import Float64Array

NOISE = 0.08
"""Standard deviation of one pass, in log seconds."""
DRIFT = 0.02
"""Standard deviation by which the machine's pace wanders from one pass to the next, in logarithms."""
ROWS = 1.0
"""Standard deviation of what further rows cost, in logarithms, before any pass: estimates are wrong by 0.3 to 3."""
OWN = 0.2
"""Standard deviation of a width's deviation from the curve: up to 0.3 for Q4_1 and Q4_K_M with AVX2."""
NEAR = 0.5
"""Logarithm of the ratio of two widths whose deviations have 1/e in common."""
PROMPT = 0.5
"""Standard deviation of what a prompt says of rows, in logarithms: other kernels may read it."""
SURPRISE = 2.5
"""Standard deviations from what is believed, from which on a pass is a surprise."""
CAUTION = 2.0
"""Standard deviations above what is believed that a pass is feared to cost."""
FADE = 32
"""Passes after which deviations lose a tenth."""
KEPT = 8.0
"""Passes that a width is worth at most at the next start."""
KEPT_LENGTH = 512
"""Cached tokens at which the costs of widths are compared for the next start: those of a short chat."""
WIDEST = 4096
"""Rows of a pass that may be remembered."""
MEASURED = 0.25
"""Share of these deviations where passes were timed beforehand."""
_pace, _rows, _length = 0, 1, 2
_widths = _length + 1
"""Indices of what is believed; the deviations of widths come last."""
_DENSE = 16
"""Widths up to which each has a deviation of its own; beyond, two groups share each doubling."""


def _group(width: int) -> int:
    """Index of a width's deviation."""
    return width - 1 if width <= _DENSE else _DENSE - 1 + math.ceil(2.0 * math.log2(width / _DENSE))


_groups = 1 + _group(WIDEST)
_first = np.array([ROWS, ROWS / 2.0, *[OWN] * _groups])
"""Standard deviations of what is believed before any pass, the pace left out."""


def _alike() -> Float64Array:
    """float64[groups, groups], what deviations have in common. One row has none: what all passes share is the pace."""
    places = np.arange(_groups)
    logs = np.log(np.where(places < _DENSE, places + 1.0, _DENSE * 2.0 ** ((places - _DENSE + 1) / 2.0)))
    found: Float64Array = np.exp(-np.abs(logs[:, None] - logs[None, :]) / NEAR)
    found[0, :] = found[:, 0] = 0.0
    return found


@dataclass(slots=True)
class _Expected:
    """Log seconds of a pass as believed, and how they grow with each belief."""

    log_seconds: float
    rows: float
    length: float
    own: int = 0
    """Index of the belief in the deviation of its width; 0 = it has none."""
    pace: float = 1.0

    def of(self, values: Float64Array) -> Float64Array:
        """The same sum of rows of a matrix, or of a vector's numbers."""
        found: Float64Array = self.rows * values[_rows]
        if self.pace:
            found = found + values[_pace]
        if self.length:
            found = found + self.length * values[_length]
        return found + values[self.own] if self.own else found


class PassCosts:
    """Seconds of a pass by width and cached length."""

    def __init__(
        self,
        table: Mapping[int, Mapping[int, float]] | None = None,
        *,
        plain: int = 1,
        estimated: bool = False,
        prompt_row: float = 0.0,
    ) -> None:
        """
        Args:
            table: {cached length: {width: seconds}}; may be empty.
            plain: width of plain decoding's passes.
            estimated: no pass has run yet: only ratios count, and they may be far off.
            prompt_row: what a row of a prompt costs, of a row of a pass that decodes; 0 = prompts say nothing.
        """
        self._table, self._plain, self._prompt_row = CostTable(table or {}), plain, prompt_row
        doubts = np.array([2.0, *_first[:_widths]]) * (1.0 if estimated else MEASURED)
        self._prior = doubts[_widths] ** 2 * _alike()
        self._beliefs: Float64Array = np.zeros(_widths + _groups)
        """Logarithms of factors of the table: pace, what rows cost, what the length costs, deviations."""
        self._covariance: Float64Array = np.diag([*np.square(doubts[:_widths]), *np.zeros(_groups)])
        self._covariance[_widths:, _widths:] = self._prior
        self._weights: dict[int, float] = {}
        """By width, passes that what is known of it is worth."""
        if not estimated:
            self._weights = {width: KEPT for row in (table or {}).values() for width in row}
        self.stalls = 0.0
        """Share by which plain passes take longer than believed, on average: what stalls every pass now and then."""
        self._passes = self._slow = 0
        """Passes of all widths, and those in a row by now that were surprisingly slow."""
        self._changes = 0
        """How often what is believed of widths has changed."""
        self._ratios: tuple[tuple[int, int, int], list[float], list[float]] | None = None
        """By `_changes`, cached length and widest pass: what `_over_plain` said."""
        self._unpaced: tuple[tuple[int, int], float] | None = None
        """By `_changes` and cached length: seconds of a plain pass, the pace left out."""
        self._prompts: list[tuple[int, int, float, float]] = []
        """Read before a plain pass was timed."""
        self._place_widths()

    def _place_widths(self) -> None:
        widths = range(1, self._table.widest + 1)
        self._places: npt.NDArray[np.int64] = np.array(
            [_widths, *(_widths + _group(width) for width in widths)], dtype=np.int64
        )
        """int64[1 + widest], index of the belief in each width's deviation."""

    # -- what is believed -------------------------------------------------------------------------------------------

    @property
    def known(self) -> bool:
        """Whether anything was estimated or timed."""
        return bool(self._table)

    @property
    def timed(self) -> frozenset[int]:
        """Widths of which passes were timed, in this run or an earlier one."""
        return frozenset(self._weights)

    def is_timed(self, width: int) -> bool:
        """Whether passes of this width were timed, in this run or an earlier one."""
        return width in self._weights

    @property
    def widest(self) -> int:
        """Widest pass that can be asked for."""
        return self._table.widest

    def widen(self, widest: int) -> None:
        """Passes of up to so many rows can be asked for, too."""
        if widest > self.widest:
            self._table.widen(widest)
            self._place_widths()

    def seconds(self, width: int, length: int) -> float:
        """Seconds of one pass."""
        return math.exp(self._of_width(width, length).log_seconds) if self.known else 0.0

    def row(self, length: int) -> list[float]:
        """Seconds by width (index 0 unused) with `length` tokens cached, never less for a wider pass; zeros while
        nothing is known."""
        return self.rows(length)[0]

    def rows(self, length: int) -> tuple[list[float], list[float]]:
        """`row`, and the same as passes can be feared to cost beside plain decoding's. What is not known well is feared
        to cost more, but for each row no more than a plain pass: those rows could be decoded one by one."""
        if not self.known:
            return [0.0] * (self.widest + 1), [0.0] * (self.widest + 1)
        place = self._changes, length // KEPT_LENGTH, self.widest
        if self._ratios is None or self._ratios[0] != place:
            self._ratios = place, *self._over_plain(length)
        plain = self.plain_seconds(length)
        return [plain * one for one in self._ratios[1]], [plain * one for one in self._ratios[2]]

    def plain_seconds(self, length: int) -> float:
        """Seconds of plain decoding's pass. It is asked for in every pass, so it is kept for lengths that are alike."""
        place = self._changes, length // FADE
        if self._unpaced is None or self._unpaced[0] != place:
            expected = self._of_width(self._plain, length).log_seconds
            self._unpaced = place, math.exp(expected - float(self._beliefs[_pace]))
        return math.exp(self._beliefs[_pace]) * self._unpaced[1]

    def _over_plain(self, length: int) -> tuple[list[float], list[float]]:
        """What `rows` says, over plain decoding's pass."""
        plain, places, covariance = self._plain, self._places, self._covariance
        table = self._table.row(length)
        one, further = self._one(length), math.exp(self._beliefs[_rows]) * (table - table[1])
        whole = one + further
        seconds = np.maximum.accumulate(whole * np.exp(self._beliefs[places]))
        slopes = further / whole
        slopes -= slopes[plain]
        shared = covariance[_rows, places] - covariance[_rows, places[plain]]
        own = covariance[places, places] - 2.0 * covariance[places[plain], places]
        variance = slopes * (slopes * covariance[_rows, _rows] + 2.0 * shared) + own
        variance += covariance[places[plain], places[plain]]
        ratios = seconds / seconds[plain]
        feared = ratios * np.exp(CAUTION * np.sqrt(variance.clip(0.0, (2.0 * ROWS) ** 2)))
        most = np.arange(len(seconds)) / plain
        return ratios.tolist(), np.maximum(ratios, np.minimum(feared, most)).tolist()

    def _one(self, length: int) -> float:
        """Of the table, seconds of one row, with the length as it is believed to count."""
        empty = self._table.seconds(1, 0)
        return empty + math.exp(self._beliefs[_length]) * (self._table.seconds(1, length) - empty)

    def _expected(self, length: int, further: float, own: int = 0) -> _Expected:
        """Of a pass in which further rows take so many seconds of the table."""
        one, more = self._one(length), math.exp(self._beliefs[_rows]) * further
        value = float(self._beliefs[_pace]) + math.log(one + more) + (float(self._beliefs[own]) if own else 0.0)
        return _Expected(value, more / (one + more), (one - self._table.seconds(1, 0)) / (one + more), own)

    def _of_width(self, width: int, length: int) -> _Expected:
        further = self._table.seconds(width, length) - self._table.seconds(1, length)
        return self._expected(length, further, int(self._places[width]))

    def _of_prompt(self, rows: int, length: int) -> _Expected:
        """Its rows see half of the prompt's pass, on average."""
        middle, widest = length + rows // 2, self.widest
        row = (self._table.seconds(widest, middle) - self._table.seconds(1, middle)) / max(1, widest - 1)
        return self._expected(middle, self._prompt_row * (rows - 1) * row)

    def _of_ratio(self, width: int) -> _Expected:
        """Of a pass over one of one row."""
        found, one = self._of_width(width, KEPT_LENGTH), self._of_width(1, KEPT_LENGTH)
        value = found.log_seconds - one.log_seconds
        return _Expected(value, found.rows - one.rows, found.length - one.length, found.own, pace=0.0)

    # -- what passes say --------------------------------------------------------------------------------------------

    def observe(self, width: int, length: int, seconds: float, delayed: float = 0.0) -> None:
        """A pass of that width took so long.

        Args:
            width: its rows.
            length: tokens cached before it.
            seconds: that it took, `delayed` left out.
            delayed: seconds more, for which the machine kept our threads waiting.
        """
        if not (1 <= width <= self.widest and 0.0 < seconds < math.inf):
            return
        if not self.known:
            widest, self._table = self.widest, CostTable({length: {width: seconds}})
            self._table.widen(widest)
        self._covariance[_pace, _pace] += DRIFT * DRIFT
        noise = NOISE + math.log1p(delayed / seconds)
        if width != self._plain or not self._passes % FADE or not self._paced(seconds, length, noise):
            self._learn(lambda: self._of_width(width, length), math.log(seconds), noise, length, width == self._plain)
        self._weights[width] = min(KEPT, self._weights.get(width, 0.0) + (NOISE / noise) ** 2)
        self._passes += 1
        if width == self._plain and self._prompts:
            waiting, self._prompts = self._prompts, []
            for one in waiting:
                self.observe_prompt(*one)
        if not self._passes % FADE:
            self._fade()

    def _paced(self, seconds: float, length: int, noise: float) -> bool:
        """Moves the pace alone by a plain pass, if the pace is known and this is no surprise. It takes little time."""
        if not self._weights.get(self._plain):
            return False
        expected, variance = self.plain_seconds(length), float(self._covariance[_pace, _pace])
        self.stalls += (seconds / expected - 1.0 - self.stalls) / (2 * FADE)
        off, total = math.log(seconds / expected), variance + noise * noise
        if variance > noise * noise or off * off > SURPRISE * SURPRISE * total:
            return False
        self._slow = 0
        self._beliefs[_pace] += variance / total * off
        self._covariance[_pace, :] *= 1.0 - variance / total
        self._covariance[_rows:, _pace] = self._covariance[_pace, _rows:]
        return True

    def observe_prompt(self, rows: int, length: int, seconds: float, delayed: float = 0.0) -> None:
        """So many rows of a prompt were read in one pass. It counts once a plain pass was timed.

        Args:
            rows: tokens that were read.
            length, seconds, delayed: as in `observe`.
        """
        if not (self._prompt_row and self.known and rows > 1 and 0.0 < seconds < math.inf):
            return
        if self.is_timed(self._plain):
            noise = PROMPT + math.log1p(delayed / seconds)
            self._learn(lambda: self._of_prompt(rows, length), math.log(seconds), noise, length, False)
        else:
            self._prompts = [*self._prompts[-1:], (rows, length, seconds, delayed)]

    def _learn(self, expected: Callable[[], _Expected], seen: float, noise: float, length: int, plain: bool) -> None:
        """A sample, in log seconds, after `length` cached tokens."""
        self._changes += 1
        found, covariance = expected(), self._covariance
        variance = float(found.of(found.of(covariance))) + noise * noise
        off, most = seen - found.log_seconds, SURPRISE * math.sqrt(variance)
        self._slow = self._slow + 1 if off > most else 0
        plain = plain or seen < math.log(self.seconds(self._plain, length))  # no pass is cheaper than a plain one
        if self._slow >= IN_A_ROW or (off < -most and plain):  # the machine has changed
            covariance[_pace, _pace] += off * off
            self._slow = 0
        elif off > most:
            seen = found.log_seconds + most
        elif off < -most:  # what was believed of this width was wrong
            doubts = np.sqrt(np.diag(covariance)[_rows:].clip(NOISE**4))
            wider = np.clip(2.0 * _first / doubts, 1.0, max(1.0, abs(off) / math.sqrt(variance)))
            covariance[_rows:, _rows:] *= np.outer(wider, wider)  # no doubt is more than twice the first one
            covariance[_pace, _rows:] = covariance[_rows:, _pace] = 0.0
        self._believe(expected, seen, noise)

    def _believe(self, expected: Callable[[], _Expected], seen: float, noise: float) -> None:
        """Moves what is believed; again from where it came to, if that is far: log seconds are not linear in it."""
        before = self._beliefs
        for _ in range(2 * IN_A_ROW):
            found = expected()
            shared = found.of(self._covariance)
            variance = float(found.of(shared)) + noise * noise
            off = seen - found.log_seconds + float(found.of(self._beliefs - before))
            last, self._beliefs = self._beliefs, before + shared * (off / variance)
            self._beliefs[_rows:] = self._beliefs[_rows:].clip(-2.0 * SURPRISE, 2.0 * SURPRISE)
            if abs(float(self._beliefs[_rows] - last[_rows])) < NOISE:
                break
        gained = shared / math.sqrt(variance)  # the matrix stays symmetric to the last bit
        self._covariance -= np.outer(gained, gained)

    def _fade(self) -> None:
        """Older passes count less."""
        kept = 1.0 - RATE
        self._changes += 1
        self._beliefs[_widths:] *= kept
        self._covariance[_widths:] *= kept
        self._covariance[:, _widths:] *= kept
        self._covariance[_widths:, _widths:] += (1.0 - kept * kept) * self._prior
        for belief in (_rows, _length):
            self._covariance[belief, belief] += DRIFT * DRIFT * FADE / 2

    # -- other requests, other runs ---------------------------------------------------------------------------------

    def copy(self, plain: int) -> PassCosts:
        """The same, to be refined apart, for passes of which plain decoding's have `plain` rows."""
        other = copy.deepcopy(self)
        other._plain = plain
        return other

    def kept(self) -> dict[int, tuple[float, float]]:
        """{width: (seconds over those of one row, passes that this is worth)} of what was timed."""
        row = self.row(KEPT_LENGTH)
        return {width: (row[width] / row[1], weight) for width, weight in self._weights.items()}

    def recall(self, kept: Mapping[int, tuple[float, float]]) -> None:
        """Begins with what an earlier run has learned: its `kept`, the weights smaller as time has passed."""
        for width, (ratio, weight) in kept.items():
            if 1 < width <= self.widest and self.known and weight > 0.0:
                noise = 2.0 * NOISE / math.sqrt(weight)
                self._changes += 1
                self._believe(lambda width=width: self._of_ratio(width), math.log(ratio), noise)  # type: ignore[misc]
                self._weights[width] = weight


def kept_from_json(data: Any) -> dict[int, tuple[float, float]]:
    """`PassCosts.kept()` from what json.load made of it.

    Raises:
        ValueError, TypeError, AttributeError: it is something else.
    """
    found = {int(width): (float(ratio), float(weight)) for width, (ratio, weight) in data.items()}
    if not all(0 < w <= WIDEST and 0.0 < r < math.inf and 0.0 < n <= KEPT for w, (r, n) in found.items()):
        raise ValueError("a pass takes some time")
    return found
