"""Planning takes time, too: it rests where it brings nothing that would not come without it.

Some 0.4 ms a pass: a fiftieth of a pass of a large model, a third of one of a tiny model. A pass that is not planned is
plain, or sends what a `routine` says. So planning that has not been worth its time since `fruitless` passes rests for

    min(fruitless / 3, planning seconds / (SHARE * plain seconds) - 1)      passes, rounded down:

where passes are long it hardly ever does; where they are short it takes at most SHARE of plain decoding's time, and
what begins to pay is noticed after a third of the time in which nothing did. One that was worth its time ends a rest,
and a quarter of what was in vain still counts: a single find brings less than the ten plannings it takes to rest for as
long again. Nor does it rest while what it found lately saves more, over what would be done without it, than it takes:
one draft in five passes pays for all five where passes take 20 ms.

Asking a drafter without cost takes time as well, and such drafters rest by the same rule (`shadow`).
"""

from __future__ import annotations

import math

SHARE = 0.004
"""Of plain decoding's time."""
_REST = 3
_KINSHIP = 1.5
"""What was in vain for a request counts for the next one by this divisor: its first pass need not be planned."""
_FIND = 4
"""What was in vain counts by this divisor behind a pass that was worth planning."""
_MEMORY = 0.9
_OUTLIER = 2.0
"""One planning counts as at most so many usual ones."""
_WORTH_MEMORY = 0.95
"""Of what planning was worth, what is left a pass later."""


class Attention:
    """Whether a pass is planned."""

    def __init__(self, most: float = math.inf) -> None:
        """
        Args:
            most: how many plannings a single one is worth at most, whatever it saves.
        """
        self._most = most
        self.seconds = 0.0
        """Planning of a pass, lately; drafters that cost something are not part of it."""
        self.rested = 0
        """Passes since one was planned."""
        self._fruitless = 0
        """Passes since planning was worth its time, less of those before it was, or before a request came."""
        self._worth = 0.0
        """Seconds a pass that what it found is expected to save over what would be done without, lately."""
        self._cold = True
        """Nothing was planned yet: the first time takes many times as long as later ones, and says nothing of them."""

    def begin(self) -> None:
        """A request came; it may be like the last one."""
        self._fruitless = int(self._fruitless / _KINSHIP)

    def rests(self, plain_seconds: float, passes: int = 1) -> bool:
        """Whether so many passes, the coming one the last of them, are not planned, where plain decoding's takes so
        long.
        """
        if plain_seconds <= 0.0 or self._worth > self.seconds:
            return False
        limit = min(self._fruitless // _REST, self.seconds / (SHARE * plain_seconds) - 1.0)
        if self.rested + passes <= limit:
            self.skip(passes)
            return True
        return False

    def coming(self, plain_seconds: float) -> int:
        """Passes from now on for which `rests` would say yes, one after the other."""
        if plain_seconds <= 0.0 or self._worth > self.seconds:
            return 0
        growing = (self._fruitless - _REST * self.rested - 1) // (_REST - 1)  # each is fruitless, too
        return max(0, min(growing, int(self.seconds / (SHARE * plain_seconds) - 1.0) - self.rested))

    def skip(self, passes: int) -> None:
        """So many were not planned."""
        self.rested += passes
        self._fruitless += passes

    def planned(self, fruitful: bool, saves: float = 0.0) -> None:
        """A pass was.

        Args:
            fruitful: it was worth its time.
            saves: seconds that what was found is expected to save over what would be done without.
        """
        self.rested = 0
        self._fruitless = self._fruitless // _FIND if fruitful else self._fruitless + 1
        self._worth += (1.0 - _WORTH_MEMORY) * (
            min(saves, self._most * self.seconds if self.seconds else saves) - self._worth
        )

    def took(self, seconds: float) -> None:
        """Planning a pass and learning from it."""
        if self._cold:
            self._cold = False
        elif not self.seconds:
            self.seconds = max(0.0, seconds)
        else:
            self.seconds += (1.0 - _MEMORY) * (min(seconds, _OUTLIER * self.seconds) - self.seconds)
