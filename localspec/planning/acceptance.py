"""How likely guesses are to be accepted: learned per drafter, from every guess whose outcome is known.

A drafter's confidence is any monotone score: a probability below 1, or the length of a match from 1 on. Each range of
scores has a cell with the rate of guesses that were right; so has each level of a draft, for what can be expected of
a drafter before it is asked. Cells are a `Table`, remembered across runs. A `Tracker` is one request's view of it:
contents differ, so it adds a shift in log-odds that follows the request's own hits and misses.

Under *coupled* a guess is accepted if and only if it is the token that is emitted there. So drafts are scored whether
they were sent or not (`localspec.planning.weighing`).
"""

from __future__ import annotations

import math
from typing import Any

from localspec.planning.learning import moved
from localspec.planning.weighing import (
    CONFIDENCE_CELLS,
    LEVEL_CELLS,
    MOST_NODES,
    MOST_TRIALS,
    PROBABILITY_CELLS,
    Odds,
    cell_of,
    shifted,
)

PRIOR_TRIALS = 6.0
"""Number of trials that a first estimate counts as."""
PRIOR_ACCEPTANCE = 0.6
"""First estimate of the acceptance of a guess whose confidence is no probability: a level, or a match of any length."""
SHIFT_VARIANCE = 0.5
"""Variance of acceptance between requests, in squared log-odds."""


class Table:
    """Acceptance of one drafter's guesses in all requests."""

    def __init__(self, breadth: float = 1.0) -> None:
        """`breadth`: nodes per level of a draft, 1 for chains. A probability begins as its own rate, other cells at
        PRIOR_ACCEPTANCE."""
        tenths = [(cell + 0.5) / PROBABILITY_CELLS for cell in range(PROBABILITY_CELLS)]
        self.rates = tenths + [PRIOR_ACCEPTANCE] * (CONFIDENCE_CELLS + LEVEL_CELLS - PROBABILITY_CELLS)
        self.trials = [PRIOR_TRIALS] * len(self.rates)
        self.breadth = breadth

    @property
    def scored(self) -> float:
        """Number of scored guesses of the first level, older ones faded."""
        return self.trials[CONFIDENCE_CELLS] - PRIOR_TRIALS

    @property
    def first_rate(self) -> float:
        """Share of right guesses of the first level; after few trials an estimate."""
        return self.rates[CONFIDENCE_CELLS]

    def saw_breadth(self, nodes_per_level: float) -> None:
        """Learns the breadth from a draft with `nodes_per_level` nodes a level."""
        self.breadth = moved(self.breadth, nodes_per_level)

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {"rates": self.rates, "trials": self.trials, "breadth": self.breadth}

    @classmethod
    def from_json(cls, data: Any) -> Table:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: not what `to_json` makes.
        """
        found = cls(float(data["breadth"]))
        rates, trials = [float(one) for one in data["rates"]], [float(one) for one in data["trials"]]
        sound = all(0.0 <= one <= 1.0 for one in rates) and all(1.0 <= one <= MOST_TRIALS for one in trials)
        if not (len(rates) == len(trials) == len(found.rates) and sound and 1.0 <= found.breadth <= MOST_NODES):
            raise ValueError("not a table of acceptance")
        found.rates, found.trials = rates, trials
        return found


class Tracker:
    """A table, shifted by what one request has shown."""

    __slots__ = ("odds", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.odds = Odds(table.rates, table.trials, [0.0, SHIFT_VARIANCE, 0.0, SHIFT_VARIANCE])

    def probability(self, confidence: float) -> float:
        """Probability that a node of this confidence is accepted if its parent is."""
        return shifted(self.table.rates[cell_of(confidence)], math.exp(self.odds.shift[0]))

    def typical(self, levels: int) -> list[float]:
        """By level, the probability that a node of it is accepted if its parent is, before the draft is drawn."""
        odds, rates = math.exp(self.odds.shift[2]), self.table.rates[CONFIDENCE_CELLS:]
        return [shifted(rates[min(level, LEVEL_CELLS - 1)], odds) for level in range(levels)]

    def fade(self, share: float) -> None:
        """Forgets this share of what was learned of the request, since no guess was scored for a while."""
        shift = self.odds.shift
        for mean in (0, 2):
            shift[mean] *= 1.0 - share
            shift[mean + 1] += share * (SHIFT_VARIANCE - shift[mean + 1])


class Acceptance:
    """Tables of all drafters of one target."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def tracker(self, drafter: str) -> Tracker:
        """A new tracker for a request."""
        if drafter not in self._tables:
            self._tables[drafter] = Table()
        return Tracker(self._tables[drafter])

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {drafter: table.to_json() for drafter, table in self._tables.items()}

    @classmethod
    def from_json(cls, data: Any) -> Acceptance:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        found = cls()
        found._tables = {str(drafter): Table.from_json(table) for drafter, table in data.items()}
        return found
