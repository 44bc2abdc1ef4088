"""The promise "never slower": what speculation may lose in an answer.

Plain decoding's time is known (one row a pass), so a loss can be counted. It is counted in plain passes of that moment.
There are two allowances. Each answer has one for wrong guesses (`Budget`): a pass that drafted books what it really
took against what plain decoding would have needed for its tokens, and no draft is sent, and no drafter asked, that
could lose more than is left. Deciding who drafts has another (`Looks`), so that looking never uses up what guessing may
lose; what an answer's guesses have saved pays for looks, too. An answer whose allowance is used up gets credit for
guesses that were drawn, not sent, and right. So

    time of an answer <= (1 + LOSS_SHARE + LOOK_SHARE) * plain time + LOSS_PASSES + 1 + credit(tokens) plain passes,

where credit(tokens) = floor(log2(1 + tokens / CONVINCING_STREAK)), since each credit takes twice as many right guesses
as the one before, and readings of prompts that did not pay back (see `passes`). Of a pass that took longer than was
feared one plain pass counts over the feared. Each answer has its own budget: neither savings nor losses of one answer
count in the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.engine.interfaces import History
from localspec.planning.acceptance import CONVINCING_STREAK, Tracker, Usual

LOSS_SHARE = 0.01
"""Share of plain decoding's time that an answer may lose by wrong guesses (issue 57)."""
LOSS_PASSES = 2.0
"""Plain passes that an answer may lose by wrong guesses besides LOSS_SHARE (issue 57)."""
LOOK_SHARE = 0.015
"""Share of plain decoding's time that deciding who drafts may take while nothing is sent (issue 72)."""
MOST_BETWEEN_LOOKS = 32
"""Passes from one look to the next at most, where even a plan that does not look takes more than LOOK_SHARE."""
_most_saved = LOOK_SHARE * MOST_BETWEEN_LOOKS
"""Plain passes of LOOK_SHARE that may be saved up, or taken beforehand."""


@dataclass(slots=True)
class Credit:
    """Loans of answers that are not earned back, in plain passes; all answers owe them together."""

    debt: float = 0.0


class Budget:
    """The loss by wrong guesses that an answer may still make, in plain passes."""

    def __init__(self, credit: Credit | None = None) -> None:
        self.passes = LOSS_PASSES
        self.gained = 0.0
        """Of these, what guesses have saved on balance: looks may be paid from it."""
        self._credit = credit or Credit()
        self.streak = 0
        """Number of guesses in a row that were right and not sent, none of them counted twice."""
        self.unsent: list[int] = []
        """What is left of a guess that was not sent: the next tokens, if it is right."""

    def book(self, plain: float, spent: float) -> None:
        """Books a pass that took `spent` for tokens that take plain decoding `plain`; both in plain passes."""
        saved = (1.0 + LOSS_SHARE) * plain - spent
        self.gained = max(0.0, self.gained + plain - spent)
        repaid = min(max(0.0, saved), self._credit.debt)
        self._credit.debt -= repaid
        self.passes += saved - repaid

    def pay(self, passes: float) -> None:
        """Pays for a look out of what guesses have saved."""
        self.passes -= passes
        self.gained = max(0.0, self.gained - passes)

    def heard(self, said: Sequence[int], sent: int) -> None:
        """Compares the guess that was not sent with the tokens of a pass in which a draft of `sent` nodes was sent."""
        if sent:
            self.unsent.clear()
            self.streak = self.streak if len(said) > 1 else 0
        for token in said:
            if self.unsent:
                right = self.unsent.pop(0) == token
                self.streak = self.streak + 1 if right else 0
                if not right:
                    self.unsent.clear()

    def lend(self, prices: Sequence[float], plain: float) -> None:
        """Lends what right guesses have earned that were not sent: at most one plain pass, at most what a send of them
        would have saved. They count no more. Each plain pass of debt doubles the number of right guesses that the next
        credit needs. `prices` by nodes and `plain` are in seconds."""
        if self.streak < CONVINCING_STREAK * 2.0**self._credit.debt:
            return
        nodes = min(self.streak, len(prices) - 1)
        while nodes and prices[nodes] == math.inf:
            nodes -= 1
        lent = min(1.0, max(0.0, nodes - (prices[nodes] - prices[0]) / plain))
        self.passes += lent
        self._credit.debt += lent
        self.streak = 0 if lent else self.streak


@dataclass(slots=True, eq=False)
class Served:
    """A request from its first pass to its last."""

    history: History
    start: int
    """Number of tokens in the history before the first pass."""
    trackers: list[Tracker]  # acceptance in this request, one tracker per drafter
    budget: Budget
    promising: bool = False
    """Whether the last pass brought more than one token, or guesses that were not sent are right: a copy goes on."""
    tries: bool = True
    """Whether a draft that is not worth its expected price may still be tried."""

    def heard(self, said: Sequence[int], sent: int) -> None:
        """Learns from the tokens of a pass in which a draft of `sent` nodes was sent."""
        self.budget.heard(said, sent)
        self.promising = (sent > 0 and len(said) > 1) or self.budget.streak >= CONVINCING_STREAK


class Looks:
    """When drafters that cost nothing are asked: in every pass, or as often as LOOK_SHARE allows."""

    def __init__(self) -> None:
        self.look, self.rest = Usual(), Usual()
        """Seconds of the plan in a pass that looks, and in one that rests."""
        self._saved = _most_saved
        """What is left of LOOK_SHARE, in plain passes."""

    def due(self, plain: float) -> bool:
        """Whether the share covers a look, where a plain pass takes `plain` seconds."""
        return self._saved * plain >= self.look.seconds - self.rest.seconds

    @property
    def affordable(self) -> bool:
        """Whether a look may be taken from what is saved later."""
        return self._saved > -_most_saved

    def book(self, tokens: float, passes: float) -> None:
        """Books a pass that sent no guess: `tokens` a slot, and the plan's time in plain passes."""
        self._saved = min(_most_saved, max(-_most_saved, self._saved + LOOK_SHARE * tokens - passes))
