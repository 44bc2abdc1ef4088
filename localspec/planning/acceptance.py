"""How likely guesses are to be accepted, and what drafts are worth by it; in plain Python.

A drafter's confidence is any monotone score: a probability below 1, or the length of a match from 1 on. Each range of
scores has a cell with the rate of guesses that were right; so has each level of a draft, for what can be expected of
a drafter before it is asked. Cells are a `Table`, remembered across runs. A `Tracker` is one request's view of it:
contents differ, so it adds a shift in log-odds that follows the request's own hits and misses.

Under *coupled* a guess is accepted if and only if it is the token that is emitted there. So drafts are scored whether
they were sent or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.interfaces import EMPTY_DRAFT, HIGHEST_PROBABILITY, Draft, Price

MOST_NODES = 64
"""Most nodes of a draft."""
LEARNING_RATE = 0.1
"""Share of the difference by which one sample moves a usual value."""
CONVINCING_STREAK = 3
"""Number of equal events in a row that are taken for a change, not for an accident."""


def moved(usual: float, sample: float) -> float:
    """The usual value after one more sample."""
    return usual + LEARNING_RATE * (sample - usual)


class Usual:
    """Usual seconds of something short. The first samples run cold and are left out; a stall counts in part."""

    def __init__(self) -> None:
        self.seconds, self._samples = 0.0, -CONVINCING_STREAK

    def add(self, seconds: float) -> None:
        self._samples += 1
        if self._samples > 0:
            limited = min(seconds, CONVINCING_STREAK * self.seconds) if self.seconds else seconds
            self.seconds += max(LEARNING_RATE, 1.0 / self._samples) * (limited - self.seconds)


PROBABILITY_CELLS = 10
"""Number of cells for confidences below 1, which are probabilities."""
CONFIDENCE_CELLS = 26
"""Number of cells for all confidences: PROBABILITY_CELLS, then one for each length of a match; the last is open."""
LEVEL_CELLS = 8
"""Number of cells for levels of a draft; deeper levels share the last."""
MOST_TRIALS = 400.0
"""Most trials that a cell counts as: older ones fade."""
PRIOR_TRIALS = 6.0
"""Number of trials that a first estimate counts as."""
PRIOR_ACCEPTANCE = 0.6
"""First estimate of the acceptance of a guess whose confidence is no probability: a level, or a match of any length."""
SHIFT_VARIANCE = 0.5
"""Variance of acceptance between requests, in squared log-odds."""
SHIFT_DRIFT = 0.0005
"""Variance, in squared log-odds, that every guess adds to a request's shift, since contents change."""


@dataclass(slots=True)
class Table:
    """Acceptance of one drafter's guesses in all requests: a rate by cell, and the number of trials it is worth."""

    rates: list[float] = field(
        default_factory=lambda: [
            *((cell + 0.5) / PROBABILITY_CELLS for cell in range(PROBABILITY_CELLS)),
            *[PRIOR_ACCEPTANCE] * (CONFIDENCE_CELLS + LEVEL_CELLS - PROBABILITY_CELLS),
        ]
    )
    """A probability begins as its own rate, all others at the first estimate."""
    trials: list[float] = field(default_factory=lambda: [PRIOR_TRIALS] * (CONFIDENCE_CELLS + LEVEL_CELLS))
    breadth: float = 1.0
    """Nodes per level of a draft, 1 for chains."""

    @property
    def scored(self) -> float:
        """Number of scored guesses of the first level, older ones faded."""
        return self.trials[CONFIDENCE_CELLS] - PRIOR_TRIALS

    @property
    def first_rate(self) -> float:
        """Share of right guesses of the first level; after few trials an estimate."""
        return self.rates[CONFIDENCE_CELLS]

    @classmethod
    def from_json(cls, data: Any) -> Table:
        """The table that `dataclasses.asdict` and json.dump have stored. Raises ValueError, TypeError, KeyError: it is
        something else."""
        rates, trials = [float(one) for one in data["rates"]], [float(one) for one in data["trials"]]
        sound = all(0.0 <= one <= 1.0 for one in rates) and all(1.0 <= one <= MOST_TRIALS for one in trials)
        found = cls(rates, trials, float(data["breadth"]))
        if not (len(rates) == len(trials) == len(cls().rates) and sound and 1.0 <= found.breadth <= MOST_NODES):
            raise ValueError("not a table of acceptance")
        return found


