"""A race of plain decoding against speculation: two lanes, a clock each, and whether they say the same.

The engine computes one pass at a time on one thread. Two answers at once would share passes, and neither clock would
mean anything. So the heats are run one after the other, each alone on the engine and with nothing of the other to help
it; then both lanes are shown side by side at the pace each really had. A lane's clock adds up what its passes took
on the engine (drafting, verifying, bookkeeping), so drawing the screen slows neither.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median
from typing import NamedTuple

from localspec.tui.text.passes import Pass


@dataclass(slots=True)
class Lane:
    """One heat."""

    name: str
    """`plain` or `speculative`."""
    passes: list[Pass] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    exact: bool = True
    """No pass of it could have changed the text."""
    over: bool = False
    _ends: list[float] = field(default_factory=list)
    _counts: list[int] = field(default_factory=list)

    def add(self, passes: Iterable[Pass], tokens: Sequence[int]) -> None:
        """What some passes brought."""
        for one in passes:
            self.passes.append(one)
            self._ends.append(self.seconds + one.seconds)
            self._counts.append(self.count + len(one.emitted))
        self.tokens += tokens

    @property
    def seconds(self) -> float:
        """Engine time so far, the prompt not counted."""
        return self._ends[-1] if self._ends else 0.0

    @property
    def count(self) -> int:
        """Tokens so far."""
        return self._counts[-1] if self._counts else 0

    def at(self, seconds: float) -> int:
        """Passes that were over by then."""
        return bisect_right(self._ends, seconds)

    def count_at(self, seconds: float) -> int:
        """Tokens that had come by then."""
        done = self.at(seconds)
        return self._counts[done - 1] if done else 0


def likeness(one: Lane, other: Lane) -> str:
    """How far two lanes agree, token by token, in words."""
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.tokens, other.tokens, strict=False)))
    compared, over = min(len(one.tokens), len(other.tokens)), one.over and other.over
    if common < compared or (over and len(one.tokens) != len(other.tokens)):
        exact = one.exact and other.exact
        why = "" if exact else "; passes were not exact here, so rounding may change the text (--exact strict)"
        return f"✗ they differ from token {common + 1} on{why}"
    if over:
        return f"✓ the same {common} tokens"
    return f"{common} of {compared} tokens compared, all the same" if compared else "nothing yet"


class Heat(NamedTuple):
    """The result of a race."""

    plain_seconds: float
    speculative_seconds: float

    @property
    def speedup(self) -> float:
        """Plain decoding's time over speculation's, prompt not counted; 0 = unknown."""
        return self.plain_seconds / self.speculative_seconds if self.speculative_seconds else 0.0


def summary(heats: Sequence[Heat]) -> str:
    """All races so far in a line."""
    if not heats:
        return ""
    if len(heats) == 1:
        return f"speedup {heats[0].speedup:.2f}x, one race; press a for another in the other order"
    speedups = [heat.speedup for heat in heats]
    middle, least, most = median(speedups), min(speedups), max(speedups)
    return f"speedup {middle:.2f}x in the middle of {len(heats)} races, {least:.2f}x to {most:.2f}x"
