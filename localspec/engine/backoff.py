"""When to try again what did not pay the last time: the longer it has not paid, the longer it is left alone."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Passes from one try to the next: more after each that failed, fewer after each that paid."""

    first: float
    """The fewest."""
    growth: float
    """By this factor."""
    last: float
    """The most."""
    wait: float = 0.0
    idle: int = 0
    """Passes since the last try."""

    def __post_init__(self) -> None:
        self.wait = self.wait or self.first

    @property
    def due(self) -> bool:
        """Whether it is time."""
        return self.idle >= self.wait

    def again(self) -> bool:
        """Whether it is time; if so, it is tried now and the next one waits longer."""
        if not self.due:
            return False
        self.idle = 0
        self.failed()
        return True

    def rest(self, passes: int = 1) -> None:
        """So many passes went by."""
        self.idle += passes

    def failed(self) -> None:
        """A try did not pay."""
        self.wait = min(self.last, self.growth * self.wait)

    def paid(self) -> None:
        """A try paid."""
        self.wait = max(self.first, self.wait / self.growth)

    def at_once(self) -> None:
        """It paid, and the next try is due already."""
        self.paid()
        self.idle = math.ceil(self.wait)

    def restart(self) -> None:
        """There is no doubt left: the next one begins as the first did."""
        self.wait = self.first
