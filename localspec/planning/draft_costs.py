"""What a drafter takes for its guesses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.planning.learning import RATE

CLIP = 0.25
"""A draft counts as at most this far, in log seconds, from what was expected: what takes longer was delayed."""
ALONG = 16
"""Tokens that are read along with a guess at most: what takes more says what reading costs, not guessing."""


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


def _followed(known: float, seconds: float) -> float:
    """What is known, after one more sample; the first one is believed."""
    if not known or not seconds:
        return seconds or known
    surprise = min(CLIP, max(-CLIP, math.log(seconds / known)))
    return known * (1.0 + RATE * surprise)
