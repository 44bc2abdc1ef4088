"""Figures of many answers added up: what the stats screen shows. Names and formulas are the glossary's.

Input are the stats that were stored with answers (`RequestStats.as_dict()`), which may be old, partial or an
endpoint's: a number that is missing counts as 0, and what is no number is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.stats import RequestStats
from localspec.tui.pages.passes import Pass


@dataclass(slots=True)
class Figures(RequestStats):
    """The counters of many answers, added up. Plain and compared seconds are of answers whose plain time is known."""

    answers: int = 0
    inexact: int = 0
    """Answers with a pass that was not exact."""
    rates: list[float] = field(default_factory=list)
    """Tokens/s, answer by answer."""
    speedups: list[float] = field(default_factory=list)
    """Estimated speedup, of each answer that knows it."""

    @classmethod
    def of(cls, stats: Iterable[Mapping[str, Any]]) -> Figures:
        """The sum of stored stats; answers without a token are left out."""
        found = cls()
        for one in stats:
            found.add(one)
        return found

    def add(self, stats: Mapping[str, Any]) -> None:
        """Counts one answer."""
        generated = int(_number(stats, "generated_tokens"))
        if generated <= 0:
            return
        self.answers += 1
        self.generated += generated
        for name in ("passes", "draft_passes", "drafted", "accepted"):
            setattr(self, name, getattr(self, name) + int(_number(stats, name)))
        for name in ("draft_seconds", "verify_seconds", "host_seconds", "prefill_seconds"):
            setattr(self, name, getattr(self, name) + _number(stats, name))
        positions = stats.get("accepted_per_position")
        for depth, count in enumerate(positions if isinstance(positions, list) else ()):
            if depth == len(self.accepted_per_position):
                self.accepted_per_position.append(0)
            self.accepted_per_position[depth] += count if isinstance(count, int) else 0
        for name in ("accepted_by_drafter", "drafted_by_drafter"):
            counts = stats.get(name)
            known = counts.items() if isinstance(counts, Mapping) else ()
            getattr(self, name).update({key: count for key, count in known if isinstance(count, int)})
        self.inexact += stats.get("exact") is False
        self._compare(stats)

    def _compare(self, stats: Mapping[str, Any]) -> None:
        plain = _number(stats, "plain_seconds")
        spent = _number(stats, "compared_seconds")
        if not spent:  # of an older version
            spent = sum(_number(stats, f"{part}_seconds") for part in ("draft", "verify", "host"))
        if rate := _number(stats, "tokens_per_second"):
            self.rates.append(rate)
        if plain > 0 and spent > 0:
            self.plain_seconds += plain
            self.compared_seconds += spent
            self.speedups.append(plain / spent)

    @property
    def saved_seconds(self) -> float:
        """Against plain decoding, as estimated; below 0 where speculation lost."""
        return self.plain_seconds - self.compared_seconds


@dataclass(frozen=True, slots=True)
class Position:
    """What became of guesses at one position of the draft."""

    depth: int
    """1 = first."""
    drafted: int
    """Passes whose draft had a guess there."""
    accepted: int

    @property
    def rate(self) -> float:
        """Share of them that was accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


def positions(passes: Iterable[Pass]) -> list[Position]:
    """Acceptance by position in the draft, from passes; a tree counts once for each position it reaches."""
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for one in passes:
        drafted.update({guess.depth for guess in one.guesses})
        accepted.update({guess.depth for guess in one.guesses if guess.accepted})
    return [Position(depth, drafted[depth], accepted[depth]) for depth in sorted(drafted)]


def _number(stats: Mapping[str, Any], name: str) -> float:
    value = stats.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
