"""What a plan knows of a pair of models on a machine, and goes on learning. Plans are made anew when settings change;
this is handed from one to the next, and kept on disk in part (`runtime.knowledge`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.planning.acceptance import Acceptance
from localspec.planning.costs import PassCosts
from localspec.planning.draft_costs import DraftCosts
from localspec.planning.learning import moved

ANSWER = 200.0
"""Tokens of an answer, before any was seen."""
PACE_MEMORY = 0.98
"""Of what is known of the pace, what is left a pass later."""
PACE_BEFORE, PACE_MOST = 6.0, 1.25
"""When a request begins: passes that earlier requests' pace is worth, and most tokens a plain pass that it counts as.
A pace that this request cannot reach would rule out drafts that pay; one that is too low costs little."""


READINGS = 12.0
"""Plain passes that readings may cost besides the budget, once in a run, for drafters of which little is known: without
a reading nothing can be known of them. A draft model's of 100 tokens costs 3 (worlds)."""


@dataclass(slots=True)
class Pace:
    """Tokens a slot in the time of a plain pass, lately."""

    tokens: float = 0.0
    passes: float = 0.0

    @property
    def value(self) -> float:
        """At least 1, what plain decoding brings."""
        return max(1.0, self.tokens / self.passes) if self.passes else 1.0

    def begin(self) -> None:
        """A request begins."""
        kept = min(1.0, PACE_BEFORE / self.passes) if self.passes else 1.0
        self.passes *= kept
        self.tokens = min(kept * self.tokens, PACE_MOST * self.passes)

    def book(self, tokens: float, passes: float) -> None:
        """A pass brought so many tokens a slot in the time of so many plain passes."""
        self.tokens = PACE_MEMORY * self.tokens + tokens
        self.passes = PACE_MEMORY * self.passes + passes


@dataclass(slots=True)
class Knowledge:
    """Of one pair."""

    costs: PassCosts = field(default_factory=PassCosts)
    """Of passes of one slot."""
    draft_costs: dict[str, DraftCosts] = field(default_factory=dict)
    """By drafter."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    pace: Pace = field(default_factory=Pace)
    answer: float = ANSWER
    """Tokens of an answer, usually."""
    readings: float = READINGS
    """What is left of READINGS."""
    kept_passes: dict[int, tuple[float, float]] = field(default_factory=dict)
    """What an earlier run learned of passes, as `PassCosts.recall` takes it."""

    def ended(self, tokens: int) -> None:
        """An answer is over."""
        self.answer = moved(self.answer, tokens)
