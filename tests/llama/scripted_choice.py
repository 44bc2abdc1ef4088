"""A world in which costs and bits of configurations are scripted, and starts in it (fixtures, see `conftest`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.llama import choice, decision, survey, wide, widths
from localspec.llama.choice import choose
from localspec.llama.configuration import CACHES, LLAMA_KERNELS
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings

SETTINGS = ContextSettings(n_ctx=640, threads=1, type_v="bf16", flash_attention=True)
ALL, ONE = frozenset(range(1, 9)), frozenset({1})
F16, BF16, Q8, OFF = (cache.name for cache in CACHES)
WIDE = f"{F16} wide"
_NAMES = {(c.type_k, c.type_v, c.flash_attention): c.name for c in CACHES}


@dataclass
class World:
    """Stands in for measuring and examining, and counts what is done."""

    costs: dict[str, float]
    """Cache name (" plain" or " wide" added) -> seconds of a pass, whatever its width."""
    exact: dict[str, frozenset[int] | None]
    """The same -> what an examination finds; absent = it gives up."""
    growth: float = 0.0
    """What each further row of a pass adds to its cost."""
    now: float = 0.0
    load_seconds: float = 0.0
    loads: int = 0
    most_loaded: int = 0
    contexts: int = 0
    measured: int = 0
    budgets: list[float] = field(default_factory=list)
    examined: list[str] = field(default_factory=list)

    def name(self, model: Model, settings: ContextSettings) -> str:
        cache = _NAMES[settings.type_k, settings.type_v, settings.flash_attention]
        return cache if model.kernels == "repacked" else f"{cache} {model.kernels}"

    def measure(self, pairs: list[tuple[Model, ContextSettings]], **_: object) -> list[Probe]:
        self.measured += 1
        self.now += 1.0
        costs = [self.costs.get(self.name(*pair), 1.0) for pair in pairs]
        return [Probe({100: {w: cost * (1 + self.growth * (w - 1)) for w in range(1, 9)}}, 1.0) for cost in costs]

    def examine(self, model: Model, settings: ContextSettings, known: Probe, **options: Any) -> Probe:
        self.now += 1.0
        self.budgets.append(options["budget"])
        self.examined.append(self.name(model, settings))
        found = self.exact.get(self.examined[-1])
        return (
            replace(known, gave_up=known.gave_up + 1) if found is None else known.with_exact({100: tuple(found)}, found)
        )

    def count(self) -> tuple[int, int, int, int]:
        return self.loads, self.contexts, self.measured, len(self.examined)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World({F16: 1.0, BF16: 1.04, Q8: 1.3, OFF: 1.5}, {})
    load: Callable[..., Model] = Model.load

    open_models: list[Model] = []

    def slow_load(*args: Any, **options: Any) -> Model:
        made.loads += 1
        made.now += made.load_seconds
        kernels = options.pop("kernels")
        model = load(*args, **options, kernels="repacked" if kernels == "wide" else kernels)  # here costs are scripted
        model.kernels = kernels
        open_models[:] = [model, *(other for other in open_models if other.handle is not None)]
        made.most_loaded = max(made.most_loaded, len(open_models))
        return model

    class Counted(Context):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.contexts += 1
            super().__init__(*args, **options)

    monkeypatch.setattr(widths, "measure", made.measure)
    monkeypatch.setattr(widths, "examine", made.examine)
    monkeypatch.setattr(Model, "load", slow_load)
    monkeypatch.setattr(choice, "Context", Counted)
    monkeypatch.setattr(survey, "Context", Counted)
    monkeypatch.setattr(survey, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(decision, "cpus", SimpleNamespace(asleep=False))
    return made


@pytest.fixture
def start(tiny_target: Path, tmp_path: Path) -> Callable[..., str]:
    """Chooses once among llama.cpp's kernels (if nothing else is said) and closes; returns the description."""

    def run(mode: Any = "auto", settings: ContextSettings = SETTINGS, **options: Any) -> str:
        options = {"kernels": LLAMA_KERNELS, **options}
        chosen = choose(tiny_target, settings, exact=mode, cache_dir=tmp_path, **options)
        chosen.close()
        return chosen.description

    return run


@pytest.fixture
def with_wide(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which wide kernels can be had: exact, and cheaper than all others."""
    monkeypatch.setattr(wide, "available", lambda: True)
    monkeypatch.setattr(wide, "identity", lambda: ("scripted", ""))
    world.costs[WIDE] = 0.8
    world.exact = {WIDE: ALL}
    return world
