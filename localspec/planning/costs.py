"""What passes cost on this machine: seconds by width and cached length, and what a drafter takes for its guesses.

Costs begin as they were measured or estimated and follow every pass: a factor of the machine, shared by all widths,
and a factor of each width but plain decoding's. Of estimates only the ratios count: the first pass sets their scale,
and the first pass of each width is believed. They are neither flat nor smooth (a width of 5 may cost half as much
again as one of 4); only lengths are interpolated. A width that was never measured costs as much as the next wider one
that was, and beyond the widest in proportion to its rows: never less than what is known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from localspec.planning.learning import IN_A_ROW, RATE, moved

_KNOTS = tuple(2**power for power in range(5, 18))
"""Cached lengths between which seconds are interpolated, besides those that were measured."""
CLIP = 0.25
"""A pass counts as at most this far, in logarithms, from what was expected: what takes longer is a stall."""
FIRST_CLIP = 1.1
"""The same for the first passes after estimates: a factor of three."""
FIRST_PASSES = 8
"""How many these are."""
ALONG = 16
"""Tokens that are read along with a guess at most: what takes more says what reading costs, not guessing."""
WIDEST = 4096
"""Rows of a pass that may be remembered."""
OWN_RATE = 0.02
"""Share of a surprise that moves the factor of a width, at least; its first passes move it further."""
TRUST = 2.0
"""Passes that a measured value is worth."""
FADE = 32
"""Passes after which the factors of widths that did not run in them move towards 1 again."""


class PassCosts:
    """Seconds of a pass by width and cached length."""

    def __init__(
        self, measured: Mapping[int, Mapping[int, float]] | None = None, *, plain: int = 1, estimated: bool = False
    ) -> None:
        """
        Args:
            measured: {cached length: {width: seconds}}; may be empty.
            plain: width of plain decoding's passes.
            estimated: no pass has run yet.
        """
        self._measured = {length: dict(row) for length, row in sorted((measured or {}).items()) if row}
        self._known: list[int] = []
        """Widths that were measured, observed or estimated."""
        self._estimated = {width for row in self._measured.values() for width in row} if estimated else set[int]()
        """Widths of which no pass has run yet."""
        self._plain = plain
        self._knots: list[int] = []
        self._seconds: list[list[float]] = []
        """[knot][width], as measured."""
        self._factors: list[float] = [1.0]
        """By width, what passes took of what was measured, besides what the machine makes of all."""
        self._seen: list[float] = [0.0]
        """By width, passes that its factor is worth."""
        self._machine, self._passes = 1.0, 0 if estimated or not self._measured else FIRST_PASSES
        self._streaks: dict[int, int] = {}
        """By width, passes in a row that were much slower, or (negative) much faster, than expected."""
        self._ran: set[int] = set()
        """Widths that ran since the last fading."""
        self._spread(max((max(row) for row in self._measured.values()), default=1))

    @property
    def known(self) -> bool:
        """Whether anything was measured, observed or estimated."""
        return bool(self._measured)

    @property
    def timed(self) -> frozenset[int]:
        """Widths that were measured or observed."""
        return frozenset(self._known) - self._estimated

    def is_timed(self, width: int) -> bool:
        """Whether passes of this width were measured or observed."""
        return width in self._known and width not in self._estimated

    @property
    def widest(self) -> int:
        """Widest pass that can be asked for."""
        return len(self._factors) - 1

    def widen(self, widest: int) -> None:
        """Passes of up to so many rows can be asked for, too."""
        if widest > self.widest:
            self._spread(widest)

    def row(self, length: int) -> list[float]:
        """Seconds by width (index 0 unused) with `length` tokens cached; zeros while nothing is known."""
        low, share = self._place(length)
        near, far = self._machine * (1.0 - share), self._machine * share
        if not share:
            return [near * one * factor for one, factor in zip(self._seconds[low], self._factors, strict=True)]
        rows = zip(self._seconds[low], self._seconds[low + 1], self._factors, strict=True)
        return [(near * one + far * other) * factor for one, other, factor in rows]

    def seconds(self, width: int, length: int) -> float:
        """Seconds of one pass."""
        low, share = self._place(length)
        value = self._seconds[low][width]
        if share:
            value += share * (self._seconds[low + 1][width] - value)
        return self._machine * self._factors[width] * value

    def observe(self, width: int, length: int, seconds: float) -> None:
        """A pass of that width took so long."""
        if not (1 <= width <= self.widest and 0.0 < seconds < math.inf):
            return
        if width not in self._known:
            self._first(width, length, seconds)
            return
        clip = CLIP if self._passes >= FIRST_PASSES else FIRST_CLIP
        surprise = math.log(seconds / self.seconds(width, length))
        if not self._passes:
            self._machine, surprise = self._machine * math.exp(surprise), 0.0
        elif width in self._estimated and width != self._plain:
            self._factors[width] *= math.exp(min(FIRST_CLIP, max(-FIRST_CLIP, surprise)))
            surprise = 0.0
        elif self._is_wrong(width, surprise):
            self._correct(width, math.exp(surprise))
            surprise = 0.0
        self._estimated.discard(width)
        surprise = min(clip, max(-clip, surprise))
        self._passes += 1
        self._machine *= math.exp(max(RATE, 1.0 / self._passes) * surprise)
        if width != self._plain:  # what changes about plain decoding is the machine
            self._seen[width] += 1.0
            self._factors[width] *= math.exp(max(OWN_RATE, 1.0 / self._seen[width]) * surprise)
            self._believe_wider(width, length)
        self._ran.add(width)
        if not self._passes % FADE:
            self._fade()

    def _is_wrong(self, width: int, surprise: float) -> bool:
        """Whether it was further off than CLIP, the same way, several times in a row: no stalls, it is wrong."""
        streak = self._streaks.get(width, 0)
        sign = 1 if surprise > CLIP else -1 if surprise < -CLIP else 0
        self._streaks[width] = streak + sign if streak * sign >= 0 and sign else sign
        return abs(self._streaks[width]) >= IN_A_ROW

    def _correct(self, width: int, times: float) -> None:
        """What was measured of a width was wrong; of plain decoding's, the machine has changed."""
        self._streaks[width] = 0
        if width == self._plain:
            self._machine *= times
            return
        for row in self._measured.values():
            if width in row:
                row[width] *= times
        self._spread(self.widest)

    def _believe_wider(self, width: int, length: int) -> None:
        """Plain decoding's pass costs no more than a wider one: what says so is a first pass, which ran cold."""
        times = self.seconds(self._plain, length) / self.seconds(width, length)
        if width > self._plain and times > 1.0:
            self._machine /= times
            self._factors[width] *= times

    def _fade(self) -> None:
        """What was learned of widths that did not run goes back towards what was measured."""
        for width, factor in enumerate(self._factors):
            if factor != 1.0 and width not in self._ran:
                self._factors[width] = moved(factor, 1.0)
        self._ran.clear()

    def copy(self, plain: int) -> PassCosts:
        """The same, to be refined apart, for passes of which plain decoding's have `plain` rows."""
        other = PassCosts(self._current(frozenset(self._known)), plain=plain)
        other._estimated, other._passes = set(self._estimated), self._passes
        return other

    def recall(self, remembered: PassCosts) -> None:
        """Goes on where an earlier run stopped: its widths cost what they cost there, estimates keep their ratios."""
        timed = remembered.timed
        for length, row in self._measured.items():
            pace = remembered.seconds(self._plain, length) / row[self._plain] if self._plain in timed else 1.0
            for width in row:
                row[width] *= pace
            row.update({width: remembered.seconds(width, length) for width in timed})
        self._estimated -= timed
        self._passes = FIRST_PASSES if self._plain in timed else self._passes
        self._spread(max(self.widest, remembered.widest))

    def measured(self) -> dict[int, dict[int, float]]:
        """{cached length: {width: seconds}} of what was timed, as `measured` of another."""
        return self._current(self.timed)

    def _current(self, widths: frozenset[int]) -> dict[int, dict[int, float]]:
        """What these widths cost by now, at the lengths that were measured."""
        return {
            length: {width: self.seconds(width, length) for width in row if width in widths}
            for length, row in self._measured.items()
        }

    def _first(self, width: int, length: int, seconds: float) -> None:
        """A width that was never measured: it costs this, and grows with the length as its neighbour does."""
        expected = self.seconds(width, length)
        if not expected:
            self._measured, self._passes = {length: {width: seconds}}, 1
        else:
            times = seconds / expected
            for at, row in self._measured.items():
                row[width] = times * self.seconds(width, at) / self._machine
        self._spread(self.widest)

    def _spread(self, widest: int) -> None:
        """Seconds of all widths at all knots, from those that were measured."""
        more = widest - self.widest
        self._factors += [1.0] * more
        self._seen += [TRUST] * more
        self._knots = sorted({*_KNOTS, *self._measured})
        self._seconds = [[0.0] * (widest + 1) for _ in self._knots]
        self._known = known = sorted({width for row in self._measured.values() for width in row})
        for width in range(1, widest + 1) if known else ():
            source = next((one for one in known if one >= width), known[-1])
            points = [(length, row[source]) for length, row in self._measured.items() if source in row]
            times = max(1.0, width / source)
            for knot, row in zip(self._knots, self._seconds, strict=True):
                row[width] = times * _through(points, knot)

    def _place(self, length: int) -> tuple[int, float]:
        """The knot at or before a length, and how far it is on the way to the next one."""
        knots = self._knots
        low = bisect_right(knots, length) - 1
        if low < 0:
            return 0, 0.0
        if low + 1 == len(knots):
            return low, 0.0
        return low, (length - knots[low]) / (knots[low + 1] - knots[low])


