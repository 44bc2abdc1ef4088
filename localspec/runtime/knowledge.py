"""What plans know (`planning.knowledge`), kept between runs.

Two small files in the cache folder: acceptance for each pair of files, costs for each target, machine and
configuration. One that is missing, damaged or another's is as if there were none.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.llama import probe as probes
from localspec.planning.acceptance import Acceptance
from localspec.planning.budget import Budget
from localspec.planning.costs import DraftCosts, PassCosts, measured_from_json
from localspec.planning.knowledge import Knowledge

_FORMAT = 2
"""Files of other formats are not looked for."""


@dataclass(frozen=True, slots=True)
class Store:
    """The two files."""

    directory: Path
    pair: dict[str, Any]
    """Facts that acceptance depends on."""
    machine: dict[str, Any]
    """Facts that costs depend on."""

    def read(self) -> Knowledge:
        """What is there."""
        acceptance, costs = self._load("acceptance", self.pair), self._load("costs", self.machine)
        found = Knowledge()
        try:
            if acceptance is not None:
                found.acceptance = Acceptance.from_json(acceptance)
            if costs is not None:
                found.budget = Budget(float(costs["budget"]))
                found.costs = PassCosts(measured_from_json(costs["passes"]))
                found.draft_costs = {str(name): DraftCosts.from_json(one) for name, one in costs["drafts"].items()}
        except probes.DAMAGE:
            return Knowledge()
        return found

    def write(self, knowledge: Knowledge) -> None:
        """Both files, each whole or not at all; a full or read-only disk is no error."""
        self._save("acceptance", self.pair, knowledge.acceptance.to_json())
        costs = {
            "passes": knowledge.costs.measured(),
            "drafts": {name: one.to_json() for name, one in knowledge.draft_costs.items() if one.timed},
            "budget": knowledge.budget.left,
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
