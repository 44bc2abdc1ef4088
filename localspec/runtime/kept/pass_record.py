"""What a target's passes took while answering, by where it runs: known at the next start before anything is loaded.

It decides whether `auto` fills passes on a GPU up to one width (`llama.choice`), and whether an integrated GPU or the
CPU serves (`placement.measured`).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from localspec import kept
from localspec.config import EngineSettings
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.llama.cache.constant_width import GPU_WIDTH
from localspec.llama.exact.identity import shared_facts
from localspec.llama.library.settings import ContextSettings
from localspec.planning.costs import PassCosts

_COMPARED_LENGTH = 512
"""Tokens in the cache at which passes are compared: those of a short chat."""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Of a target at one place."""

    plain: float
    """Seconds of a pass of one row."""
    padded: float | None
    """How many times as long one of `GPU_WIDTH` rows takes; None = none was timed."""


def read(settings: EngineSettings, layers: int, device: str | None, spread: Spread = BY_LAYER) -> PassRecord | None:
    """What passes took with so many layers on these devices; None = nothing is known, or it cannot be read."""
    return kept.facts().read("passes", _key(settings, layers, device, spread), _record)


def padded(settings: EngineSettings, layers: int, spread: Spread) -> float | None:
    """`PassRecord.padded` of a target with so many layers on the GPUs that the settings name; None = not known."""
    known = read(settings, layers, settings.device, spread) if layers else None
    return None if known is None else known.padded


def write(settings: EngineSettings, costs: PassCosts, layers: int, device: str | None, spread: Spread) -> None:
    """Keeps what was timed, if a plain pass was; a full or read-only disk is no error.

    Args:
        settings: of the engine.
        costs: of passes with as many rows as count.
        layers, device, spread: where its target is.
    """
    if 1 not in costs.timed:
        return
    plain, wide = costs.seconds(1, _COMPARED_LENGTH), costs.widest >= GPU_WIDTH and GPU_WIDTH in costs.timed
    found = PassRecord(plain, costs.seconds(GPU_WIDTH, _COMPARED_LENGTH) / plain if wide else None)
    kept.facts().write("passes", _key(settings, layers, device, spread), asdict(found))


def _record(data: Any) -> PassRecord:
    found = PassRecord(float(data["plain"]), None if data["padded"] is None else float(data["padded"]))
    if not all(0.0 < one < math.inf for one in (found.plain, 1.0 if found.padded is None else found.padded)):
        raise ValueError("a pass takes some time")
    return found


def _key(settings: EngineSettings, layers: int, device: str | None, spread: Spread) -> dict[str, Any]:
    context = ContextSettings(threads=settings.threads or 0)
    facts = shared_facts(settings.target, context, layers, device, spread)
    return {**facts, "cache": settings.cache, "slots": settings.slots}