class DraftCosts:
    """Seconds a drafter takes: for a level of a draft, all slots in one batch, and for a token it must read before it
    can guess.

    The first level costs as much as each further one, or everything where one pass guesses all levels (`OnePass`).
    """

    def __init__(
        self, levels: Mapping[int, float] | None = None, read_seconds: float = 0.0, *, estimated: bool = False
    ) -> None:
        """
        Args:
            levels: {slots drafting together: seconds of a level}.
            read_seconds: per token read in bulk; 0 = unknown.
            estimated: no draft was timed yet.
        """
        self._levels, self._timed_levels, self._timed_reading = dict(levels or {}), not estimated, not estimated
        self.read_seconds = read_seconds

    @property
    def known(self) -> bool:
        """Whether anything was timed or estimated."""
        return bool(self._levels)

    @property
    def timed(self) -> bool:
        """Whether any draft was timed."""
        return bool(self._levels) and self._timed_levels

    def level(self, slots: int) -> float:
        """Seconds of a level for so many slots; of the next smaller number that is known, or the smallest."""
        known = [one for one in self._levels if one <= slots] or list(self._levels)
        return self._levels[min(known, key=lambda one: abs(one - slots))] if known else 0.0

    def reading(self, missing: int, slots: int) -> float:
        """Seconds of reading `missing` tokens over all slots; each slot's last one is part of a level."""
        return max(0, missing - slots) * self.read_seconds

    def observe(self, levels: float, missing: int, slots: int, seconds: float) -> None:
        """A draft of so many levels took so long; one of no levels says what reading costs, if anything."""
        extra, level = max(0, missing - slots), self.level(slots)
        if not 0.0 < seconds < math.inf:
            return
        if extra > ALONG:
            known = self.read_seconds if self._timed_reading else 0.0
            self.read_seconds = _followed(known, max(0.0, seconds - levels * level) / extra)
            self._timed_reading = True
        elif levels > 0:
            guessing = max(seconds - self.reading(missing, slots), seconds / 2.0)
            self._levels[slots] = _followed(level if self._timed_levels else 0.0, guessing / levels)
            self._timed_levels = True

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {"levels": {str(slots): seconds for slots, seconds in self._levels.items()}, "read": self.read_seconds}

    @classmethod
    def from_json(cls, data: Any) -> DraftCosts:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        levels = {int(slots): float(seconds) for slots, seconds in data["levels"].items()}
        read = float(data["read"])
        if not (0.0 <= read < math.inf and all(0.0 < one < math.inf for one in levels.values())):
            raise ValueError("a level takes some time")
        return cls(levels, read)


def measured_from_json(data: Any) -> dict[int, dict[int, float]]:
    """`PassCosts.measured()` from what json.load made of it.

    Raises:
        ValueError, TypeError, AttributeError: it is something else.
    """
    found = {int(n): {int(w): float(s) for w, s in row.items()} for n, row in data.items()}
    if not all(0 < w <= WIDEST and 0.0 < s < math.inf for row in found.values() for w, s in row.items()):
        raise ValueError("a pass takes some time")
    return found


def _followed(known: float, seconds: float) -> float:
    """What is known, after one more sample; the first one is believed."""
    if not known or not seconds:
        return seconds or known
    surprise = min(CLIP, max(-CLIP, math.log(seconds / known)))
    return known * (1.0 + RATE * surprise)


def _through(points: list[tuple[int, float]], length: int) -> float:
    """A line through (length, seconds) points: straight between them, level before, the last slope after."""
    index = bisect_right([at for at, _ in points], length) - 1
    if index < 0 or len(points) == 1:
        return points[0][1]
    last = 0.0
    if index + 1 == len(points):
        index -= 1
        last = points[-1][1]
    (start, one), (end, other) = points[index], points[index + 1]
    return max(last, one + (other - one) * (length - start) / (end - start))
