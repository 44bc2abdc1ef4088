"""Planning takes time, too: it rests where nothing comes of it.

A pass that nothing is drafted in costs what plain decoding costs, and what it took to find that out: some 0.1 ms, a
five-hundredth of a pass of a large model, a quarter of one of a tiny model. So planning that has found nothing since
`fruitless` passes rests for

    min(fruitless / 3, planning seconds / (SHARE * plain seconds) - 1)      passes, rounded down:

where passes are long it never does; where they are short it takes at most SHARE of plain decoding's time, and what
begins to pay is noticed after a third of the time in which nothing did.
"""

from __future__ import annotations

SHARE = 0.004
"""Of plain decoding's time."""
_REST = 3
_KINSHIP = 4
"""What was in vain for a request counts for the next one by this divisor."""
_MEMORY = 0.9
_OUTLIER = 2.0
"""One planning counts as at most so many usual ones."""


class Attention:
    """Whether a pass is planned."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Planning of a pass, lately; drafters that cost something are not part of it."""
        self.rested = 0
        """Passes since one was planned."""
        self._fruitless = 0
        """Passes since planning found something, or a request came."""
        self._cold = True
        """Nothing was planned yet: the first time takes many times as long as later ones, and says nothing of them."""

    def begin(self) -> None:
        """A request came; it may be like the last one."""
        self._fruitless //= _KINSHIP

    def rests(self, plain_seconds: float) -> bool:
        """Whether the coming pass is not planned, where plain decoding's takes so long."""
        if plain_seconds <= 0.0:
            return False
        limit = min(self._fruitless // _REST, self.seconds / (SHARE * plain_seconds) - 1.0)
        if self.rested + 1 <= limit:
            self.rested += 1
            self._fruitless += 1
            return True
        return False

    def planned(self, fruitful: bool) -> None:
        """A pass was."""
        self.rested = 0
        self._fruitless = 0 if fruitful else self._fruitless + 1

    def took(self, seconds: float) -> None:
        """Planning a pass and learning from it."""
        if self._cold:
            self._cold = False
        elif not self.seconds:
            self.seconds = max(0.0, seconds)
        else:
            self.seconds += (1.0 - _MEMORY) * (min(seconds, _OUTLIER * self.seconds) - self.seconds)
