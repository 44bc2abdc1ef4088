"""Costs of passes and drafts on this machine, and all else that is known of a pair of models.

One curve serves for all widths and cached lengths, learned from every pass. It begins as a table: an estimate from the
model's header, or what was timed beforehand. Three numbers adapt it: the machine's pace, what further rows cost, and
what the cached length costs. Besides, a width may deviate from the curve, as a kernel's tiles end there. Neighbouring
widths share a deviation in part, and deviations fade. What is believed is a Gaussian over the logarithms of all these.
So a pass of any width, or a prompt, updates every width (an extended Kalman filter, iterated where a sample is far
off).

A pass that took much longer than expected counts as a little longer, until several did in a row: another program may
have delayed the pass. A much shorter pass is believed at once: no accident makes a pass faster.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from localspec.planning.acceptance import CONVINCING_STREAK, LEARNING_RATE, Table
from localspec.types import Float64Array

MOST_LOG_SURPRISE = 0.25
"""Log seconds by which one draft's time counts as off at most: a longer one was delayed by another program."""
MOST_READ_ALONG = 16
"""Most tokens read with a guess: a draft that read more tells the cost of reading, not of guessing."""


class DraftCosts:
    """Seconds a drafter takes: for a level of a draft, all slots in one batch, and for a token it must read before it
    can guess.

    Each level costs the same. If one pass guesses all levels (`Drafter`), the first costs everything."""

    def __init__(
        self, levels: Mapping[int, float] | None = None, read_seconds: float = 0.0, *, estimated: bool = False
    ) -> None:
        """From {slots drafting together: seconds of a level} and seconds per token read in bulk, 0 = unknown;
        `estimated`: no draft was timed yet."""
        self._levels, self.read_seconds = dict(levels or {}), read_seconds
        self.timed = bool(levels) and not estimated
        self._timed_reading = not estimated

    def level(self, slots: int) -> float:
        """Seconds of a level for `slots` slots, or for the next smaller known number of slots, or for the smallest; 0
        while nothing was timed or estimated."""
        known = [one for one in self._levels if one <= slots] or list(self._levels)
        return self._levels[min(known, key=lambda one: abs(one - slots))] if known else 0.0

    def reading(self, missing: int, slots: int) -> float:
        """Seconds of reading `missing` tokens over all slots; each slot's last one is part of a level."""
        return max(0, missing - slots) * self.read_seconds

    def observe(self, levels: float, missing: int, slots: int, seconds: float) -> None:
        """Learns from a draft: `seconds` for `levels` levels and `missing` read tokens. 0 levels: it only read."""
        extra, level = max(0, missing - slots), self.level(slots)
        if not 0.0 < seconds < math.inf:
            return
        if extra > MOST_READ_ALONG:
            known = self.read_seconds if self._timed_reading else 0.0
            self.read_seconds = _followed(known, max(0.0, seconds - levels * level) / extra)
            self._timed_reading = True
        elif levels > 0:
            guessing = max(seconds - self.reading(missing, slots), seconds / 2.0)
            self._levels[slots] = _followed(level if self.timed else 0.0, guessing / levels)
            self.timed = True

    def to_json(self) -> dict[str, Any]:
        return {"levels": {str(slots): seconds for slots, seconds in self._levels.items()}, "read": self.read_seconds}

    @classmethod
    def from_json(cls, data: Any) -> DraftCosts:
        """Inverse of `to_json`. Raises ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes."""
        levels = {int(slots): float(seconds) for slots, seconds in data["levels"].items()}
        read = float(data["read"])
        if not (0.0 <= read < math.inf and all(0.0 < one < math.inf for one in levels.values())):
            raise ValueError("a level takes some time")
        return cls(levels, read)


def _followed(known: float, seconds: float) -> float:
    """The known seconds after one more sample; the first sample replaces them."""
    if not known or not seconds:
        return seconds or known
    surprise = min(MOST_LOG_SURPRISE, max(-MOST_LOG_SURPRISE, math.log(seconds / known)))
    return known * (1.0 + LEARNING_RATE * surprise)


