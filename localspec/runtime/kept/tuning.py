"""Settings that `localspec tune` found to be faster for a pair on this machine.

The files are known by size and time of change, so they may be moved; the machine by processor, devices, and the builds
of llama.cpp and of our kernels. Where any of them changed, nothing is applied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from localspec import kept
from localspec.config import EngineSettings
from localspec.llama.exact import wide
from localspec.llama.exact.wide import cpu_name
from localspec.llama.library import lib
from localspec.machine import default_threads
from localspec.runtime.placement import on_gpu

_CONFIGURATION = frozenset({"kernels", "cache"})  # found under one exactness, these may be wrong under another
_TOGETHER = (_CONFIGURATION, frozenset({"min_ngram", "max_ngram"}))
_DEFAULTS = {field.name: field.default for field in fields(EngineSettings)}


@dataclass(frozen=True, slots=True)
class Tuning:
    settings: dict[str, Any]  # fields of `EngineSettings`; only what differs from the defaults
    gain: float  # speed over the defaults, 1 = none, on prompts that were not searched with ...
    low: float  # ... and its 95 % interval
    high: float
    exact: str  # exactness under which it was found
    when: str  # ISO date
    workload: str  # in words: what was answered

    def applied(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` (arguments of `EngineSettings`) with what it leaves open filled in; explicit settings win. Settings
        that only make sense together stay out together. Kernels and cache format stay out under another exactness,
        where llama.cpp's kernels alone are asked for, and with layers on a GPU; the length of drafts with several
        slots."""
        asked: dict[str, Any] = {**_DEFAULTS, **given}
        out = {name for group in _TOGETHER if not group.isdisjoint(given) for name in group}
        elsewhere = on_gpu(asked["gpu_layers"]) or asked["device"] or asked["rpc"]
        if asked["exact"] != self.exact or elsewhere or not asked["wide"]:
            out |= _CONFIGURATION
        if asked["slots"] > 1:
            out.add("draft_cap")
        return {**{name: value for name, value in self.settings.items() if name not in out}, **given}

    def __str__(self) -> str:
        words = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        gain = f"{self.gain:.2f}x the defaults, {self.low:.2f} to {self.high:.2f}"
        return f"{words} ({gain}; {self.workload}; {self.when})"


def read(target: Path, draft: Path | None) -> Tuning | None:
    """What is stored for this pair on this machine; None if nothing is, or it cannot be used."""

    def made(data: Any) -> Tuning:
        tuning = Tuning(**data)
        EngineSettings(target, draft, **tuning.settings)  # what was edited by hand must be possible, too
        return tuning

    try:
        return kept.facts().read("tuning", _key(target, draft), made)
    except OSError:
        return None


def write(target: Path, draft: Path | None, tuning: Tuning) -> str:
    """Stores it; why it could not be, "" = it was."""
    return kept.facts().write("tuning", _key(target, draft), asdict(tuning))


def forget(target: Path, draft: Path | None) -> bool:
    return kept.facts().remove("tuning", _key(target, draft))


def _key(target: Path, draft: Path | None) -> list[Any]:
    found = [path.stat() for path in (target, draft) if path is not None]
    return [[[one.st_size, one.st_mtime_ns] for one in found], _machine()]


def _machine() -> str:
    """Processor, devices and builds; our kernels by their file, which need not be loaded for it."""
    ours = wide.find_library()
    devices = [one.name + one.description for one in lib.devices() if one.name != wide.DEVICE_NAME]
    kernels = "" if ours is None else hashlib.sha256(ours.read_bytes()).hexdigest()
    facts = [cpu_name(), default_threads(), devices, lib.build_id(), kernels]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
