"""What plans know (`planning.knowledge`), kept between runs.

Two small files in the cache folder: acceptance for each pair of files, costs for each target, machine and
configuration. One that is missing, damaged or another's is as if there were none. Of passes the ratios are kept, each
with the number of passes that it is worth, which halves with time: they are a beginning and forbid nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localspec.llama.exact import identity as probes
from localspec.planning.acceptance import Table
from localspec.planning.costs import kept_from_json
from localspec.planning.draft_costs import DraftCosts
from localspec.planning.knowledge import Knowledge

_FORMAT = 3
"""Files of other formats are not looked for."""
_HALF_LIFE = 30 * 24 * 3600.0
"""Seconds after which what was learned of passes is worth half as many: a month of updates and dust."""


@dataclass(frozen=True, slots=True)
class Store:
    """The two files."""

    directory: Path
    pair: dict[str, Any]
    """Facts that acceptance depends on."""
    machine: dict[str, Any]
    """Facts that costs depend on."""
    alone: Store | None = None
    """Those of the target without draft model and heads, a beginning: its passes cost the same, and drafters of text
    are right as often."""

    def read(self) -> Knowledge:
        """What is there; of a pair that never ran, what is known of its target."""
        acceptance, costs = self._load("acceptance", self.pair), self._load("costs", self.machine)
        if self.alone is not None:
            acceptance = self.alone._load("acceptance", self.alone.pair) if acceptance is None else acceptance
            costs = self.alone._load("costs", self.alone.machine) if costs is None else costs
        found = Knowledge()
        try:
            if acceptance is not None:
                found.acceptance |= {str(name): Table.from_json(one) for name, one in acceptance.items()}
            if costs is not None:
                fresh = 0.5 ** (max(0.0, time.time() - float(costs["time"])) / _HALF_LIFE)
                passes = kept_from_json(costs["passes"])
                found.kept_passes = {width: (ratio, weight * fresh) for width, (ratio, weight) in passes.items()}
                found.draft_costs = {str(name): DraftCosts.from_json(one) for name, one in costs["drafts"].items()}
        except probes.DAMAGE:
            return Knowledge()
        return found

    def write(self, knowledge: Knowledge) -> None:
        """Both files, each whole or not at all; a full or read-only disk is no error."""
        self._save("acceptance", self.pair, {name: asdict(one) for name, one in knowledge.acceptance.items()})
        costs = {
            "passes": {width: list(one) for width, one in knowledge.costs.kept().items()},
            "drafts": {name: one.to_json() for name, one in knowledge.draft_costs.items() if one.timed},
            "time": time.time(),
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