PASS_NOISE = 0.08
"""Standard deviation of one pass, in log seconds."""
PACE_DRIFT = 0.02
"""Standard deviation of the change of the machine's pace from one pass to the next, in log seconds."""
ROW_COST_DEVIATION = 1.0
"""Standard deviation, in log seconds, of the estimated cost of further rows: it was off by factors of 0.3 to 3."""
WIDTH_DEVIATION = 0.2
"""Standard deviation of a width from the curve, in log seconds: up to 0.3 was seen for Q4_1 and Q4_K_M with AVX2."""
WIDTH_CORRELATION_LENGTH = 0.5
"""Log ratio of two widths at which the correlation of their deviations has fallen to 1/e."""
PROMPT_NOISE = 0.5
"""Standard deviation, in log seconds, of what a prompt's pass says of rows: other kernels may read prompts."""
SURPRISE_DEVIATIONS = 2.5
"""Standard deviations between the expected and the measured seconds of a pass that make it a surprise."""
CAUTION_DEVIATIONS = 2.0
"""Standard deviations that are added to the expected seconds of a pass to get those that are feared."""
FADE_PASSES = 32
"""Passes after which the deviations of widths lose a tenth."""
MOST_KEPT_PASSES = 8.0
"""Most passes that the kept cost of a width counts as at the next start."""
KEPT_AT_LENGTH = 512
"""Cached tokens at which the costs of widths are compared for the next start: those of a short chat."""
WIDEST_KEPT = 4096
"""Rows of a pass that may be remembered."""
MEASURED_SHARE = 0.25
"""Share of the standard deviations above where passes were timed beforehand."""
_pace, _rows, _length = 0, 1, 2
_widths = _length + 1
"""Indices of the beliefs; the deviations of groups of widths come last."""
_SINGLE_WIDTHS = 16
"""Each width up to this one has a deviation of its own; from here on each doubling has two groups of widths."""


def _group(width: int) -> int:
    single = _SINGLE_WIDTHS
    return width - 1 if width <= single else single - 1 + math.ceil(2.0 * math.log2(width / single))


_groups = 1 + _group(WIDEST_KEPT)
_places = np.array([_widths + _group(max(1, width)) for width in range(WIDEST_KEPT + 1)])
"""int64[1 + WIDEST_KEPT], index of the belief in each width's deviation."""
_first = np.array([ROW_COST_DEVIATION, ROW_COST_DEVIATION / 2.0, *[WIDTH_DEVIATION] * _groups])
"""Standard deviations of the beliefs before any pass, the pace left out."""


def _alike() -> Float64Array:
    """float64[groups, groups], correlations of deviations. Width 1 has none: what all passes share is the pace."""
    places, single = np.arange(_groups), _SINGLE_WIDTHS
    logs = np.log(np.where(places < single, places + 1.0, single * 2.0 ** ((places - single + 1) / 2.0)))
    found: Float64Array = np.exp(-np.abs(logs[:, None] - logs[None, :]) / WIDTH_CORRELATION_LENGTH)
    found[0, :] = found[:, 0] = 0.0
    return found


@dataclass(slots=True)
class _Expected:
    """Expected log seconds of a pass, and their derivatives by each belief."""

    log_seconds: float
    rows: float
    length: float
    own: int = 0
    """Index of the belief in the deviation of its width; 0 = it has none."""
    pace: float = 1.0

    def of(self, values: Float64Array) -> Float64Array:
        """Product of the derivatives with a vector of beliefs or with a matrix."""
        found: Float64Array = self.rows * values[_rows]
        if self.pace:
            found = found + values[_pace]
        if self.length:
            found = found + self.length * values[_length]
        return found + values[self.own] if self.own else found


