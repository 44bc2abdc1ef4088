"""The guard: what speculation may lose. Plain decoding's time is known (one row a pass), so a loss can be counted.

An account in seconds. It opens with the price of some plain passes, gains a small share of the time plain decoding
would have taken, and every pass with a draft books what it saved or lost. While it is overdrawn nothing is drafted.
Whatever drafts do, the time spent is therefore at most

    (1 + share) * plain time + opening credit + one pass,

which for long enough text is above 0.98 of plain decoding's speed. Savings are kept up to a limit, so that a good hour
cannot pay for a bad one.

Reading a long prompt with a draft model is an *investment*: a loan that savings pay back before anything else. What is
left of it when the request ends is booked as a loss, and the next one must promise more.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.008
"""Of plain decoding's time, what may be lost in trying."""
OPENING_PASSES = 12.0
"""Plain passes whose price the account opens with, the first time a pair runs."""
_MOST_PASSES = 24.0
_LEAST_PASSES = -12.0


@dataclass(slots=True)
class Account:
    """What may still be lost, in seconds."""

    balance: float = 0.0
    opening: float = OPENING_PASSES
    """Plain passes whose price it opens with; what an earlier run left, if there was one."""
    pass_seconds: float = 0.0
    """A plain pass, as of the last booking; 0 = the account is not open yet."""
    spent: float = 0.0
    """All time of booked passes, drafting and reading included."""
    plain: float = 0.0
    """What plain decoding would have taken for the same tokens."""

    def scale(self, pass_seconds: float) -> None:
        """Tells the price of a plain pass now; the first time opens the account."""
        if not self.pass_seconds:
            self.balance = self.opening * pass_seconds
        self.pass_seconds = pass_seconds

    @property
    def passes(self) -> float:
        """The balance in plain passes."""
        return self.balance / self.pass_seconds if self.pass_seconds else self.opening

    @property
    def open(self) -> bool:
        """Whether anything may be drafted."""
        return self.balance > 0.0

    def affords(self, loss: float) -> bool:
        """Whether so much could be lost at once."""
        return loss <= self.balance

    def book(self, plain: float, spent: float) -> None:
        """A pass brought tokens that would have taken `plain` seconds, in `spent` seconds."""
        self.plain += plain
        self.spent += spent
        self._add(SHARE * plain + plain - spent)

    def write_off(self, seconds: float) -> None:
        """An investment was not paid back."""
        self._add(-seconds)

    def _add(self, seconds: float) -> None:
        unit = self.pass_seconds
        self.balance = min(_MOST_PASSES * unit, max(_LEAST_PASSES * unit, self.balance + seconds))


@dataclass(slots=True)
class Investment:
    """Reading done for one request, until it has paid for itself."""

    owed: float = 0.0
    patience: float = 1.0
    """How many times over an investment must promise to pay; doubles with each one that failed."""

    def invest(self, seconds: float) -> None:
        """Reading takes so long and is to be paid back."""
        self.owed += seconds

    def repay(self, saved: float) -> float:
        """A pass saved (or lost) so much; returns what is left for the account."""
        if saved <= 0.0 or not self.owed:
            return saved
        paid = min(self.owed, saved)
        self.owed -= paid
        if not self.owed:
            self.patience = max(1.0, self.patience / 2.0)
        return saved - paid

    def close(self) -> float:
        """The request is over; returns what was not paid back."""
        lost, self.owed = self.owed, 0.0
        if lost:
            self.patience = min(1024.0, 2.0 * self.patience)
        return lost