@dataclass(slots=True, eq=False)
class Tracker:
    """A table, shifted by what one request has shown."""

    table: Table
    shift: list[float] = field(default_factory=lambda: [0.0, SHIFT_VARIANCE, 0.0, SHIFT_VARIANCE])
    """In log-odds: mean and variance for nodes whose confidence is known, then those for levels of a draft that is not
    drawn yet."""

    def probability(self, confidence: float) -> float:
        """Probability that a node of this confidence is accepted if its parent is."""
        return shifted(self.table.rates[cell_of(confidence)], math.exp(self.shift[0]))

    def typical(self, levels: int, optimism: float = 0.0) -> list[float]:
        """By level, the probability that a node of it is accepted if its parent is, before the draft is drawn; raised
        by `optimism` standard errors."""
        odds, found = math.exp(self.shift[2]), list[float]()
        for cell in range(CONFIDENCE_CELLS, CONFIDENCE_CELLS + levels):
            cell = min(cell, CONFIDENCE_CELLS + LEVEL_CELLS - 1)
            chance, trials = self.table.rates[cell], self.table.trials[cell]
            raised = min(HIGHEST_PROBABILITY, chance + optimism * math.sqrt(chance * (1.0 - chance) / trials))
            found.append(shifted(raised, odds))
        return found

    def count(self, cell: int, first: int, hit: bool) -> None:
        """Learns from one trial: the shift from `shift[first]` on by a Kalman filter (logistic likelihood, first
        order), the cell by a mean."""
        shift, table, usual = self.shift, self.table, self.table.rates[cell]
        value, variance = shift[first], shift[first + 1]
        expected = shifted(usual, math.exp(value))
        information = expected * (1.0 - expected)
        gain = variance / (1.0 + variance * information)
        shift[first] = value + gain * (hit - expected)
        shift[first + 1] = variance + SHIFT_DRIFT - gain * information * variance
        table.trials[cell] = min(MOST_TRIALS, table.trials[cell] + 1.0)
        table.rates[cell] = usual + (hit - usual) / table.trials[cell]

    def fade(self, share: float) -> None:
        """Forgets this share of what was learned of the request, since no guess was scored for a while."""
        for mean in (0, 2):
            self.shift[mean] *= 1.0 - share
            self.shift[mean + 1] += share * (SHIFT_VARIANCE - self.shift[mean + 1])


def cell_of(confidence: float) -> int:
    if confidence < 1.0:
        return int(PROBABILITY_CELLS * confidence) if confidence > 0.0 else 0
    return min(PROBABILITY_CELLS - 1 + int(min(confidence, CONFIDENCE_CELLS)), CONFIDENCE_CELLS - 1)


def shifted(chance: float, odds: float) -> float:
    """The probability after its odds are multiplied by `odds`."""
    raised = chance * odds
    return raised / (raised + 1.0 - chance)


@dataclass(slots=True)
class DraftPrice(Price):
    """Goes on while some longer draft is worth more than the best one that could be sent now.

    With reach[i] = probability that the first i guesses are all accepted (from the confidences so far), a draft of m
    nodes is worth sum(reach[1..m]) - rate * (pass_seconds[m] - pass_seconds[0]) tokens. After level k the guesses to
    come are taken at their typical acceptance, and every further level costs the drafter `level_seconds`. All
    lengths are compared, not the next node alone: after a bad width a good one may follow."""

    rate: float  # tokens that a second must bring (`PlannedPass.rate`)
    pass_seconds: Sequence[float]
    """By nodes sent, 0 included; infinity where no pass of that width may run."""
    level_seconds: float  # seconds that the drafter takes for one more level
    probability: Callable[[float], float]  # from a node's confidence: that it is accepted if its parent is
    typical: Sequence[float]  # by depth - 1, the probability of acceptance before the confidence is known

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
class Candidate:
    """A draft for a request of the pass, or the promise of one that is not drawn yet."""

    place: int
    """Index of the request among those that share the pass."""
    tracker: Tracker
    draft: Draft = EMPTY_DRAFT
    """Empty for a promise."""
    free: bool = True
    """Whether its drafter costs next to nothing."""
    levels: int = 0
    """Levels of a promise; 0 = a drawn draft."""
    breadth: float = 1.0  # nodes a level of a promise
    optimism: float = 0.0
    """Standard errors added to the learned acceptance of a promise."""

    @property
    def confidence(self) -> list[float]:
        """Of each node; 0 where the drafter does not say."""
        found = self.draft.confidence
        return [0.0] * len(self.draft) if found is None else found.tolist()