class PassCosts:
    """Seconds of a pass by width and cached length.

    A width that is not in the table costs as much as the next wider one of the table; beyond the widest, cost grows in
    proportion to rows. Between lengths seconds are interpolated linearly. Before the first length they are constant;
    after the last they grow as between the last two."""

    def __init__(
        self,
        table: Mapping[int, Mapping[int, float]] | None = None,
        *,
        estimated: bool = False,
        prompt_row: float = 0.0,
    ) -> None:
        """`table`: {cached length: {width: seconds}}; may be empty. `estimated`: no pass has run yet: only ratios
        count, and they may be far off. `prompt_row`: what a row of a prompt costs, of a row of a pass that decodes; 0 =
        prompts say nothing."""
        self._plain, self._prompt_row = 1, prompt_row  # width of plain decoding's passes
        self._tabulate(table or {}, max((max(row) for row in (table or {}).values() if row), default=1))
        doubts = np.array([2.0, *_first[:_widths]]) * (1.0 if estimated else MEASURED_SHARE)
        self._prior = doubts[_widths] ** 2 * _alike()
        self._beliefs: Float64Array = np.zeros(_widths + _groups)
        """Logarithms of factors of the table: pace, what rows cost, what the length costs, deviations."""
        self._covariance: Float64Array = np.diag([*np.square(doubts[:_widths]), *np.zeros(_groups)])
        self._covariance[_widths:, _widths:] = self._prior
        self._weights: dict[int, float] = {}
        """By width, the number of passes that its known cost counts as."""
        if not estimated:
            self._weights = {width: MOST_KEPT_PASSES for row in (table or {}).values() for width in row}
        self.stalls = 0.0
        """Mean share by which plain passes take longer than expected, such as by stalls of the machine."""
        self._passes = self._slow = 0
        """Number of passes of all widths; number of surprisingly slow passes in a row up to now."""
        self._changes = 0
        """How often the beliefs of rows, length and widths have changed."""
        self._ratios: tuple[tuple[int, int, int], list[float], list[float]] | None = None
        """Last result of `_over_plain`, with the `_changes`, cached length and widest pass that it is valid for."""
        self._unpaced: tuple[tuple[int, int], float] | None = None
        """Seconds of a plain pass, pace left out, with the `_changes` and the cached length that they are valid for."""
        self._prompts: list[tuple[int, int, float, float]] = []
        """Arguments of `observe_prompt` from before a plain pass was timed."""

    # -- what is believed -------------------------------------------------------------------------------------------

    def _tabulate(self, table: Mapping[int, Mapping[int, float]], widest: int) -> None:
        """Takes in a table, for passes of at most `widest` rows."""
        self._table = {length: dict(row) for length, row in sorted(table.items()) if row}
        self.known, self.widest = bool(self._table), widest
        self._table_lengths = list(self._table) or [0]
        self._table_rows = [np.zeros(widest + 1) for _ in self._table_lengths]
        """For each length, float64[1 + widest]: seconds by width. Index 0 repeats width 1, since no pass is empty."""
        known = sorted({width for row in self._table.values() for width in row})
        for width in range(1, widest + 1) if known else ():
            source = next((one for one in known if one >= width), known[-1])
            points = [(length, row[source]) for length, row in self._table.items() if source in row]
            at, seconds = zip(*points, strict=True)
            for row, found in zip(self._table_rows, np.interp(self._table_lengths, at, seconds), strict=True):
                row[width] = max(1.0, width / source) * found
        for row in self._table_rows:
            row[0] = row[1]

    def _place(self, length: int) -> tuple[int, float]:
        """Index of the table's length before this one, and the share of the way to the next; above 1 after the last."""
        lengths = self._table_lengths
        low = min(bisect_right(lengths, length), len(lengths) - 1) - 1
        if low < 0:
            return 0, 0.0
        return low, (length - lengths[low]) / (lengths[low + 1] - lengths[low])

    def _stated(self, width: int, length: int) -> float:
        """Seconds by the table."""
        low, share = self._place(length)
        one = float(self._table_rows[low][width])
        return one + share * (float(self._table_rows[low + 1][width]) - one) if share else one

    @property
    def timed(self) -> Set[int]:
        """Widths of which passes were timed, in this run or an earlier one."""
        return self._weights.keys()

    @property
    def pace(self) -> float:
        """Factor of the curve: how slow the machine is believed to be."""
        return math.exp(self._beliefs[_pace])

    def widen(self, widest: int) -> None:
        """Passes of up to so many rows can be asked for, too."""
        if widest > self.widest:
            self._tabulate(self._table, widest)

    def seconds(self, width: int, length: int) -> float:
        """Seconds of one pass."""
        return math.exp(self._of_width(width, length).log_seconds) if self.known else 0.0

    def rows(self, length: int) -> tuple[list[float], list[float]]:
        """Expected and feared seconds of a pass by width (index 0 unused) with `length` tokens cached, never less for a
        wider pass; zeros while no cost is known. A width whose cost is not known well is feared to cost more, but for
        each row no more than a plain pass: the rows could be decoded one by one."""
        if not self.known:
            return [0.0] * (self.widest + 1), [0.0] * (self.widest + 1)
        place = self._changes, length // KEPT_AT_LENGTH, self.widest
        if self._ratios is None or self._ratios[0] != place:
            self._ratios = place, *self._over_plain(length)
        plain = self.plain_seconds(length)
        return [plain * one for one in self._ratios[1]], [plain * one for one in self._ratios[2]]

    def plain_seconds(self, length: int) -> float:
        """Seconds of a plain pass. Every pass asks for them, so they are kept for similar lengths."""
        place = self._changes, length // FADE_PASSES
        if self._unpaced is None or self._unpaced[0] != place:
            expected = self._of_width(self._plain, length).log_seconds
            self._unpaced = place, math.exp(expected - float(self._beliefs[_pace]))
        return self.pace * self._unpaced[1]

    def _over_plain(self, length: int) -> tuple[list[float], list[float]]:
        """`rows` divided by the seconds of a plain pass."""
        plain, places, covariance = self._plain, _places[: self.widest + 1], self._covariance
        (low, share), known = self._place(length), self._table_rows
        table = known[low] + share * (known[low + 1] - known[low]) if share else known[low]
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
        feared = ratios * np.exp(CAUTION_DEVIATIONS * np.sqrt(variance.clip(0.0, (2.0 * ROW_COST_DEVIATION) ** 2)))
        most = np.arange(len(seconds)) / plain
        return ratios.tolist(), np.maximum(ratios, np.minimum(feared, most)).tolist()

    def _one(self, length: int) -> float:
        """Seconds of one row from the table, the cost of the cached length scaled by its belief."""
        empty = self._stated(1, 0)
        return empty + math.exp(self._beliefs[_length]) * (self._stated(1, length) - empty)

    def _expected(self, length: int, further: float, own: int = 0) -> _Expected:
        """Expected pass whose rows after the first take `further` seconds in the table."""
        one, more = self._one(length), math.exp(self._beliefs[_rows]) * further
        value = float(self._beliefs[_pace]) + math.log(one + more) + (float(self._beliefs[own]) if own else 0.0)
        return _Expected(value, more / (one + more), (one - self._stated(1, 0)) / (one + more), own)

    def _of_width(self, width: int, length: int) -> _Expected:
        further = self._stated(width, length) - self._stated(1, length)
        return self._expected(length, further, int(_places[width]))

    # -- what passes say --------------------------------------------------------------------------------------------

    def observe(self, width: int, length: int, seconds: float, delayed: float = 0.0) -> None:
        """Learns from a pass of `width` rows after `length` cached tokens. For `delayed` seconds more the machine
        kept our threads waiting."""
        if not (1 <= width <= self.widest and 0.0 < seconds < math.inf):
            return
        if not self.known:
            self._tabulate({length: {width: seconds}}, self.widest)
        self._covariance[_pace, _pace] += PACE_DRIFT * PACE_DRIFT
        noise = PASS_NOISE + math.log1p(delayed / seconds)
        if width != self._plain or not self._passes % FADE_PASSES or not self._paced(seconds, length, noise):
            self._learn(lambda: self._of_width(width, length), math.log(seconds), noise, length, width == self._plain)
        self._weights[width] = min(MOST_KEPT_PASSES, self._weights.get(width, 0.0) + (PASS_NOISE / noise) ** 2)
        self._passes += 1
        if width == self._plain and self._prompts:
            waiting, self._prompts = self._prompts, []
            for one in waiting:
                self.observe_prompt(*one)
        if not self._passes % FADE_PASSES:  # the deviations of widths shrink, so that older passes count less
            kept = 1.0 - LEARNING_RATE
            self._changes += 1
            self._beliefs[_widths:] *= kept
            self._covariance[_widths:] *= kept
            self._covariance[:, _widths:] *= kept
            self._covariance[_widths:, _widths:] += (1.0 - kept * kept) * self._prior
            for belief in (_rows, _length):
                self._covariance[belief, belief] += PACE_DRIFT * PACE_DRIFT * FADE_PASSES / 2

    def _paced(self, seconds: float, length: int, noise: float) -> bool:
        """Quick update of the pace alone by a plain pass; False if the pace is little known or the pass surprises."""
        if not self._weights.get(self._plain):
            return False
        expected, variance = self.plain_seconds(length), float(self._covariance[_pace, _pace])
        self.stalls += (seconds / expected - 1.0 - self.stalls) / (2 * FADE_PASSES)
        off, total = math.log(seconds / expected), variance + noise * noise
        if variance > noise * noise or off * off > SURPRISE_DEVIATIONS * SURPRISE_DEVIATIONS * total:
            return False
        self._slow = 0
        self._beliefs[_pace] += variance / total * off
        self._covariance[_pace, :] *= 1.0 - variance / total
        self._covariance[_rows:, _pace] = self._covariance[_pace, _rows:]
        return True

    def observe_prompt(self, rows: int, length: int, seconds: float, delayed: float = 0.0) -> None:
        """`observe` for a pass that read `rows` tokens of a prompt; what it says counts once a plain pass was timed."""
        if not (self._prompt_row and self.known and rows > 1 and 0.0 < seconds < math.inf):
            return
        if self._plain in self._weights:
            # On average a row sees half of the others.
            middle, widest, noise = length + rows // 2, self.widest, PROMPT_NOISE + math.log1p(delayed / seconds)
            row = (self._stated(widest, middle) - self._stated(1, middle)) / max(1, widest - 1)
            further = self._prompt_row * (rows - 1) * row
            self._learn(lambda: self._expected(middle, further), math.log(seconds), noise, length, False)
        else:
            self._prompts = [*self._prompts[-1:], (rows, length, seconds, delayed)]

    def _learn(self, expected: Callable[[], _Expected], seen: float, noise: float, length: int, plain: bool) -> None:
        """Learns from one sample `seen`, in log seconds, after `length` cached tokens."""
        self._changes += 1
        found, covariance = expected(), self._covariance
        variance = float(found.of(found.of(covariance))) + noise * noise
        off, most = seen - found.log_seconds, SURPRISE_DEVIATIONS * math.sqrt(variance)
        self._slow = self._slow + 1 if off > most else 0
        plain = plain or seen < math.log(self.seconds(self._plain, length))  # no pass is cheaper than a plain one
        if self._slow >= CONVINCING_STREAK or (off < -most and plain):  # the machine has changed
            covariance[_pace, _pace] += off * off
            self._slow = 0
        elif off > most:
            seen = found.log_seconds + most
        elif off < -most:  # what was believed of this width was wrong
            doubts = np.sqrt(np.diag(covariance)[_rows:].clip(PASS_NOISE**4))
            wider = np.clip(2.0 * _first / doubts, 1.0, max(1.0, abs(off) / math.sqrt(variance)))
            covariance[_rows:, _rows:] *= np.outer(wider, wider)  # no doubt is more than twice the first one
            covariance[_pace, _rows:] = covariance[_rows:, _pace] = 0.0
        self._believe(expected, seen, noise)

    def _believe(self, expected: Callable[[], _Expected], seen: float, noise: float) -> None:
        """Updates the beliefs by one sample, again from the new beliefs if these moved far: the model is not linear."""
        before = self._beliefs
        for _ in range(2 * CONVINCING_STREAK):
            found = expected()
            shared = found.of(self._covariance)
            variance = float(found.of(shared)) + noise * noise
            off = seen - found.log_seconds + float(found.of(self._beliefs - before))
            last, self._beliefs = self._beliefs, before + shared * (off / variance)
            self._beliefs[_rows:] = self._beliefs[_rows:].clip(-2.0 * SURPRISE_DEVIATIONS, 2.0 * SURPRISE_DEVIATIONS)
            if abs(float(self._beliefs[_rows] - last[_rows])) < PASS_NOISE:
                break
        gained = shared / math.sqrt(variance)  # the matrix stays symmetric to the last bit
        self._covariance -= np.outer(gained, gained)

    # -- other requests, other runs ---------------------------------------------------------------------------------

    def copy(self, plain: int) -> PassCosts:
        """A copy that learns by itself, for passes whose plain width is `plain` rows."""
        other = copy.deepcopy(self)
        other._plain = plain
        return other

    def kept(self) -> dict[int, tuple[float, float]]:
        """{width: (seconds divided by those of one row, passes that this ratio counts as)} of the widths timed."""
        row, _ = self.rows(KEPT_AT_LENGTH)
        return {width: (row[width] / row[1], weight) for width, weight in self._weights.items()}

    def recall(self, kept: Mapping[int, tuple[float, float]]) -> None:
        """Starts with the `kept` of an earlier run, its weights reduced by the age of that run."""

        def expected(width: int) -> _Expected:
            """Ratio of a pass of this width to a pass of one row."""
            found, one = self._of_width(width, KEPT_AT_LENGTH), self._of_width(1, KEPT_AT_LENGTH)
            value = found.log_seconds - one.log_seconds
            return _Expected(value, found.rows - one.rows, found.length - one.length, found.own, pace=0.0)

        for width, (ratio, weight) in kept.items():
            if 1 < width <= self.widest and self.known and weight > 0.0:
                self._changes += 1
                self._believe(partial(expected, width), math.log(ratio), 2.0 * PASS_NOISE / math.sqrt(weight))
                self._weights[width] = weight


