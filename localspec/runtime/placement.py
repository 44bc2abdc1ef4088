"""How many layers of target and draft go to which GPUs.

The numbers that `place` puts in place of `auto` are remembered from start to start. They follow from files, settings,
devices and all their memory (`models.memory.fit.layers`), not from what is free. A machine without a GPU is done at
once: nothing is read, written or said.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec import kept
from localspec.config import PLANNED, EngineSettings, GpuLayers
from localspec.drafters.heads.head import may_predict, shapes
from localspec.errors import UsageError
from localspec.gguf import Header, read_parts
from localspec.gguf.spread import Spread, spread_of
from localspec.llama.exact.wide import CACHE_NAMES, of_file
from localspec.llama.library import devices
from localspec.machine import Place, ram
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings, MemoryPlan
from localspec.runtime import costs
from localspec.runtime.memory import gpus, integrated_gpus, is_software, used_gpus, why_unused

_LOG = logging.getLogger("localspec")
_ASKED = (*PLANNED, "heads", "drafter", "cache", "draft_gpu_layers", "split_mode", "main_gpu")
"""Settings besides the files that `auto` depends on."""


@dataclass(frozen=True, slots=True)
class Placement:
    settings: EngineSettings  # with numbers of layers, and the devices that have them
    chosen: bool = False  # whether layers are on a GPU that the user did not ask for: if it fails, the CPU serves
    key: dict[str, Any] | None = None  # under which it is remembered; None = it is not
    fault: str = ""  # why a GPU is not used although it was to be: what went wrong at an earlier start; "" = nothing


def place(settings: EngineSettings) -> Placement:
    """Decides where the models go. Raises UsageError: layers were asked for, and there is no GPU; or no such main
    GPU."""
    listed = gpus(settings.rpc)
    asked = [value for value in (settings.gpu_layers, settings.draft_gpu_layers) if value not in ("auto", 0)]
    there = alone(_devices(settings.device, listed, bool(asked)), settings.split_mode, settings.main_gpu)
    free = not asked and settings.gpu_layers == "auto" and settings.device is None and settings.draft_device is None
    if free and (found := measured(settings)) is not None:
        faster, words = found
        key, serves = _key(settings, [ram(), *integrated_gpus(listed)]), bool(faster)
        before = kept.facts().read("serves", key, lambda data: bool(data["gpu"]))
        if serves != (bool(there) if before is None else before):
            _LOG.warning("While answering %s: the %s serves from now on.", words, "GPU" if serves else "CPU")
            kept.facts().write("serves", key, {"gpu": serves})
        there = alone(faster, settings.split_mode, settings.main_gpu)
    if not there:
        if asked and settings.device is None and settings.draft_device is None:
            hint = "Leave --gpu-layers out; `localspec doctor` says how to build llama.cpp for a GPU."
            if listed:
                hint = f"{listed[0].name} is software, which is slower than the CPU; --device {listed[0].name} uses it."
            raise UsageError(f"gpu_layers is {asked[0]}, but llama.cpp finds no GPU here.", hint)
        return Placement(_numbered(settings, listed, 0, 0))
    places = [ram(), *there]
    key = _key(settings, places)
    known = _remembered(key) if free else None
    (target, draft), fault = known or (fit.layers(*_headers(settings), fit_settings(settings), places), "")
    if free and known is None:
        kept.facts().write("layers", key, {"layers": [target, draft], "fault": ""})
    placed = _numbered(settings, listed, target, draft)
    names = None if settings.split_mode == "none" else settings.device
    names = names or _text(there, parts=settings.gpu_layers == "auto")
    placed = replace(
        placed,
        main_gpu=0,
        device=names if target else settings.device,
        draft_device=settings.draft_device or (names if placed.draft_gpu_layers else None),
    )
    return Placement(placed, free and bool(target or draft), key, fault)


def on_cpu(found: Placement, fault: str) -> Placement:
    """The placement once a GPU that was not asked for has failed."""
    cpu: dict[str, Any] = {"gpu_layers": 0, "draft_gpu_layers": 0, "device": None, "draft_device": None}
    settings = replace(found.settings, **cpu, split_mode="layer", override_tensor=None, cpu_moe=0)
    return Placement(settings, key=found.key, fault=fault)


def remember(found: Placement) -> None:
    """Keeps a fault, so that later starts have the same layers; forgets it once layers that were asked for load."""
    if found.key and found.fault:
        kept.facts().write("layers", found.key, {"layers": [0, 0], "fault": found.fault})
    elif found.key and not found.chosen and found.settings.gpu_layers:
        known = _remembered(found.key)
        if known is not None and known[1]:
            kept.facts().remove("layers", found.key)


def measured(settings: EngineSettings) -> tuple[list[Place], str] | None:
    """What earlier answers say of `auto`: the integrated GPUs that serve, none where passes took less time on the CPU,
    and what they took, without a full stop; None where plain passes were not timed on both, or there is a card.

    Both are timed only where the user had one of them serve: by `--gpu-layers -1`, or `--gpu-layers 0`. Under `strict`
    a plain pass has as many rows on a GPU as any other (`ConstantWidth`), and counts as such.
    """
    rivals = integrated_gpus(gpus(settings.rpc))
    cpu = costs.read_passes(settings, 0, None, spread(settings)) if rivals else None
    if cpu is None:
        return None
    names = _text(rivals, parts=True)
    layers, _ = fit.layers(*_headers(settings), fit_settings(settings), [ram(), *rivals])
    gpu = costs.read_passes(settings, layers, names, spread(settings)) if layers else None
    if gpu is None:
        return None
    seconds = gpu.plain * (gpu.padded or 1.0) if settings.exact == "strict" else gpu.plain
    words = f"a plain pass took {1e3 * seconds:.1f} ms on {names} and {1e3 * cpu.plain:.1f} ms on the CPU"
    return rivals if seconds < cpu.plain else [], words


def named(device: str) -> list[Place]:
    """The CPU and these devices. Raises UsageError: one is not there."""
    devices.named(device)
    return [ram(), *_devices(device, gpus(), True)]


def on_gpu(gpu_layers: GpuLayers) -> bool:
    """Whether such a setting may put layers on a GPU here."""
    return bool(used_gpus(gpus())) if gpu_layers == "auto" else gpu_layers != 0


def alone(there: list[Place], split_mode: str, main_gpu: int) -> list[Place]:
    """The GPUs that share the target: with the split mode "none" the main one alone. Raises UsageError: none such."""
    if split_mode != "none" or not there:
        return there
    if main_gpu >= len(there):
        names = ", ".join(one.name for one in there)
        raise UsageError(f"main_gpu is {main_gpu}, but the devices are {names}, counted from 0.")
    return [there[main_gpu]]


def spread(settings: EngineSettings) -> Spread:
    return spread_of(settings.split_mode, settings.override_tensor, settings.cpu_moe)


def number(gpu_layers: GpuLayers) -> int:
    """Layers of a setting that `place` has decided; `auto`, which it left to nothing, is none."""
    return 0 if gpu_layers == "auto" else gpu_layers


def shortage(found: Placement) -> str:
    """In a sentence, what layers that were asked for take beyond what is free; "" = nothing."""
    settings = found.settings
    there = _devices(settings.device, gpus(settings.rpc), True)
    plan = fit.plan(*_headers(settings), fit_settings(settings), [ram(), *there])
    return "" if plan.fits else plan.sentence()


def _headers(files: EngineSettings) -> tuple[list[Header], list[Header] | None]:
    return read_parts(files.target), None if files.draft is None else read_parts(files.draft)


def fit_settings(settings: EngineSettings) -> FitSettings:
    wanted = {name: getattr(settings, name) for name in PLANNED} | {"max_draft_tokens": settings.longest_draft}
    cache = CACHE_NAMES[settings.cache]
    return FitSettings(
        **wanted,
        type_k=cache.type_k,
        type_v=cache.type_v,
        flash_attention=cache.flash_attention is not False,
        gpu_layers=settings.gpu_layers,
        draft_gpu_layers=settings.draft_gpu_layers,
        heads=shapes(read_parts(settings.target)[0], settings.heads),
        nextn=may_predict(settings.drafter),
    )


def _numbered(settings: EngineSettings, listed: Sequence[Place], target: int, draft: int) -> EngineSettings:
    """With numbers of layers in place of `auto`: of a draft model whose device was named all, or none on the CPU."""
    if settings.draft is not None and settings.draft_device is not None:
        draft = -1 if _devices(settings.draft_device, listed, True) else 0
    return replace(
        settings,
        gpu_layers=target if settings.gpu_layers == "auto" else settings.gpu_layers,
        draft_gpu_layers=draft if settings.draft_gpu_layers == "auto" else settings.draft_gpu_layers,
    )


def _devices(device: str | None, listed: Sequence[Place], asked: bool) -> list[Place]:
    """The GPUs that may have layers: those asked for, or those worth it; else any hardware, if `asked`."""
    if device is not None:
        known = {one.name: one for one in listed}
        parts = devices.read(device)
        return [replace(known[name], part=part) for name, part in parts.items() if name in known]
    return used_gpus(listed) or ([one for one in listed if not is_software(one)] if asked else [])


def _text(there: Sequence[Place], parts: bool) -> str:
    """Devices as llama.cpp takes them; with `parts` several share the layers as all their memory is, in whole GiB."""
    sizes = [max(1, round(one.total_bytes / 2**30)) for one in there]
    unit = math.gcd(*sizes)
    if len(there) == 1 or not parts:
        return ",".join(one.name for one in there)
    return ",".join(f"{one.name}={size // unit}" for one, size in zip(there, sizes, strict=True))


def _remembered(key: dict[str, Any]) -> tuple[tuple[int, int], str] | None:
    """Layers and fault of an earlier start; None = nothing is known."""

    def made(data: Any) -> tuple[tuple[int, int], str]:
        target, draft = data["layers"]
        return (int(target), int(draft)), str(data["fault"])

    return kept.facts().read("layers", key, made)


def _key(settings: EngineSettings, places: Sequence[Place]) -> dict[str, Any]:
    return {
        "files": [of_file(path) for path in (settings.target, settings.draft, *settings.heads) if path is not None],
        "devices": [[one.name, one.description, one.total_bytes, one.unified] for one in places],
        "settings": [str(getattr(settings, name)) for name in _ASKED],
    }


def serving(
    wanted: FitSettings, target: Path, draft: Path | None, there: Sequence[Place]
) -> tuple[FitSettings, list[Place], str]:
    """The settings and places with which these GGUF files are loaded, and why a GPU is not used, if earlier starts say
    so: it failed, or the CPU was faster. `there`: the CPU, and the GPUs that are used unless they say so."""
    if wanted.gpu_layers != "auto":
        return wanted, list(there), ""
    asked = EngineSettings(target, draft, context=wanted.context, slots=wanted.slots, cpu_moe=wanted.cpu_moe)
    on_cpu = replace(wanted, gpu_layers=0, draft_gpu_layers=0)
    worth = _devices(None, gpus(), False)
    known = _remembered(_key(asked, [ram(), *worth])) if worth else None
    if known is not None and known[1]:
        return on_cpu, list(there), f"it failed at an earlier start: {known[1]}"
    if (found := measured(asked)) is None:
        return wanted, list(there), ""
    faster, words = found
    return (wanted, [there[0], *faster], "") if faster else (on_cpu, list(there), words)


def gpu_lines(plan: MemoryPlan, unused: str = "") -> list[str]:
    """What of a plan runs on which GPU here, and why another is not used (`unused` = what earlier starts say)."""
    listed, lines = gpus(), []
    for one in listed:
        models = [share.model for share in plan.shares if share.place == one.name]
        why = why_unused(one, listed) or unused
        if models:
            layers = [("target", plan.gpu_layers), ("draft", plan.draft_gpu_layers)]
            words = ", ".join(f"{count} layers of the {who}" for who, count in layers if who in models)
            among = " between the GPUs" if len({share.place for share in plan.shares}) > 2 else ""
            lines.append(f"{one.name} ({one.description}): {words}{among}")
        else:
            lines.append(f"{one.name} ({one.description}): not used{f', {why}' if why else ''}")
    return lines
