"""What the plan knows when it starts, and what it learned, kept between runs.

Two small files in the cache folder: acceptance for each pair of files, costs for each target, machine and
configuration. One that is missing, damaged or another's is as if there were none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.engine.acceptance import Acceptance
from localspec.engine.costs import DraftCosts, PassCosts
from localspec.engine.guard import OPENING_PASSES, Account
from localspec.engine.habits import Habits
from localspec.llama import probe as probes

_FORMAT = 1


@dataclass(slots=True)
class Knowledge:
    """Handed to every plan of an engine, which refine it in place."""

    costs: PassCosts = field(default_factory=PassCosts)
    draft_costs: dict[str, DraftCosts] = field(default_factory=dict)
    """By drafter."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    account: Account = field(default_factory=Account)
    """What speculation may lose; runs of short answers share one."""
    habits: Habits = field(default_factory=Habits)
    """What requests are like; lives as long as the engine, and not longer: the next one may be for something else."""
    store: Store | None = None
    """Where it is kept; None = nowhere."""

    def save(self) -> None:
        """Writes what was learned; a full or read-only disk is no error."""
        if self.store is not None:
            self.store.write(self)


@dataclass(frozen=True, slots=True)
class Store:
    """The two files."""

    directory: Path
    pair: dict[str, Any]
    """Facts that acceptance depends on."""
    machine: dict[str, Any]
    """Facts that costs depend on."""
    slots: int = 1

    def read(self) -> Knowledge:
        """What is there."""
        knowledge = Knowledge(store=self)
        acceptance = self._load("acceptance", self.pair)
        costs = self._load("costs", self.machine)
        try:
            if acceptance is not None:
                knowledge.acceptance = Acceptance.from_json(acceptance)
            if costs is not None:
                knowledge.account.opening = max(0.0, min(OPENING_PASSES, float(costs["balance"])))
                knowledge.costs = PassCosts(PassCosts.measured_from_json(costs["passes"]))
                knowledge.draft_costs = {
                    str(name): DraftCosts.from_json(one, self.slots) for name, one in costs["drafts"].items()
                }
        except probes.DAMAGE:
            return Knowledge(store=self)
        return knowledge

    def write(self, knowledge: Knowledge) -> None:
        """Both files, each whole or not at all."""
        drafts = {name: one.to_json() for name, one in knowledge.draft_costs.items() if one.timed}
        self._save("acceptance", self.pair, knowledge.acceptance.to_json())
        costs = {
            "passes": knowledge.costs.to_json(),
            "drafts": drafts,
            "balance": knowledge.account.passes,
        }
        self._save("costs", self.machine, costs)

    def _load(self, kind: str, facts: dict[str, Any]) -> Any:
        key = _key(kind, facts)
        try:
            data = json.loads((self.directory / f"{key}.json").read_text("utf-8"))
            return data["content"] if data["key"] == key else None
        except probes.DAMAGE:
            return None

    def _save(self, kind: str, facts: dict[str, Any], content: Any) -> None:
        key = _key(kind, facts)
        probes.write(self.directory, key, {"key": key, "content": content})


def _key(kind: str, facts: dict[str, Any]) -> str:
    text = json.dumps([_FORMAT, kind, facts], sort_keys=True)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
