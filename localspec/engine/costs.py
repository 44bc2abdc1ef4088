"""What passes cost on this machine: seconds by width and cached length, and what a drafter takes for its guesses.

Costs begin as calibration measured them and follow every pass. They are neither flat nor smooth (a width of 5 may cost
half as much again as one of 4), so every width keeps a value of its own; only lengths are interpolated. A width that
was never seen costs as much as the next wider known one, and beyond the widest known one in proportion to its rows:
never less than what is known.

An outlier counts as a pass a quarter off, no more; three in a row are none. A machine that slows down as a whole moves
a factor shared by all widths (`drift`) first and a single width only slowly, so that widths not run lately are still
compared fairly; they are `doubtful` when that factor has moved far without them. Plain decoding's width is the anchor:
what changes about it is the machine; what changes about another is that width, until a look at the anchor says
otherwise. What was learned of a width that is not run any more fades towards calibration: a few unlucky passes do not
rule it out for ever.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

_KNOTS = (32, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Cached lengths that keep values of their own, besides those that were measured."""
_CLIP, _FIRST_CLIP = 0.25, 0.7
"""A pass counts as at most this far (in logarithms) from what was expected; the second while little was seen."""
_DRIFT_RATE = 0.1
_LITTLE = 8
_DOUBT = 0.15
_FADING_PASSES, _FADING = 32, 0.1
"""Every so many passes, this share of what was learned of a width that did not run in them is forgotten, and less of
one that was seen often."""
_STREAK = 3
"""Passes of a width that all were far off the same way: what was known of it is wrong."""
_CELL_RATE = 0.02
_TRUST, _GUESS = 2.0, 0.5
"""Passes that a measured seed is worth, and a guessed one."""
_FIRST_FACTOR = 1.1
"""How far the first pass of a guessed width may move it, in logarithms: three times as much, or a third."""


