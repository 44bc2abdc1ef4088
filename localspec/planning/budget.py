"""The promise "never slower": what speculation may lose in an answer.

Plain decoding's time is known (one row a pass), so a loss can be counted. It is counted in plain passes of that moment.
Every pass that drafted or planned books what it really took, drafting and planning included, against what plain
decoding would have needed for its tokens. No draft is sent, and no drafter asked, that could lose more than is left. So

    time of an answer <= (1 + LOSS_SHARE) * plain time + LOSS_PASSES plain passes + seconds of passes over the feared,

and readings of prompts that did not pay back (see `asking`). Each answer has its own budget: neither savings nor
losses of one answer count in the next.
"""

from __future__ import annotations

LOSS_SHARE = 0.01
"""Share of plain decoding's time that an answer may lose (issue 57)."""
LOSS_PASSES = 2.0
"""Plain passes that an answer may lose besides LOSS_SHARE (issue 57)."""


class Budget:
    """What an answer may still lose, in plain passes."""

    def __init__(self) -> None:
        self.passes = LOSS_PASSES

    def book(self, plain: float, spent: float) -> None:
        """Books a pass that took `spent` for tokens that take plain decoding `plain`; both in plain passes."""
        self.passes += (1.0 + LOSS_SHARE) * plain - spent
