"""The promise "never slower": what speculation may lose in an answer.

Plain decoding's time is known (one row a pass), so a loss can be counted. It is counted in plain passes of that moment.
Every pass that drafted or planned books what it really took, drafting and planning included, against what plain
decoding would have needed for its tokens. No draft is sent, and no drafter asked, that could lose more than is left. So

    time of an answer <= (1 + SHARE) * plain time + ANSWER plain passes + what a pass took longer than was feared,

and readings of prompts that did not pay back (see `asking`). Each answer has its own budget. What one saved is no
reason to lose it in the next, and what one lost does not keep the next from drafting.
"""

from __future__ import annotations

SHARE = 0.01
"""Of plain decoding's time, what an answer may lose (issue 57)."""
ANSWER = 2.0
"""Plain passes that it may lose besides (issue 57)."""


class Budget:
    """What an answer may still lose, in plain passes."""

    def __init__(self) -> None:
        self.passes = ANSWER

    def book(self, plain: float, spent: float) -> None:
        """A pass took `spent` for what plain decoding would have needed `plain` for, both in plain passes."""
        self.passes += (1.0 + SHARE) * plain - spent
