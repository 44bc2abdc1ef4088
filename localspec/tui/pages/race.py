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

    @property
    def tokens_per_second(self) -> float:
        return self.count / self.seconds if self.seconds else 0.0

    def at(self, seconds: float) -> int:
        """Passes that were over by then."""
        return bisect_right(self._ends, seconds)

    def count_at(self, seconds: float) -> int:
        """Tokens that had come by then."""
        done = self.at(seconds)
        return self._counts[done - 1] if done else 0


class Likeness(NamedTuple):
    """How far two lanes agree."""

    common: int
    """Tokens that are the same, from the start."""
    compared: int
    """Tokens that both have."""
    complete: bool
    """Both lanes are over."""
    same_length: bool

    @property
    def forked(self) -> bool:
        """They said different things."""
        return self.common < self.compared or (self.complete and not self.same_length)

    @property
    def equal(self) -> bool:
        """Both are over and say the same."""
        return self.complete and not self.forked

    def sentence(self, exact: bool) -> str:
        """In words; `exact`: no pass could have changed the text."""
        if self.equal:
            return f"✓ the same {self.common} tokens"
        if self.forked:
            why = "" if exact else "; passes were not exact here, so rounding may change the text (--exact strict)"
            return f"✗ they differ from token {self.common + 1} on{why}"
        return f"{self.common} of {self.compared} tokens compared, all the same" if self.compared else "nothing yet"


def likeness(one: Lane, other: Lane) -> Likeness:
    """Compares what two lanes have so far, token by token."""
    pairs = zip(one.tokens, other.tokens, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    compared = min(len(one.tokens), len(other.tokens))
    return Likeness(common, compared, one.over and other.over, len(one.tokens) == len(other.tokens))


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
    speedups = sorted(heat.speedup for heat in heats)
    middle = len(speedups) // 2
    median = speedups[middle] if len(speedups) % 2 else (speedups[middle - 1] + speedups[middle]) / 2
    return f"speedup {median:.2f}x in the middle of {len(heats)} races, {speedups[0]:.2f}x to {speedups[-1]:.2f}x"
