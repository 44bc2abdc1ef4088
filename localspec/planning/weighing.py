"""Expected tokens of drafts, the choice of the best, and what is learned from its outcome; in plain Python.

A cell is a rate and the number of trials it is worth. Confidences below 1 are probabilities and share ten cells;
from 1 on they are lengths of a match, with a cell for each whole number. Further cells hold, by level, how often
any guess of that level was right. `Odds.shift` moves all of them, in log-odds, for one request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.engine.interfaces import HIGHEST_PROBABILITY
from localspec.types import NO_TOKENS, Float32Array, Tokens

PROBABILITY_CELLS = 10
"""Number of cells for confidences below 1, which are probabilities."""
CONFIDENCE_CELLS = 26
"""Number of cells for all confidences: PROBABILITY_CELLS, then one for each length of a match; the last is open."""
LEVEL_CELLS = 8
"""Number of cells for levels of a draft; deeper levels share the last."""
MOST_TRIALS = 400.0
"""Most trials that a cell counts as: older ones fade."""
SHIFT_DRIFT = 0.0005
"""Variance, in squared log-odds, that every guess adds to a request's shift, since contents change."""
MOST_NODES = 64
"""Most nodes of a draft."""


@dataclass(slots=True, eq=False)
class Odds:
    """Acceptance of one drafter's guesses in one request."""

    rates: list[float]
    """[CONFIDENCE_CELLS + LEVEL_CELLS] of right guesses; shared by the requests of one kind, as the next is."""
    trials: list[float]
    """By cell, number of guesses that the rate is worth."""
    shift: list[float]
    """[4], shift of this request in log-odds: mean and variance for nodes whose confidence is known, then those for
    levels of a draft that is not drawn yet."""


@dataclass(slots=True)
class Option:
    """A draft to weigh, or the promise of one that is not drawn yet."""

    place: int
    """Index of the request among those that share the pass."""
    odds: Odds
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


def learn(options: Sequence[Option], said: Sequence[Sequence[int]], levels: Sequence[bool]) -> None:
    for one, by_level in zip(options, levels, strict=True):
        _learn(one, said[one.place], by_level)


def likeliest(options: Sequence[Option], place: int) -> list[int]:
    """The main chain of the draft for a request whose first guess is most likely; empty = it has none."""
    best, found = 0.0, None
    for one in options:
        if one.place == place and len(one.tokens):
            score = 0.0 if one.confidence is None else float(one.confidence[0])
            chance = shifted(one.odds.rates[cell_of(score)], math.exp(one.odds.shift[0]))
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


def cell_of(confidence: float) -> int:
    """Index of the cell for a confidence."""
    if confidence < 1.0:
        return int(PROBABILITY_CELLS * confidence) if confidence > 0.0 else 0
    return min(PROBABILITY_CELLS - 1 + int(min(confidence, CONFIDENCE_CELLS)), CONFIDENCE_CELLS - 1)


def shifted(chance: float, odds: float) -> float:
    """The probability after its odds are multiplied by `odds`."""
    raised = chance * odds
    return raised / (raised + 1.0 - chance)


def _gains(one: Option, again: float) -> list[float]:
    """By n, expected number of tokens of the first n nodes."""
    n, rates, odds = len(one.tokens), one.odds.rates, math.exp(one.odds.shift[0])
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
    odds = math.exp(one.odds.shift[2])
    by_level, reach = [0.0], 1.0
    for level in range(one.levels):
        cell = CONFIDENCE_CELLS + min(level, LEVEL_CELLS - 1)
        chance, trials = one.odds.rates[cell], one.odds.trials[cell]
        raised = min(HIGHEST_PROBABILITY, chance + one.optimism * math.sqrt(chance * (1.0 - chance) / trials))
        reach *= shifted(raised, odds)
        by_level.append(by_level[-1] + reach)
    most = min(lengths, int(one.levels * one.breadth) + 1)
    return [by_level[min(one.levels, int(nodes / one.breadth))] for nodes in range(most)]


def _learn(one: Option, said: Sequence[int], by_level: bool) -> None:
    tokens, parents = one.tokens.tolist(), one.parents.tolist()
    confidence = [0.0] * len(tokens) if one.confidence is None else one.confidence.tolist()
    node = -1
    for level, token in enumerate(said):
        tried = hit = False
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                tried, hit = True, tokens[child] == token
                _count(one.odds, cell_of(confidence[child]), 0, hit)
                if hit:
                    node = child
                    break
        if tried and by_level:
            _count(one.odds, CONFIDENCE_CELLS + min(level, LEVEL_CELLS - 1), 2, hit)
        if not hit:
            return


def _count(odds: Odds, cell: int, first: int, hit: bool) -> None:
    """Learns from one trial: the shift by a Kalman filter (logistic likelihood, first order), the cell by a mean."""
    shift, usual = odds.shift, odds.rates[cell]
    value, variance = shift[first], shift[first + 1]
    expected = shifted(usual, math.exp(value))
    information = expected * (1.0 - expected)
    gain = variance / (1.0 + variance * information)
    shift[first] = value + gain * (hit - expected)
    shift[first + 1] = variance + SHIFT_DRIFT - gain * information * variance
    odds.trials[cell] = min(MOST_TRIALS, odds.trials[cell] + 1.0)
    odds.rates[cell] = usual + (hit - usual) / odds.trials[cell]