@dataclass(slots=True)
class DraftChoice:
    """The drafts to send in a pass, and their worth."""

    value: float
    """`gain` less the rate times the extra seconds of the pass, in tokens."""
    nodes: int
    """Most nodes of each draft; 0 = no draft is sent."""
    picks: list[int]
    """For each request, index of the candidate that is sent; -1 = none."""
    gain: float = 0.0
    """Expected number of tokens over those of a pass without drafts."""


def weigh(
    candidates: Sequence[Candidate],
    places: int,
    prices: Sequence[float],
    rate: float,
    floor: float = 0.0,
    only: int = 0,
    again: float = 0.0,
) -> DraftChoice:
    """The drafts, at most one for each of the `places`, and the number of nodes of the highest value, above `floor`.
    `prices` are seconds of the pass by nodes sent, infinity where it may not run; `rate` is what a second must bring
    in tokens. `only` leaves one number of nodes, and `again` is what a node costs that is accepted beside the main
    chain."""
    gains = [_promised(one, len(prices)) if one.levels else _gains(one, again) for one in candidates]
    best = DraftChoice(floor, 0, [-1] * places)
    for nodes in (only,) if only else range(1, min(max(map(len, gains), default=1), len(prices))):
        total, picks = 0.0, [-1] * places
        most = [0.0] * places
        for index, (one, gain) in enumerate(zip(candidates, gains, strict=True)):
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
            best = DraftChoice(value, nodes, picks, total)
    return best


def learn(candidate: Candidate, said: Sequence[int]) -> None:
    """Learns from a draft that was drawn, and from what the target said in its place; of a drafter that costs something
    by level, too."""
    tokens, parents = candidate.draft.tokens.tolist(), candidate.draft.parents.tolist()
    confidence, tracker = candidate.confidence, candidate.tracker
    node = -1
    for level, token in enumerate(said):
        tried = hit = False
        for child in range(node + 1, len(tokens)):
            if parents[child] == node:
                tried, hit = True, tokens[child] == token
                tracker.count(cell_of(confidence[child]), 0, hit)
                if hit:
                    node = child
                    break
        if tried and not candidate.free:
            tracker.count(CONFIDENCE_CELLS + min(level, LEVEL_CELLS - 1), 2, hit)
        if not hit:
            return


def likeliest(candidates: Sequence[Candidate], place: int) -> list[int]:
    """The main chain of the draft for a request whose first guess is most likely; empty = it has none."""
    best, found = 0.0, None
    for one in candidates:
        if one.place == place and len(one.draft):
            chance = one.tracker.probability(0.0 if one.draft.confidence is None else float(one.draft.confidence[0]))
            if chance > best:
                best, found = chance, one.draft
    if found is None:
        return []
    chain, main = list[int](), -1
    for node, (token, parent) in enumerate(zip(found.tokens.tolist(), found.parents.tolist(), strict=True)):
        if parent == main:
            main = node
            chain.append(token)
    return chain


def _gains(one: Candidate, again: float) -> list[float]:
    """By n, expected number of tokens of the first n nodes."""
    n, rates, odds = len(one.draft), one.tracker.table.rates, math.exp(one.tracker.shift[0])
    left = [*[0.0] * n, 1.0]  # per node, and for the root: it is reached, and no child so far was right
    gains, total, main = [0.0], 0.0, -1
    for node, (parent, score) in enumerate(zip(one.draft.parents.tolist(), one.confidence, strict=True)):
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


def _promised(one: Candidate, lengths: int) -> list[float]:
    """By n, expected number of tokens of the first n nodes of a draft that is not drawn yet."""
    by_level, reach = [0.0], 1.0
    for chance in one.tracker.typical(one.levels, one.optimism):
        reach *= chance
        by_level.append(by_level[-1] + reach)
    most = min(lengths, int(one.levels * one.breadth) + 1)
    return [by_level[min(one.levels, int(nodes / one.breadth))] for nodes in range(most)]
