"""Which GPU gets which layers of a model, and why another gets none: for `show`, `check` and the models screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from localspec.config import EngineSettings
from localspec.machine.memory import Place
from localspec.models.memory.fit import FitSettings, MemoryPlan
from localspec.models.memory.gpu import why_unused
from localspec.runtime.memory import gpus
from localspec.runtime.memory.placement import known_fault, measured


def serving(
    wanted: FitSettings, target: Path, draft: Path | None, there: Sequence[Place]
) -> tuple[FitSettings, list[Place], str]:
    """The settings and places with which these files are loaded, and why a GPU is not used, if earlier starts say so:
    it failed, or the CPU was faster.

    Args:
        wanted: settings of the plan.
        target, draft: GGUF files.
        there: the CPU, and the GPUs that are used unless earlier starts say otherwise.
    """
    if wanted.gpu_layers != "auto":
        return wanted, list(there), ""
    asked = EngineSettings(target, draft, context=wanted.context, slots=wanted.slots, cpu_moe=wanted.cpu_moe)
    on_cpu = replace(wanted, gpu_layers=0, draft_gpu_layers=0)
    if fault := known_fault(asked):
        return on_cpu, list(there), f"it failed at an earlier start: {fault}"
    if (found := measured(asked)) is None:
        return wanted, list(there), ""
    return (wanted, [there[0], *found.gpus], "") if found.gpus else (on_cpu, list(there), found.words)


def gpu_lines(plan: MemoryPlan, unused: str = "") -> list[str]:
    """What of a plan runs on which GPU, and why another is not used; nothing on a machine without a GPU.

    Args:
        plan: as made for the places of this machine.
        unused: why no GPU is used, if earlier starts say so.
    """
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
