"""What a plan knows of a pair of models on a machine, and goes on learning. Plans are made anew when settings change;
this is handed from one to the next, and kept on disk in part (`runtime.knowledge`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from localspec.planning.acceptance import Table
from localspec.planning.costs import DraftCosts, PassCosts

FIRST_ANSWER_TOKENS = 200.0
"""Expected tokens of an answer before any answer ended: those of a usual chat."""
PACE_KEPT_SHARE = 0.98
"""Share of the pace's counts that is kept from one pass to the next."""
PACE_PRIOR_PASSES, HIGHEST_PRIOR_PACE = 6.0, 1.25
"""When a request begins: passes that the pace of earlier requests counts as, and its limit in tokens a plain pass.
A pace that the new request cannot reach would rule out drafts that pay; a pace that is too low costs little."""
READING_ALLOWANCE = 12.0
"""Plain passes that readings by little known drafters may cost besides the budget, once in a run: a drafter that has
read nothing cannot be judged. A draft model reads 100 tokens in 3 plain passes (tests.planning.worlds)."""


@dataclass(slots=True)
class Pace:
    """Tokens that a slot lately got in the time of a plain pass."""

    tokens: float = 0.0
    """Tokens a slot, older passes faded."""
    passes: float = 0.0
    """Time in plain passes, older passes faded."""

    @property
    def value(self) -> float:
        """Tokens a plain pass; at least 1, the pace of plain decoding."""
        return max(1.0, self.tokens / self.passes) if self.passes else 1.0

    def begin(self) -> None:
        """Limits what the pace of earlier requests counts for the request that begins."""
        kept = min(1.0, PACE_PRIOR_PASSES / self.passes) if self.passes else 1.0
        self.passes *= kept
        self.tokens = min(kept * self.tokens, HIGHEST_PRIOR_PACE * self.passes)

    def book(self, tokens: float, passes: float) -> None:
        """Adds a pass that brought `tokens` a slot in the time of `passes` plain passes."""
        self.tokens = PACE_KEPT_SHARE * self.tokens + tokens
        self.passes = PACE_KEPT_SHARE * self.passes + passes


@dataclass(slots=True)
class Knowledge:
    """What was learned of one pair of models on one machine."""

    costs: PassCosts = field(default_factory=PassCosts)
    """Cost of passes of one slot."""
    draft_costs: dict[str, DraftCosts] = field(default_factory=dict)
    """Cost of each drafter that costs something, by name."""
    acceptance: defaultdict[str, Table] = field(default_factory=lambda: defaultdict(Table))
    """Acceptance of each drafter's guesses, by name."""
    pace: Pace = field(default_factory=Pace)
    answer: float = FIRST_ANSWER_TOKENS
    """Usual number of tokens of an answer."""
    readings: float = READING_ALLOWANCE
    """Plain passes that are left of READING_ALLOWANCE."""
    kept_passes: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Costs of passes that an earlier run learned, for `PassCosts.recall`."""
