"""Expected tokens of drafts, the choice of the best, and what is learned from its outcome; in plain Python.

What the next level of a draft must bring, for a drafter that can stop in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import Price
from localspec.planning.acceptance import CONFIDENCE_CELLS, LEVEL_CELLS, Tracker, cell_of, shifted
from localspec.types import NO_TOKENS, Float32Array, Tokens


@dataclass(slots=True)
class DraftPrice(Price):
    """Goes on while some longer draft is worth more than the best one that could be sent now.

    With reach[i] = probability that the first i guesses are all accepted (from the confidences so far), a draft of m
    nodes is worth sum(reach[1..m]) - rate * (pass_seconds[m] - pass_seconds[0]) tokens. After level k the guesses to
    come are taken at their typical acceptance, and every further level costs the drafter `level_seconds`. All
    lengths are compared, not the next node alone: after a bad width a good one may follow.
    """

    rate: float
    """Tokens that a second must bring (`Coming.rate`)."""
    pass_seconds: Sequence[float]
    """By nodes sent, 0 included; infinity where no pass of that width may run."""
    level_seconds: float
    """Seconds that the drafter takes for one more level."""
    probability: Callable[[float], float]
    """From a node's confidence, the probability that it is accepted if its parent is."""
    typical: Sequence[float]
    """By depth - 1, the probability of acceptance before the confidence is known."""

    def pays(self, path: Sequence[float], nodes: int) -> bool:
        prices, rate = self.pass_seconds, self.rate
        plain = prices[0]
        breadth = max(1, nodes // len(path))
        reach, total, best = 1.0, 0.0, 0.0
        for depth, confidence in enumerate(path, 1):
            reach *= self.probability(confidence)
            total += reach
            if depth * breadth < len(prices):
                best = max(best, total - rate * (prices[depth * breadth] - plain))
        drafting = 0.0
        for depth in range(len(path) + 1, min(len(self.typical), (len(prices) - 1) // breadth) + 1):
            reach *= self.typical[depth - 1]
            total += reach
            drafting += self.level_seconds
            if total - rate * (prices[depth * breadth] - plain + drafting) > best:
                return True
        return False


@dataclass(slots=True)
class Option:
    """A draft to weigh, or the promise of one that is not drawn yet."""

    place: int
    """Index of the request among those that share the pass."""
    tracker: Tracker
    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n]; empty for a promise."""
    parents: Tokens = field(default_factory=lambda: NO_TOKENS)
    confidence: Float32Array | None = None
    levels: int = 0
    """Levels of a promise; 0 = a drawn draft."""
    breadth: float = 1.0
    """Nodes a level of a promise."""
    optimism: float = 0.0
    """Standard errors added to the learned acceptance of a promise."""


@dataclass(slots=True)
class Choice:
    """The drafts to send in a pass, and their worth."""

    value: float
    """`gain` less the rate times the extra seconds of the pass, in tokens."""
    nodes: int
    """Most nodes of each draft; 0 = no draft is sent."""
    picks: list[int]
    """For each request, index of the option that is sent; -1 = none."""
    gain: float = 0.0
    """Expected number of tokens over those of a pass without drafts."""


def weigh(
    options: Sequence[Option],
    places: int,
    prices: Sequence[float],
    rate: float,
    floor: float = 0.0,
    only: int = 0,
    again: float = 0.0,
) -> Choice:
    gains = [_promised(one, len(prices)) if one.levels else _gains(one, again) for one in options]
    best = Choice(floor, 0, [-1] * places)
    for nodes in (only,) if only else range(1, min(max(map(len, gains), default=1), len(prices))):
        total, picks = 0.0, [-1] * places
        most = [0.0] * places
        for index, (one, gain) in enumerate(zip(options, gains, strict=True)):
            if nodes < len(gain):
                brought = gain[nodes]
            elif only or places > 1:
                brought = gain[-1]
            else:
                continue
            if brought > most[one.place]:
                most[one.place], picks[one.place] = brought, index
        for brought in most:
            total += brought
        value = total - rate * (prices[nodes] - prices[0])
        if total > 0.0 and value > best.value:
            best = Choice(value, nodes, picks, total)
    return best


def learn(option: Option, said: Sequence[int], by_level: bool) -> None:
    """Learns from a draft that was drawn, and from what the target said in its place."""
    tokens, parents = option.tokens.tolist(), option.parents.tolist()
    confidence = [0.0] * len(tokens) if option.confidence is None else option.confidence.tolist()
    node = -1
    for level, token in enumerate(said):
        tried = hit = False
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                tried, hit = True, tokens[child] == token
                option.tracker.count(cell_of(confidence[child]), 0, hit)
                if hit:
                    node = child
                    break
        if tried and by_level:
            option.tracker.count(CONFIDENCE_CELLS + min(level, LEVEL_CELLS - 1), 2, hit)
        if not hit:
            return


def likeliest(options: Sequence[Option], place: int) -> list[int]:
    """The main chain of the draft for a request whose first guess is most likely; empty = it has none."""
    best, found = 0.0, None
    for one in options:
        if one.place == place and len(one.tokens):
            chance = one.tracker.probability(0.0 if one.confidence is None else float(one.confidence[0]))
            if chance > best:
                best, found = chance, one
    if found is None:
        return []
    chain, main = list[int](), -1
    for node, (token, parent) in enumerate(zip(found.tokens.tolist(), found.parents.tolist(), strict=True)):
        if parent == main:
            main = node
            chain.append(token)
    return chain


def _gains(one: Option, again: float) -> list[float]:
    """By n, expected number of tokens of the first n nodes."""
    n, rates, odds = len(one.tokens), one.tracker.table.rates, math.exp(one.tracker.shift[0])
    confidence = [0.0] * n if one.confidence is None else one.confidence.tolist()
    left = [*[0.0] * n, 1.0]  # per node, and for the root: it is reached, and no child so far was right
    gains, total, main = [0.0], 0.0, -1
    for node, (parent, score) in enumerate(zip(one.parents.tolist(), confidence, strict=True)):
        chance = shifted(rates[cell_of(score)], odds) * left[parent]
        left[parent] -= chance
        left[node] = chance
        if parent == main:
            main = node
            total += chance
        else:  # what is accepted beside the main chain is decoded again
            total += chance * (1.0 - again)
        gains.append(total)
    return gains


def _promised(one: Option, lengths: int) -> list[float]:
    """By n, expected number of tokens of the first n nodes of a draft that is not drawn yet."""
    by_level, reach = [0.0], 1.0
    for chance in one.tracker.typical(one.levels, one.optimism):
        reach *= chance
        by_level.append(by_level[-1] + reach)
    most = min(lengths, int(one.levels * one.breadth) + 1)
    return [by_level[min(one.levels, int(nodes / one.breadth))] for nodes in range(most)]
