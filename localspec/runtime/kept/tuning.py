"""Settings that `localspec tune` found to be faster for a pair on this machine, and where they are kept.

One small file per pair and machine in the data folder. The pair is known by the sha256 of its files, so a copy under
another name counts; the machine by processor, devices, and the builds of llama.cpp and of our kernels. Where any of
them changed, nothing is applied: what was fastest there says nothing here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.config import EngineSettings
from localspec.errors import LocalspecError
from localspec.llama.exact import identity as probes
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.model import file_sha256
from localspec.runtime.memory.placement import on_gpu

_VERSION = 1
_CONFIGURATION = frozenset({"kernels", "cache"})
"""Found under one exactness, these may be wrong under another."""
_TOGETHER = (_CONFIGURATION, frozenset({"min_ngram", "max_ngram"}))
_DEFAULTS = {field.name: field.default for field in fields(EngineSettings)}


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found."""

    settings: dict[str, Any]
    """Fields of `EngineSettings`; only what differs from the defaults."""
    gain: float
    """Speed over the defaults, 1 = none, on prompts that were not searched with ..."""
    low: float
    """... and its 95 % interval."""
    high: float
    exact: str
    """Exactness under which it was found."""
    when: str
    """ISO date."""
    workload: str
    """In words: what was answered."""

    def applied(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` (arguments of `EngineSettings`) with what it leaves open filled in; explicit settings win.

        Settings that only make sense together stay out together. Kernels and cache format stay out where another
        exactness is asked for, where llama.cpp's kernels alone are, and with layers on a GPU; the length of drafts with
        several slots, which share a pass.
        """
        asked = {
            name: given.get(name, _DEFAULTS[name]) for name in ("exact", "gpu_layers", "device", "rpc", "wide", "slots")
        }
        out = {name for group in _TOGETHER if not group.isdisjoint(given) for name in group}
        elsewhere = on_gpu(asked["gpu_layers"]) or asked["device"] or asked["rpc"]
        if asked["exact"] != self.exact or elsewhere or not asked["wide"]:
            out |= _CONFIGURATION
        if asked["slots"] > 1:
            out.add("draft_cap")
        return {**{name: value for name, value in self.settings.items() if name not in out}, **given}

    def __str__(self) -> str:
        words = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return (
            f"{words} ({self.gain:.2f}x the defaults, {self.low:.2f} to {self.high:.2f}; {self.workload}; {self.when})"
        )


def read(target: Path, draft: Path | None) -> Tuning | None:
    """What is stored for this pair on this machine; None if nothing is, or it cannot be used."""
    try:
        found = sorted(_folder().glob("*.json"))
        files = _identities(target, draft)
    except OSError:
        return None
    for path in found:
        try:
            data = json.loads(path.read_text("utf-8"))
            if data["version"] == _VERSION and _same_files(data, files) and data["machine"] == _machine():
                tuning = Tuning(**data["tuning"])
                EngineSettings(target, draft, **tuning.settings)  # what was edited by hand must be possible, too
                return tuning
        except (*probes.DAMAGE, LocalspecError):
            continue
    return None


def write(target: Path, draft: Path | None, tuning: Tuning) -> Path:
    """Stores it, whole or not at all; returns where.

    Raises:
        LocalspecError: the folder cannot be written.
    """
    data = {
        "version": _VERSION,
        "files": _identities(target, draft),
        "sha256": _digests(target, draft),
        "machine": _machine(),
        "tuning": asdict(tuning),
    }
    path = _place(target, draft)
    probes.write(path.parent, path.stem, data)
    if read(target, draft) != tuning:
        raise LocalspecError(f"What was found could not be written to {path}.", "Is the disk full or read-only?")
    return path


def forget(target: Path, draft: Path | None) -> bool:
    """Removes what is stored; whether there was anything."""
    try:
        _place(target, draft).unlink()
    except FileNotFoundError:
        return False
    return True


def _folder() -> Path:
    return paths.data_dir() / "tuning"


def _place(target: Path, draft: Path | None) -> Path:
    return _folder() / f"{_digest([_digests(target, draft), _machine()])}.json"


def _same_files(data: Mapping[str, Any], files: list[list[Any]]) -> bool:
    """Whether it is about these files. Whole files are hashed only where those it knows are not where they were."""
    known = data["files"]
    if known == files:
        return True
    if [size for _, size, _ in known] != [size for _, size, _ in files]:
        return False
    return bool(data["sha256"] == [file_sha256(Path(path)) for path, _, _ in files])


def _identities(target: Path, draft: Path | None) -> list[list[Any]]:
    """Path, size and time of change of each file."""
    found = []
    for path in (target, draft):
        if path is not None:
            status = path.stat()
            found.append([str(paths.real(path)), status.st_size, status.st_mtime_ns])
    return found


def _digests(target: Path, draft: Path | None) -> list[str]:
    return [file_sha256(path) for path in (target, draft) if path is not None]


def _machine() -> str:
    """Processor, devices and builds; our kernels by their file, which need not be loaded for it."""
    ours = wide.find_library()
    devices = [one.name + one.description for one in lib.devices() if one.name != wide.DEVICE_NAME]
    kernels = "" if ours is None else hashlib.sha256(ours.read_bytes()).hexdigest()
    return _digest([probes.cpu_name(), lib.default_threads(), devices, lib.build_id(), kernels])


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
