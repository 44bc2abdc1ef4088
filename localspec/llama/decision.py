"""What `choice` decided for one model on one machine, kept so that every later start decides the same.

Costs measured at another hour differ, and so would what is chosen from them, and with it the bits of a text. So not
the measurements decide at the next start but the decision itself. What must not change a text (slots, trees, draft
lengths) is no part of its key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.llama import probe as probes
from localspec.llama.configuration import CACHES, CacheFormat, Configuration, Kernels
from localspec.llama.contention import cpus
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings

_FORMAT = 3
STARTS = 3
"""That may run out of time before what they chose stands."""
_BUSY_START = 0.25
"""What one counts beside other programs that want the CPUs: it says little about the next one, but not on every start
may be waited for a machine that is never quiet."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A configuration, and what was known about it when it was chosen."""

    configuration: Configuration
    exact: bool
    why: str
    probe: Probe
    unfinished: float = 0
    """Starts that had no time to examine everything that mattered, or no machine of their own, see `start_weight`;
    0 = nothing was left."""

    @property
    def stands(self) -> bool:
        """Whether later starts do the same; else they look again."""
        return self.unfinished == 0 or self.unfinished >= STARTS

    def counted(self, before: Decision | None, unfinished: bool = False) -> Decision:
        """With this start counted.

        An exact one is proven wherever it was found. Costs taken on a busy machine say nothing about the next start.

        Args:
            before: what the last start left, if it does not stand.
            unfinished: there was no time to examine everything that mattered.
        """
        if self.exact or not (unfinished or cpus.asleep):
            return self
        return replace(self, unfinished=(0 if before is None else before.unfinished) + start_weight())

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        return {
            "kernels": self.configuration.kernels,
            "cache": self.configuration.cache.name,
            "exact": self.exact,
            "why": self.why,
            "probe": self.probe.to_json(),
            "unfinished": self.unfinished,
        }

    @classmethod
    def from_json(cls, data: Any) -> Decision:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError, ArithmeticError: not what `to_json` makes.
        """
        kernels, cache, exact, why = (data[name] for name in ("kernels", "cache", "exact", "why"))
        if not isinstance(exact, bool):
            raise TypeError("not a decision")
        probe, unfinished = Probe.from_json(data["probe"]), float(data["unfinished"])
        decision = cls(Configuration.named(kernels, cache), exact, str(why), probe, unfinished)
        if exact and decision.probe.exact is None:
            raise ValueError("an exact configuration has exact widths")
        return decision


def start_weight() -> float:
    """What this start counts among `STARTS`."""
    return _BUSY_START if cpus.asleep else 1.0


def decision_key(
    path: Path,
    settings: ContextSettings,
    mode: str,
    kernels: Sequence[Kernels],
    gpu_layers: int = 0,
    device: str | None = None,
    caches: Sequence[CacheFormat] = CACHES,
) -> str:
    """Name of a decision's file.

    Args:
        path: the model.
        settings: of the context; slots, leaves and cache types do not count.
        mode: what is decided: "auto", "strict", "off" or "draft".
        kernels: those that were considered.
        gpu_layers: as in `Model.load`.
        device: as in `Model.load`.
        caches: those that were considered.
    """
    facts = {
        **probes.shared_facts(path, settings, gpu_layers, device),
        "decision": [_FORMAT, mode, [probes.kernels_id(name) for name in kernels]],
        "shape": [settings.n_ctx, settings.grid, settings.offload_kv],
    }
    if tuple(caches) != CACHES:
        facts["caches"] = [cache.name for cache in caches]
    return "decision-" + hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def load(directory: Path | None, key: str) -> Decision | None:
    """A stored decision; None if there is none, or it is damaged or belongs to another key."""
    if directory is None:
        return None
    try:
        data = json.loads((directory / f"{key}.json").read_text("utf-8"))
        return Decision.from_json(data) if data["key"] == key else None
    except probes.DAMAGE:
        return None


def store(directory: Path | None, key: str, decision: Decision) -> None:
    """Writes a decision, whole or not at all; a full or read-only disk is no error."""
    probes.write(directory, key, {"key": key, **decision.to_json()})
