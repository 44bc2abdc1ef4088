"""What drafts are expected to bring, the best of them, and what is learned from it: in plain Python.

A cell is a rate and the number of trials it is worth. Confidences below 1 are probabilities and share ten cells;
from 1 on they are lengths of a match, with a cell for each whole number. Further cells hold, by level, how often
any guess of that level was right. `Odds.shift` moves all of them, in log-odds, for one request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import SURE
from localspec.types import NO_TOKENS, Float32Array, Float64Array, Tokens

PROBABILITIES = 10
"""Cells for confidences below 1 ..."""
SCORES = 26
"""... and these with one for each whole number from 1 on; longer matches share the last."""
LEVELS = 8
"""Cells by level; deeper levels share the last."""
MEMORY = 400.0
"""Trials a cell is worth at most: older ones fade."""
WANDER = 0.0005
"""Squared log-odds that a request's shift may wander with every guess."""
MOST_NODES = 64
"""Of a draft."""


@dataclass(slots=True, eq=False)
class Odds:
    """How often guesses of one drafter are right in one request."""

    cells: Float64Array
    """float64[2, SCORES + LEVELS], rates and trials; shared by the requests of one kind."""
    shift: Float64Array
    """float64[4], of this request: log-odds and their variance for nodes whose confidence is known, then the same for
    levels before anything is drafted."""


@dataclass(slots=True)
class Option:
    """A draft to weigh, or the promise of one that is not drawn yet."""

    place: int
    """Of the request, among those that share the pass."""
    odds: Odds
    tokens: Tokens = field(default_factory=lambda: NO_TOKENS)
    """int32[n]; none for a promise."""
    parents: Tokens = field(default_factory=lambda: NO_TOKENS)
    confidence: Float32Array | None = None
    levels: int = 0
    """Of a promise."""
    breadth: float = 1.0
    """Nodes a level, of a promise."""
    hope: float = 0.0
    """Standard errors that a promise counts as better than known."""


@dataclass(slots=True)
class Choice:
    """What to send."""

    value: float
    """Tokens it brings over sending nothing, less the rate times the seconds it takes more."""
    nodes: int
    """Of every draft, at most; 0 = nothing is sent."""
    picks: list[int]
    """Per place, the option's index; -1 = nothing."""
    gain: float = 0.0
    """Tokens it is expected to bring over sending nothing."""


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


def learn(options: Sequence[Option], said: Sequence[Sequence[int]], levels: Sequence[bool]) -> None:
    for one, by_level in zip(options, levels, strict=True):
        _learn(one, said[one.place], by_level)


def cell_of(confidence: float) -> int:
    """Index of the cell for a confidence."""
    if confidence < 1.0:
        return int(PROBABILITIES * confidence) if confidence > 0.0 else 0
    return min(PROBABILITIES - 1 + int(min(confidence, SCORES)), SCORES - 1)


def shifted(chance: float, odds: float) -> float:
    """A probability whose odds are so many times as good."""
    raised = chance * odds
    return raised / (raised + 1.0 - chance)


def _gains(one: Option, again: float) -> list[float]:
    """Tokens that the first n nodes are expected to bring, by n."""
    n, rates, odds = len(one.tokens), one.odds.cells[0], math.exp(one.odds.shift[0])
    confidence = [0.0] * n if one.confidence is None else one.confidence.tolist()
    left = [*[0.0] * n, 1.0]  # per node, and for the root: it is reached, and no child so far was right
    gains, total, main = [0.0], 0.0, -1
    for node, (parent, score) in enumerate(zip(one.parents.tolist(), confidence, strict=True)):
        chance = shifted(float(rates[cell_of(score)]), odds) * left[parent]
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
    """The same of a draft that is not drawn yet."""
    odds = math.exp(one.odds.shift[2])
    by_level, reach = [0.0], 1.0
    for level in range(one.levels):
        cell = SCORES + min(level, LEVELS - 1)
        chance, trials = float(one.odds.cells[0, cell]), float(one.odds.cells[1, cell])
        hoped = min(SURE, chance + one.hope * math.sqrt(chance * (1.0 - chance) / trials))
        reach *= shifted(hoped, odds)
        by_level.append(by_level[-1] + reach)
    most = min(lengths, int(one.levels * one.breadth) + 1)
    return [by_level[min(one.levels, int(nodes / one.breadth))] for nodes in range(most)]


def _learn(one: Option, said: Sequence[int], by_level: bool) -> None:
    tokens, parents = one.tokens.tolist(), one.parents.tolist()
    confidence = [0.0] * len(tokens) if one.confidence is None else one.confidence.tolist()
    cells, shift, node = one.odds.cells, one.odds.shift, -1
    for level, token in enumerate(said):
        tried = hit = False
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                tried, hit = True, tokens[child] == token
                _count(cells, cell_of(confidence[child]), shift, 0, hit)
                if hit:
                    node = child
                    break
        if tried and by_level:
            _count(cells, SCORES + min(level, LEVELS - 1), shift, 2, hit)
        if not hit:
            return


def _count(cells: Float64Array, cell: int, shift: Float64Array, first: int, hit: bool) -> None:
    """One trial: for the request by a Kalman filter (logistic likelihood, to first order), for all in the cell."""
    usual, value, variance = float(cells[0, cell]), float(shift[first]), float(shift[first + 1])
    expected = shifted(usual, math.exp(value))
    information = expected * (1.0 - expected)
    gain = variance / (1.0 + variance * information)
    shift[first] = value + gain * (hit - expected)
    shift[first + 1] = variance + WANDER - gain * information * variance
    trials = min(MEMORY, float(cells[1, cell]) + 1.0)
    cells[1, cell] = trials
    cells[0, cell] = usual + (hit - usual) / trials
