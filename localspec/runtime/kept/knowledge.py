"""What plans know (`planning.costs.Knowledge`), kept between runs.

Two facts: acceptance for each pair of files, costs for each target, machine and configuration. Of passes the ratios are
kept, each with the number of passes that it is worth, which halves with time: they are a beginning and forbid nothing.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from localspec.kept import Facts
from localspec.planning.acceptance import Table
from localspec.planning.costs import DraftCosts, Knowledge, kept_from_json

_HALF_LIFE = 30 * 24 * 3600.0
"""Seconds after which what was learned of passes is worth half as many: a month of updates and dust."""


@dataclass(frozen=True, slots=True)
class Store:
    """The two facts."""

    facts: Facts
    pair: dict[str, Any]
    """What acceptance depends on."""
    machine: dict[str, Any]
    """What costs depend on."""
    alone: Store | None = None
    """Those of the target without draft model and heads, a beginning: its passes cost the same, and drafters of text
    are right as often."""

    def read(self) -> Knowledge:
        """What is there; of a pair that never ran, what is known of its target."""
        found = Knowledge() if self.alone is None else self.alone.read()
        acceptance = self.facts.read("acceptance", self.pair, _tables)
        costs = self.facts.read("costs", self.machine, _costs)
        if acceptance is not None:
            found.acceptance |= acceptance
        if costs is not None:
            found.kept_passes, found.draft_costs = costs
        return found

    def write(self, knowledge: Knowledge) -> None:
        """Keeps both; a full or read-only disk is no error."""
        self.facts.write("acceptance", self.pair, {name: asdict(one) for name, one in knowledge.acceptance.items()})
        costs = {
            "passes": {width: list(one) for width, one in knowledge.costs.kept().items()},
            "drafts": {name: one.to_json() for name, one in knowledge.draft_costs.items() if one.timed},
            "time": time.time(),
        }
        self.facts.write("costs", self.machine, costs)


def _tables(data: Any) -> dict[str, Table]:
    return {str(name): Table.from_json(one) for name, one in data.items()}


def _costs(data: Any) -> tuple[dict[int, tuple[float, float]], dict[str, DraftCosts]]:
    """Of passes and of drafts."""
    fresh = 0.5 ** (max(0.0, time.time() - float(data["time"])) / _HALF_LIFE)
    passes = {width: (ratio, weight * fresh) for width, (ratio, weight) in kept_from_json(data["passes"]).items()}
    return passes, {str(name): DraftCosts.from_json(one) for name, one in data["drafts"].items()}
