"""How likely guesses are to be accepted: learned per drafter, from every guess whose outcome is known.

A drafter's confidence is any monotone score: a probability below 1, or the length of a match from 1 on. Each range of
scores has a cell with the rate of guesses that were right; so has each level of a draft, for what can be expected of
a drafter before it is asked. Cells are a `Table`, remembered across runs. A `Tracker` is one request's view of it:
contents differ, so it adds a shift in log-odds that follows the request's own hits and misses.

Under *coupled* a guess is accepted if and only if it is the token that is emitted there. So drafts are scored whether
they were sent or not (`localspec.planning.weighing`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from localspec.planning.learning import moved
from localspec.planning.weighing import LEVELS, MEMORY, MOST_NODES, PROBABILITIES, SCORES, Odds, cell_of, shifted
from localspec.types import Float64Array

PRIOR = 6.0
"""Trials that a first estimate is worth."""
UNKNOWN = 0.6
"""First estimate of the acceptance of a level, and of a match of any length."""
UNSURE = 0.5
"""Variance, in squared log-odds, of how a request differs from others."""


def _first_estimates() -> Float64Array:
    """float64[2, cells]: probabilities as they are said, UNKNOWN else, and the trials they are worth."""
    rates = np.full(SCORES + LEVELS, UNKNOWN)
    rates[:PROBABILITIES] = (np.arange(PROBABILITIES) + 0.5) / PROBABILITIES
    return np.stack([rates, np.full(len(rates), PRIOR)])


class Table:
    """What is known of one drafter."""

    def __init__(self, cells: Float64Array | None = None, breadth: float = 1.0) -> None:
        """
        Args:
            cells: float64[2, SCORES + LEVELS], see `planning.weighing`; None = nothing is known.
            breadth: nodes per level of a draft: 1 for chains.
        """
        self.cells = _first_estimates() if cells is None else cells
        self.breadth = breadth

    @property
    def trials(self) -> float:
        """Guesses of the first level that were scored, older ones faded."""
        return float(self.cells[1, SCORES]) - PRIOR

    @property
    def first_rate(self) -> float:
        """Share of guesses of the first level that were right; of few trials an estimate."""
        return float(self.cells[0, SCORES])

    def saw_breadth(self, nodes_per_level: float) -> None:
        """A draft had so many nodes a level."""
        self.breadth = moved(self.breadth, nodes_per_level)

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {"rates": self.cells[0].tolist(), "trials": self.cells[1].tolist(), "breadth": self.breadth}

    @classmethod
    def from_json(cls, data: Any) -> Table:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError: not what `to_json` makes.
        """
        cells, breadth = np.array([data["rates"], data["trials"]], dtype=np.float64), float(data["breadth"])
        sound = (
            cells.shape == (2, SCORES + LEVELS)
            and bool(((cells[0] >= 0.0) & (cells[0] <= 1.0)).all())
            and bool(((cells[1] >= 1.0) & (cells[1] <= MEMORY)).all())
        )
        if not (sound and 1.0 <= breadth <= MOST_NODES):
            raise ValueError("not a table of acceptance")
        return cls(cells, breadth)


class Tracker:
    """A table as one request sees it."""

    __slots__ = ("odds", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self.odds = Odds(table.cells, np.array([0.0, UNSURE, 0.0, UNSURE]))

    def probability(self, confidence: float) -> float:
        """That a node of that confidence is accepted if its parent is."""
        return shifted(float(self.table.cells[0, cell_of(confidence)]), float(np.exp(self.odds.shift[0])))

    def typical(self, levels: int) -> list[float]:
        """The same for each level of a chain, or for any sibling of a level, before anything is drafted."""
        odds = float(np.exp(self.odds.shift[2]))
        rates = self.table.cells[0, SCORES:].tolist()
        return [shifted(rates[min(level, LEVELS - 1)], odds) for level in range(levels)]

    def fade(self, share: float) -> None:
        """Nothing was heard for a while: this share of what was learned of the request does not hold any more."""
        shift = self.odds.shift
        shift[0::2] *= 1.0 - share
        shift[1::2] += share * (UNSURE - shift[1::2])


class Acceptance:
    """All tables of one target."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def tracker(self, drafter: str) -> Tracker:
        """A fresh view for a request."""
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
