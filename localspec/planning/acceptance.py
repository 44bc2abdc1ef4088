"""How likely guesses are to be accepted: learned per drafter, from every guess whose outcome is known.

A drafter's confidence is any monotone score: a probability below 1, or the length of a match from 1 on. Each range of
scores has a cell with the rate of guesses that were right; so has each level of a draft, for what can be expected of
a drafter before it is asked. Cells are a `Table`, remembered across runs. A `Tracker` is one request's view of it:
contents differ, so it adds a shift in log-odds that follows the request's own hits and misses.

Under *coupled* a guess is accepted if and only if it is the token that is emitted there. So drafts are scored whether
they were sent or not (`localspec.planning.weighing`).

Moving averages: a sample moves the usual value by a share of the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from localspec.engine.interfaces import HIGHEST_PROBABILITY
from localspec.planning.fixed import MOST_NODES

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
        """Adds a sample."""
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
        """The table that `dataclasses.asdict` and json.dump have stored.

        Raises:
            ValueError, TypeError, KeyError: it is something else.
        """
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
    """Index of the cell for a confidence."""
    if confidence < 1.0:
        return int(PROBABILITY_CELLS * confidence) if confidence > 0.0 else 0
    return min(PROBABILITY_CELLS - 1 + int(min(confidence, CONFIDENCE_CELLS)), CONFIDENCE_CELLS - 1)


def shifted(chance: float, odds: float) -> float:
    """The probability after its odds are multiplied by `odds`."""
    raised = chance * odds
    return raised / (raised + 1.0 - chance)