def kept_from_json(data: Any) -> dict[int, tuple[float, float]]:
    """`PassCosts.kept()` from what json.load made of it. Raises ValueError, TypeError, AttributeError: it is something
    else."""
    found = {int(width): (float(ratio), float(weight)) for width, (ratio, weight) in data.items()}
    most = MOST_KEPT_PASSES
    if not all(0 < w <= WIDEST_KEPT and 0.0 < r < math.inf and 0.0 < n <= most for w, (r, n) in found.items()):
        raise ValueError("a pass takes some time")
    return found


FIRST_ANSWER_TOKENS = 200.0
"""Expected tokens of an answer before any answer ended: those of a usual chat."""
PACE_KEPT_SHARE = 0.98
"""Share of the pace's counts that is kept from one pass to the next."""
PACE_PRIOR_PASSES, HIGHEST_PRIOR_PACE = 6.0, 1.25
"""When a request begins: passes that the pace of earlier requests counts as, and its limit in tokens a plain pass.
A pace that the new request cannot reach would rule out drafts that pay; a pace that is too low costs little."""
READING_ALLOWANCE = 12.0
"""Plain passes that readings by little known drafters may cost besides the budget, once in a run: a drafter that has
read nothing cannot be judged. A draft model reads 100 tokens in 3 plain passes (tests.planning.worlds)."""


