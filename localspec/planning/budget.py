"""The promise "never slower": what speculation may lose.

Plain decoding's time is known (one row a pass), so a loss can be counted. It is counted in plain passes. Every pass
that drafted or planned books what it saved or lost, drafting and planning included, and no pass may lose more than is
left. An answer may lose SHARE of plain decoding's time and ANSWER plain passes. Besides, a pair may lose OPENING plain
passes once, on a machine, while little is known of it. So over any text

    time <= (1 + SHARE) * plain time + ANSWER plain passes an answer + OPENING once + what surprised the estimates,

and readings of prompts that did not pay back (see `asking`). What one answer saved is no reason to lose it in the next.
"""

from __future__ import annotations

SHARE = 0.008
"""Of plain decoding's time, what an answer may lose (issue 45)."""
ANSWER = 1.0
"""Plain passes that it may lose besides (issue 45)."""
OPENING = 12.0
"""Plain passes that a pair may lose once on a machine (issue 45: at most 12)."""


class Budget:
    """What may still be lost, in plain passes."""

    def __init__(self, opening: float = OPENING) -> None:
        """`opening`: what is left of OPENING, which is kept on disk."""
        self.opening = min(OPENING, max(0.0, opening))
        self.passes = self.opening + ANSWER
        """That may be lost now."""

    @property
    def left(self) -> float:
        """Of OPENING."""
        return min(self.opening, max(0.0, self.passes))

    def begin(self) -> None:
        """An answer begins: what the last one lost beyond its own is gone for good."""
        self.opening = self.left
        self.passes = self.opening + ANSWER

    def book(self, plain: float, spent: float) -> None:
        """A pass took `spent` for what plain decoding would have needed `plain` for, both in plain passes."""
        self.passes += (1.0 + SHARE) * plain - spent

    def write_off(self, passes: float) -> None:
        """A reading was not paid back."""
        self.passes -= passes
