"""Drafts to choose from and the choice among them, the same number of nodes for all slots (see `adaptive`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.engine.interfaces import EMPTY_DRAFT, Draft

NEVER = float("-inf")
MARGIN = 0.01
"""Tokens a pass that a draft must promise over none: no switching for nothing."""


@dataclass(slots=True)
class Option:
    """A draft that is there, or one that could be asked for."""

    gains: list[float]
    """Expected tokens by nodes sent, from 0 on."""
    draft: Draft = EMPTY_DRAFT
    free: bool = False

    def gain(self, nodes: int) -> float:
        """Expected tokens in a pass of that many nodes a slot; a shorter draft brings all it has."""
        return self.gains[min(nodes, len(self.gains) - 1)]


@dataclass(slots=True)
class Choice:
    """What to send."""

    value: float
    """Tokens it brings over sending nothing, less lambda times the seconds it takes more."""
    nodes: int
    picks: list[Option | None]
    """Per slot."""

    @property
    def paid(self) -> bool:
        """Whether guessing any of it cost something."""
        return any(pick is not None and not pick.free for pick in self.picks)


def best_choice(
    options: Sequence[Sequence[Option]], prices: Sequence[float | None], rate: float, floor: float = 0.0, only: int = 0
) -> Choice:
    """The number of nodes and each slot's draft that together are worth most.

    Args:
        options: per slot.
        prices: seconds of the pass by nodes a slot sends, from 0 on; None where no such pass may run.
        rate: lambda, tokens/s.
        floor: what a choice must be worth, else nothing is sent.
        only: above 0, nothing but this number of nodes, shorter drafts included.
    """
    best = Choice(floor, 0, [None] * len(options))
    longest = max((len(option.gains) - 1 for one in options for option in one), default=0)
    plain = prices[0] or 0.0
    shorter = only > 0 or len(options) > 1
    for nodes in (only,) if only else range(1, min(longest, len(prices) - 1) + 1):
        price = prices[nodes]
        if price is None:
            continue
        total = 0.0
        picks: list[Option | None] = []
        for one in options:
            pick, most = None, 0.0
            for option in one:
                gain = option.gain(nodes) if shorter or nodes < len(option.gains) else 0.0
                if gain > most:
                    pick, most = option, gain
            picks.append(pick)
            total += most
        value = total - rate * (price - plain)
        if total > 0.0 and value > best.value:
            best = Choice(value, nodes, picks)
    return best


def promised(typical: Sequence[float], breadth: float, limit: int) -> list[float]:
    """Expected tokens by nodes of a draft not yet drawn, from the typical acceptance of each level."""
    levels, reach, total = [0.0], 1.0, 0.0
    for chance in typical:
        reach *= chance
        total += reach
        levels.append(total)
    return [levels[int(nodes / breadth)] for nodes in range(limit + 1)]


def depth_of(draft: Draft) -> int:
    """Levels of a draft."""
    parents = draft.parents.tolist()
    if not parents or parents == list(range(-1, len(parents) - 1)):
        return len(parents)  # a chain
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(depths)


def correct_levels(draft: Draft, said: Sequence[int]) -> tuple[int, bool]:
    """Levels of a draft that were said, and whether no more of it can turn out right."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    node, levels = -1, 0
    for token in said:
        child = next((i for i in range(node + 1, len(tokens)) if parents[i] == node and tokens[i] == token), -1)
        if child < 0:
            return levels, True
        node, levels = child, levels + 1
    return levels, node not in parents