@dataclass(slots=True)
class TokenPace:
    """Tokens that a slot lately got in the time of a plain pass."""

    tokens: float = 0.0
    """Tokens a slot, older passes faded."""
    passes: float = 0.0
    """Time in plain passes, older passes faded."""

    @property
    def value(self) -> float:
        """Tokens a plain pass; at least 1, the pace of plain decoding."""
        return max(1.0, self.tokens / self.passes) if self.passes else 1.0

    def begin(self) -> None:
        """Limits what the pace of earlier requests counts for the request that begins."""
        kept = min(1.0, PACE_PRIOR_PASSES / self.passes) if self.passes else 1.0
        self.passes *= kept
        self.tokens = min(kept * self.tokens, HIGHEST_PRIOR_PACE * self.passes)

    def book(self, tokens: float, passes: float) -> None:
        """Adds a pass that brought `tokens` a slot in the time of `passes` plain passes."""
        self.tokens = PACE_KEPT_SHARE * self.tokens + tokens
        self.passes = PACE_KEPT_SHARE * self.passes + passes


@dataclass(slots=True)
class Knowledge:
    """All that was learned of one pair of models on one machine."""

    costs: PassCosts = field(default_factory=PassCosts)
    draft_costs: dict[str, DraftCosts] = field(default_factory=dict)
    """Cost of each drafter that costs something, by name."""
    acceptance: defaultdict[str, Table] = field(default_factory=lambda: defaultdict(Table))
    """Acceptance of each drafter's guesses, by name."""
    pace: TokenPace = field(default_factory=TokenPace)
    answer: float = FIRST_ANSWER_TOKENS  # usual number of tokens of an answer
    readings: float = READING_ALLOWANCE  # plain passes that are left of it
    kept_passes: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Costs of passes that an earlier run learned, for `PassCosts.recall`."""