class PassCosts:
    """Seconds of a pass by width and cached length."""

    def __init__(
        self,
        measured: Mapping[int, Mapping[int, float]] | None = None,
        widest: int = 8,
        *,
        guessed: bool = False,
    ) -> None:
        """
        Args:
            measured: {cached length: {width: seconds}} to begin with; may be empty.
            widest: widths up to this can be asked for.
            guessed: they are estimates. Their ratios count, the first pass sets the scale, and they are not kept.
        """
        measured = {n: row for n, row in (measured or {}).items() if row}
        lengths = sorted(measured)
        self.widest = max(widest, max((max(row) for row in measured.values()), default=1))
        self._knots: list[int] = sorted({*_KNOTS, *lengths})
        self._seconds: list[list[float]] = [[0.0] * (self.widest + 1) for _ in self._knots]
        self._seen: list[float] = [0.0] * (self.widest + 1)
        """Per width, how many passes its values are worth; 0 = unknown."""
        self._drift = 1.0
        self._passes = 0
        self._drift_then: dict[int, float] = {}
        """Per width, the drift when it ran last as was expected; 0 when it ran otherwise since."""
        self._streaks: dict[int, int] = {}
        """Per width, how many passes in a row were far slower (or, negative, faster) than expected."""
        for width in sorted({width for row in measured.values() for width in row}):
            points = [(n, measured[n][width]) for n in lengths if width in measured[n]]
            for knot, length in enumerate(self._knots):
                self._seconds[knot][width] = _through(points, length)
            self._seen[width] = _GUESS if guessed else _TRUST
        self._guessed = {width for row in measured.values() for width in row} if guessed else set[int]()
        """Widths of which no pass has run yet."""
        self._scaled = not guessed
        self._copies: dict[int, list[tuple[int, float]]] = {}
        """Per width that is known, the unknown ones that are taken to cost as much, and how many times as much."""
        self._fill()
        self.anchor = 1
        """Width of plain decoding."""
        self._seed = [list(row) for row in self._seconds] if measured and not guessed else None
        self._ran: set[int] = set()
        """Widths that ran since the last fading."""

    @property
    def known(self) -> bool:
        """Whether anything was measured or observed."""
        return any(self._seen)

    def row(self, length: int) -> list[float]:
        """Seconds by width (index 0 unused) with `length` tokens cached; zeros while nothing is known."""
        low, share = self._place(length)
        near, far = self._drift * (1.0 - share), self._drift * share
        if not share:
            return [near * value for value in self._seconds[low]]
        return [near * one + far * other for one, other in zip(self._seconds[low], self._seconds[low + 1], strict=True)]

    def seconds(self, width: int, length: int) -> float:
        """Seconds of one pass."""
        low, share = self._place(length)
        value = self._seconds[low][width]
        if share:
            value += share * (self._seconds[low + 1][width] - value)
        return self._drift * value

    def observe(self, width: int, length: int, seconds: float) -> None:
        """A pass of that width took so long."""
        if not (1 <= width <= self.widest and 0.0 < seconds < math.inf):
            return
        if not (self._seen[width] and self._seconds[0][width]):
            self._first(width, length, seconds)
            return
        if not self._scaled:
            self._drift, self._scaled = self._drift * seconds / self.seconds(width, length), True
        surprise = math.log(seconds / self.seconds(width, length))
        if width in self._guessed:
            self._guessed.discard(width)
            times = math.exp(min(_FIRST_FACTOR, max(-_FIRST_FACTOR, surprise)))
            for row in self._seconds:
                row[width] *= times
            surprise = 0.0
        streak = self._streaks.get(width, 0)
        self._streaks[width] = streak = 0 if abs(surprise) < _CLIP else streak + (1 if surprise > 0.0 else -1)
        common, own = self._steps(width, surprise, abs(streak) >= _STREAK)
        self._drift *= 1.0 + common
        self._drift_then[width] = self._drift if abs(surprise) < _DOUBT else 0.0
        low, share = self._place(length)
        self._seconds[low][width] *= 1.0 + (1.0 - share) * own
        if share:
            self._seconds[low + 1][width] *= 1.0 + share * own
        self._seen[width] += 1.0
        if width > self.anchor and 0.0 < self._seen[self.anchor] < _LITTLE:
            self._lower_anchor(width)
        self._passes += 1
        self._ran.add(width)
        if not self._passes % _FADING_PASSES:
            self._fade()
        self._follow(width)

    def _lower_anchor(self, width: int) -> None:
        """Plain decoding's pass costs no more than a wider one: what says so is a first pass, which runs cold."""
        for row in self._seconds:
            row[self.anchor] = min(row[self.anchor], row[width])
        self._follow(self.anchor)

    def _steps(self, width: int, surprise: float, certain: bool) -> tuple[float, float]:
        """How far all widths move, and this one by itself; `certain`: that often it is no outlier."""
        clip = _CLIP if self._passes >= _LITTLE else _FIRST_CLIP
        common = max(_DRIFT_RATE, 1.0 / (3.0 + self._passes)) * min(clip, max(-clip, surprise))
        clipped = min(_CLIP, max(-_CLIP, surprise))
        far = 0.5 * min(1.0, max(-1.0, surprise))
        if width == self.anchor:  # what changes about plain decoding is the machine
            return (far, 0.0) if certain else (common, _CELL_RATE * clipped)
        if certain:  # this width, or all of them? A pass of plain decoding will tell
            self._drift_then[self.anchor] = 0.0
            return common, far
        return common, max(_CELL_RATE, 1.0 / (1.0 + self._seen[width])) * clipped

    def doubtful(self, width: int) -> bool:
        """Whether its last pass was a surprise, or so much has changed since that it would be."""
        return abs(self._drift_then.get(width, 1.0) - self._drift) > _DOUBT * self._drift

    def recall(self, remembered: PassCosts) -> None:
        """Goes on where an earlier run stopped; what is guessed here follows it in its ratios."""
        if self._guessed and remembered._seen[self.anchor]:
            for length, row in zip(self._knots, self._seconds, strict=True):
                pace = remembered.seconds(self.anchor, length) / row[self.anchor]
                row[:] = [pace * value for value in row]
        for width in range(1, min(self.widest, remembered.widest) + 1):
            if remembered._seen[width]:
                for length, row in zip(self._knots, self._seconds, strict=True):
                    row[width] = remembered.seconds(width, length)
                self._seen[width] = max(self._seen[width], _TRUST)
                self._guessed.discard(width)
                self._scaled = True
        if self._seed is not None:  # what is forgotten goes back to its ratios, not to the speed of that hour
            for row, seed in zip(self._seconds, self._seed, strict=True):
                pace = row[self.anchor] / seed[self.anchor] if seed[self.anchor] else 1.0
                seed[:] = [pace * value for value in seed]
        self._fill()

    def _fade(self) -> None:
        """What was learned of widths that did not run goes back towards calibration."""
        for width in range(1, self.widest + 1):
            if self._seed is not None and self._seen[width] and width not in self._ran:
                share = _FADING / (1.0 + self._seen[width] / _LITTLE)
                for row, seed in zip(self._seconds, self._seed, strict=True):
                    if row[width] and width < len(seed) and seed[width]:
                        row[width] *= (seed[width] / row[width]) ** share
                self._follow(width)
        self._ran.clear()

    def copy(self, anchor: int = 1) -> PassCosts:
        """The same costs, to be refined apart, for passes of which plain decoding's have `anchor` rows."""
        other = PassCosts(None, self.widest)
        other._knots, other._seen = list(self._knots), [min(seen, _TRUST) for seen in self._seen]
        other._seconds = [list(row) for row in self._seconds]
        other._drift, other._copies = self._drift, self._copies
        other._guessed, other._scaled = set(self._guessed), self._scaled
        other._drift_then = dict.fromkeys(range(1, self.widest + 1), self._drift)
        other._seed, other.anchor = self._seed, anchor
        return other

    def widen(self, widest: int) -> None:
        """Widths up to this can be asked for, too."""
        if widest <= self.widest:
            return
        more = [0.0] * (widest - self.widest)
        for row in (self._seen, *self._seconds):
            row.extend(more)
        self.widest = widest
        self._fill()

    def to_json(self) -> dict[str, Any]:
        """{cached length: {width: seconds}} of what was measured, as the next start's `measured`."""
        widths = [width for width, seen in enumerate(self._seen) if seen and width not in self._guessed]
        return {
            str(length): {str(width): row[width] * self._drift for width in widths}
            for length, row in zip(self._knots, self._seconds, strict=True)
        }

    @staticmethod
    def measured_from_json(data: Any) -> dict[int, dict[int, float]]:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, AttributeError: not what `to_json` makes.
        """
        found = {int(n): {int(w): float(s) for w, s in row.items()} for n, row in data.items()}
        if not all(0 < w <= 4096 and 0.0 < s < math.inf for row in found.values() for w, s in row.items()):
            raise ValueError("a pass takes some time")
        return found

    def _place(self, length: int) -> tuple[int, float]:
        """The knot at or before a length, and how far it is on the way to the next one."""
        knots = self._knots
        low = bisect_right(knots, length) - 1
        if low < 0:
            return 0, 0.0
        if low + 1 == len(knots):
            return low, 0.0
        return low, (length - knots[low]) / (knots[low + 1] - knots[low])

    def _first(self, width: int, length: int, seconds: float) -> None:
        """A width nobody has seen before: it costs this, and grows with the length as its neighbour does."""
        guess = self.seconds(width, length)
        for row in self._seconds:
            row[width] = row[width] * seconds / guess if guess else seconds / self._drift
        self._seen[width] = 1.0
        self._fill()

    def _fill(self) -> None:
        """Gives unknown widths the value of the nearest known wider one, or one in proportion to the widest."""
        known = [width for width, seen in enumerate(self._seen) if seen]
        self._copies = {width: [] for width in known}
        for width in range(1, self.widest + 1) if known else ():
            if not self._seen[width]:
                wider = next((other for other in known if other > width), None)
                self._copies[wider or known[-1]].append((width, 1.0 if wider else width / known[-1]))
        for width in known:
            self._follow(width)

    def _follow(self, width: int) -> None:
        """Unknown widths follow this one, which has changed."""
        for copy, times in self._copies[width]:
            for row in self._seconds:
                row[copy] = times * row[width]


class DraftCosts:
    """Seconds a drafter takes: for the first level of a draft, for each further one, and per token it must read before
    it can guess.

    Further levels cost as much as the first where a model runs once a level, and next to nothing where one pass guesses
    them all (PARD, Medusa). How much, drafts of more than one level tell, beside those of one.
    """

    _LONG = 16
    """Tokens to be read from which on the time says what reading costs, not what guessing costs."""
    _MEMORY = 0.97
    """What a timed draft is worth when the next one is."""
    _ENOUGH, _APART = 4.0, 0.3
    """Drafts it takes to tell the first level from further ones, and the variance of their numbers of levels."""
    _STALL = 2.0
    """A draft tells them apart as one that took at most this much longer than expected."""

    def __init__(
        self,
        measured: Mapping[int, Mapping[int, float]] | None = None,
        read_seconds: float = 0.0,
        slots: int = 1,
        further: float = 1.0,
        *,
        guessed: bool = False,
    ) -> None:
        """
        Args:
            measured: {cached length: {slots drafting together: seconds of a first level}}.
            read_seconds: per token read in bulk; 0 = unknown.
            slots: most slots drafting together.
            further: what a further level costs, where the first costs 1.
            guessed: as in `PassCosts`.
        """
        self.levels = PassCosts(measured, slots, guessed=guessed)
        self.read_seconds = read_seconds
        self.further = further
        self._sums: dict[int, list[float]] = {}
        """By slots, of the drafts timed, older ones faded: 1, further levels, their squares, seconds, seconds times
        levels."""

    @property
    def timed(self) -> bool:
        """Whether any draft was timed, besides what was measured beforehand."""
        return bool(self._sums)

    def seconds(self, levels: float, missing: int, slots: int, length: int) -> float:
        """A draft of so many levels for so many slots that must first read `missing` tokens, one a slot is free."""
        first = self.level_seconds(slots, length)
        return self._first_levels(levels) * first + self.reading(missing, slots)

    def level_seconds(self, slots: int, length: int) -> float:
        """The first level of a draft, all slots in one batch."""
        self.levels.widen(slots)
        return self.levels.seconds(slots, length)

    def further_seconds(self, slots: int, length: int) -> float:
        """Each level behind it."""
        return self.further * self.level_seconds(slots, length)

    def _first_levels(self, levels: float) -> float:
        """First levels that take as long as so many levels."""
        return min(levels, 1.0) + self.further * max(0.0, levels - 1.0)

    def reading(self, missing: int, slots: int) -> float:
        """Reading `missing` tokens over all slots; each slot's last one is part of the first level."""
        return max(0, missing - slots) * self.read_seconds

    def observe(self, levels: int, missing: int, slots: int, length: int, seconds: float) -> None:
        """A draft took so long; one of no levels says what reading costs, if anything."""
        if not 0.0 < seconds < math.inf:
            return
        extra = max(0, missing - slots)
        if extra > self._LONG and self.levels.known:
            found = max(0.0, seconds - self.seconds(levels, 0, slots, length)) / extra
            change = found if not self.read_seconds else min(1.5 * self.read_seconds, found) - self.read_seconds
            self.read_seconds += change if not self.read_seconds else 0.3 * change
        elif extra <= self._LONG and levels > 0:
            guessing = max(seconds - self.reading(missing, slots), 0.3 * seconds)
            expected = self.seconds(levels, 0, slots, length) or guessing
            self._tell_apart(levels - 1, slots, min(guessing, self._STALL * expected))
            self.levels.observe(slots, length, guessing / self._first_levels(levels))

    def _tell_apart(self, further: int, slots: int, seconds: float) -> None:
        """A line through levels and seconds: what it begins with is the first level, its slope a further one."""
        new = (1.0, further, further * further, seconds, seconds * further)
        sums = self._sums.get(slots, [0.0] * len(new))
        self._sums[slots] = sums = [self._MEMORY * old + one for old, one in zip(sums, new, strict=True)]
        count, levels, squares, times, products = sums
        variance = squares / count - (levels / count) ** 2
        if count < self._ENOUGH or variance < self._APART:
            return
        slope = (products / count - levels / count * times / count) / variance
        first = times / count - slope * levels / count
        self.further = min(1.0, max(0.0, slope / first)) if first > 0.0 else 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {"levels": self.levels.to_json(), "read_seconds": self.read_seconds, "further": self.further}

    @classmethod
    def from_json(cls, data: Any, slots: int) -> DraftCosts:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        read, further = float(data["read_seconds"]), float(data.get("further", 1.0))
        if not (0.0 <= read < math.inf and 0.0 <= further <= 1.0):
            raise ValueError("reading takes some time, and further levels no longer than the first")
        return cls(PassCosts.measured_from_json(data["levels"]), read, slots, further)


def _through(points: list[tuple[int, float]], length: int) -> float:
    """A line through (length, seconds) points: straight between them, level before, the last slope behind."""
    index = bisect_right([at for at, _ in points], length) - 1
    if index < 0 or len(points) == 1:
        return points[0][1]
    if index + 1 == len(points):
        index -= 1
        last = points[-1][1]
    else:
        last = 0.0
    (start, one), (end, other) = points[index], points[index + 1]
    return max(last, one + (other - one) * (length - start) / (end - start))
