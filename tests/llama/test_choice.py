"""The configuration chosen stays the same from start to start, and probing fails safely."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.errors import ModelFileError
from localspec.llama import choice, lib, survey, wide, widths
from localspec.llama import decision as decisions
from localspec.llama import probe as probes
from localspec.llama.bench import Bench, comb
from localspec.llama.choice import choose, load_draft_model
from localspec.llama.configuration import ALL_KERNELS, CACHES, LLAMA_KERNELS, Configuration
from localspec.llama.context import Context
from localspec.llama.decision import Decision
from localspec.llama.model import Model
from localspec.llama.observe import Observer
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings
from localspec.llama.tree import layout

SETTINGS = ContextSettings(n_ctx=640, threads=1, type_v="bf16", flash_attention=True)
ALL, ONE = frozenset(range(1, 9)), frozenset({1})
F16, BF16, Q8, OFF = (cache.name for cache in CACHES)
WIDE = f"{F16} wide"
_NAMES = {(c.type_k, c.type_v, c.flash_attention): c.name for c in CACHES}


@dataclass
class _World:
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
        return replace(known, gave_up=True) if found is None else known.with_exact({100: tuple(found)}, found)

    def count(self) -> tuple[int, int, int, int]:
        return self.loads, self.contexts, self.measured, len(self.examined)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    made = _World({F16: 1.0, BF16: 1.04, Q8: 1.3, OFF: 1.5}, {})
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
        def __init__(self, *args: Any) -> None:
            made.contexts += 1
            super().__init__(*args)

    monkeypatch.setattr(widths, "measure", made.measure)
    monkeypatch.setattr(widths, "examine", made.examine)
    monkeypatch.setattr(Model, "load", slow_load)
    monkeypatch.setattr(choice, "Context", Counted)
    monkeypatch.setattr(survey, "Context", Counted)
    monkeypatch.setattr(survey, "time", SimpleNamespace(monotonic=lambda: made.now))
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


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_later_start_loads_what_was_decided_and_nothing_else(
    world: _World, start: Callable[..., str], mode: str
) -> None:
    world.exact = {BF16: ALL}
    first = start(mode)
    assert first.startswith("exact: F16 keys, BF16 values, repacked")
    before = world.count()
    world.costs, world.exact = {F16: 9.0, BF16: 9.0, Q8: 1.0, OFF: 0.1}, {Q8: ALL, OFF: ALL}
    assert start(mode) == first
    assert world.count() == (before[0] + 1, before[1] + 1, before[2], before[3])


def test_slots_and_trees_and_widths_share_a_decision(world: _World, start: Callable[..., str]) -> None:
    world.exact = {BF16: ALL}
    first = start()
    measured = world.measured
    world.costs = {F16: 1.0, BF16: 2.0}
    for settings, widest in ((replace(SETTINGS, n_slots=2), 8), (replace(SETTINGS, max_leaves=3), 8), (SETTINGS, 12)):
        assert start(settings=settings, widest=widest) == first
    assert world.measured == measured


def test_a_second_measurement_leaves_the_first_alone(
    world: _World, start: Callable[..., str], tiny_target: Path, tmp_path: Path
) -> None:
    world.exact = {F16: frozenset({1, 2}), BF16: ONE, Q8: ONE, OFF: ONE, f"{F16} plain": ALL}
    measure = world.measure

    def later(pairs: list[tuple[Model, ContextSettings]], **options: object) -> list[Probe]:
        found = measure(pairs, **options)
        hour = 1.0 if world.measured == 1 else 7.0  # everything is slower at the other hour
        return [replace(p, seconds={100: {w: s * hour for w, s in p.seconds[100].items()}}) for p in found]

    widths.measure = later  # type: ignore[assignment] # undone with the fixture's patch
    world.costs[f"{F16} plain"] = 1.1
    assert start("strict") == "exact: F16 cache, plain weights (costs 10% more than the fastest)"
    assert world.measured == 2
    settings = replace(SETTINGS, type_v="f16", flash_attention="auto")
    stored = probes.load(tmp_path, probes.cache_key(tiny_target, settings, 8))
    assert stored is not None
    assert set(stored.seconds[100].values()) == {1.0}


def test_a_slow_disk_changes_nothing(world: _World, start: Callable[..., str], tmp_path: Path) -> None:
    world.exact = {F16: ONE, f"{F16} plain": ALL, BF16: ONE, Q8: ONE, OFF: ONE}
    quick = start()
    budgets = list(world.budgets)
    for path in tmp_path.iterdir():
        path.unlink()
    world.load_seconds = 1e6
    world.budgets.clear()
    assert start() == quick
    assert world.budgets == budgets
    assert min(budgets) > 0


def test_strict_does_not_change_what_auto_does(world: _World, start: Callable[..., str]) -> None:
    several = {"settings": replace(SETTINGS, n_slots=2), "widest": 16}
    first = start()
    assert first.startswith("inexact: F16 cache")
    world.exact = {BF16: ALL}
    assert start("strict").startswith("exact: F16 keys, BF16 values")
    assert start() == first
    assert start(**several) == first


def test_auto_keeps_the_widths_it_had_in_a_shape(
    world: _World, start: Callable[..., str], tiny_target: Path, tmp_path: Path
) -> None:
    world.exact = {F16: ALL}
    start()
    several = replace(SETTINGS, n_slots=2)
    world.exact = {}
    late = start(settings=several)
    assert late == "inexact: F16 cache, repacked weights (wide passes, slots and trees could not be examined in time)"
    world.exact = {F16: frozenset(range(1, 7))}
    chosen = choose(tiny_target, several, exact="strict", kernels=LLAMA_KERNELS, cache_dir=tmp_path)
    assert chosen.context.exact_widths == frozenset(range(1, 7))
    chosen.close()
    assert start(settings=several) == late


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", "[" * 100000, "key", "cache", "kernels", "probe", "row", "exact"]
)
def test_a_damaged_or_foreign_decision_is_made_again(
    world: _World, start: Callable[..., str], tmp_path: Path, damage: str
) -> None:
    world.exact = {BF16: ALL}
    first = start()
    (path,) = tmp_path.glob("decision-*.json")
    good = json.loads(path.read_text())
    no_row = {**good["probe"], "seconds": {"100": {}}}
    bad = {
        "key": {**good, "key": "decision-other"},
        "cache": {**good, "cache": "Q3 cache"},
        "kernels": {**good, "kernels": "wider"},
        "probe": {**good, "probe": {}},
        "row": {**good, "probe": no_row},
        "exact": {**good, "probe": {**good["probe"], "exact": None}},
    }
    path.write_text(json.dumps(bad[damage]) if damage in bad else damage)
    for other in tmp_path.glob("*.json"):
        if other != path:
            other.unlink()
    measured = world.measured
    assert start() == first
    assert world.measured == measured + 1
    found = json.loads(path.read_text())
    found["probe"]["measurement"] = good["probe"]["measurement"]  # another one
    assert found == good


def test_a_decision_survives_disk(tmp_path: Path) -> None:
    decision = Decision(
        Configuration("plain"), True, "why", Probe({100: {1: 0.5}}, 3.0, {230: (2,)}, frozenset({1, 2}))
    )
    decisions.store(tmp_path, "key", decision)
    assert decisions.load(tmp_path, "key") == decision
    assert [path.name for path in tmp_path.iterdir()] == ["key.json"]
    assert decisions.load(None, "key") is None
    decisions.store(None, "key", decision)


def test_keys_need_no_model_and_name_what_decides(tiny_target: Path, tmp_path: Path) -> None:
    def key(settings: ContextSettings = SETTINGS, mode: str = "auto", *where: Any) -> str:
        return decisions.decision_key(tiny_target, settings, mode, LLAMA_KERNELS, *where)

    same = [replace(SETTINGS, type_v="f16"), replace(SETTINGS, n_slots=4), replace(SETTINGS, max_leaves=4)]
    assert {key(settings) for settings in same} == {key()}
    others = [replace(SETTINGS, n_ctx=512), replace(SETTINGS, threads=2), replace(SETTINGS, grid=256)]
    keys = {key(), *map(key, others), key(SETTINGS, "strict"), key(SETTINGS, "auto", 3), key(SETTINGS, "auto", 0, "X")}
    assert len(keys) == 7
    by_weights = [{}, {"kernels": "plain"}, {"gpu_layers": 1}, {"device": "X"}]
    assert len({probes.cache_key(tiny_target, SETTINGS, 8, **where) for where in by_weights}) == 4  # type: ignore[arg-type]
    with pytest.raises(ModelFileError):
        choose(tmp_path / "none.gguf", SETTINGS, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("exact", "mode", "words"),
    [
        ({F16: ONE, BF16: ALL}, "auto", "exact: F16 keys, BF16 values, repacked weights (costs 4%"),
        ({F16: ONE, BF16: ALL}, "strict", "exact: F16 keys, BF16 values, repacked weights (costs 4%"),
        ({F16: ONE, Q8: ALL}, "auto", "inexact: F16 cache, repacked weights (the cheapest exact one costs 30% more)"),
        ({F16: ONE, Q8: ALL}, "strict", "exact: Q8_0 cache, repacked weights (costs 30%"),
        ({F16: ONE}, "auto", "inexact: F16 cache, repacked weights (no exact configuration that can draft was found)"),
        ({F16: ONE}, "strict", "exact: F16 cache, repacked weights"),
    ],
)
def test_width_one_alone_is_the_last_resort(
    world: _World, start: Callable[..., str], exact: dict[str, frozenset[int] | None], mode: str, words: str
) -> None:
    """Passes whose cost grows so fast with their width that drafting seems to be worth nothing."""
    world.exact, world.growth = exact, 2.0
    assert start(mode).startswith(words)


def test_nothing_examined_is_nothing_exact(model: Model) -> None:
    for n_ctx, widest in ((16, 4), (64, 60)):
        assert widths.examine(model, replace(SETTINGS, n_ctx=n_ctx), Probe(), widest=widest).exact == ONE


def test_a_context_too_short_to_measure(tiny_target: Path) -> None:
    for mode, exact in (("auto", None), ("strict", ONE)):
        settings = replace(SETTINGS, n_ctx=16)
        chosen = choose(tiny_target, settings, exact=mode, kernels=LLAMA_KERNELS)  # type: ignore[arg-type]
        assert chosen.context.exact_widths == exact
        chosen.close()


def test_an_interrupt_in_the_callback_is_raised_after_the_pass(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Observer, tensor: int, asks: bool, data: object) -> bool:
        raise KeyboardInterrupt

    bench = Bench(model, replace(SETTINGS, n_ctx=320), observed=True)
    bench.reference(230, 8)
    with monkeypatch.context() as patch:
        patch.setattr(Observer, "_see", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.chain_equals(230, 2)
    assert bench.chain_equals(230, 2)  # nothing is left of it
    bench.close()


def test_rows_of_an_earlier_pass_are_not_compared(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(model, replace(SETTINGS, n_ctx=320), observed=True)
    bench.reference(230, 8)
    assert bench._observer is not None
    assert bench._observer.rows
    monkeypatch.setattr(Observer, "_see", lambda self, tensor, asks, data: not asks)
    assert not bench.chain_equals(230, 2)
    assert not bench._observer.rows
    bench.close()


def test_comb() -> None:
    assert comb(6, 9) == [-1, -1, 0, 0, 2, 2]
    assert comb(5, 9) == [-1, -1, 0, 0, 2]
    assert comb(6, 2) == [-1, -1, 0, 2, 3, 4]
    assert comb(3, 1) == [-1, 0, 1]
    assert all(layout(comb(nodes, most)).leaves <= most for nodes in range(2, 20) for most in range(1, 9))


def test_the_trees_of_the_draft_model_are_examined(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, n_ctx=320, max_leaves=4)
    for observed in (False, True):
        bench = Bench(model, settings, observed)
        bench.reference(230, 10)
        assert all(bench.comb_equals(230, width) for width in range(3, 9))
        bench._references[230][2].logits = np.zeros(4).tobytes()
        assert not bench.comb_equals(230, 5)
        bench.close()
    monkeypatch.setattr(Bench, "comb_equals", lambda self, length, width: width < 4)
    assert widths.examine(model, settings, Probe(), widest=5).exact == frozenset({1, 2, 3})


# -- wide kernels beside llama.cpp's; costs and bits are scripted, so no library is needed ----------------------------


@pytest.fixture
def with_wide(world: _World, monkeypatch: pytest.MonkeyPatch) -> _World:
    """A world in which wide kernels can be had: exact, and cheaper than all others."""
    monkeypatch.setattr(wide, "available", lambda: True)
    monkeypatch.setattr(wide, "identity", lambda: ("scripted", ""))
    world.costs[WIDE] = 0.8
    world.exact = {WIDE: ALL}
    return world


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_wide_kernels_that_win_are_taken_without_looking_further(
    with_wide: _World, start: Callable[..., str], mode: str
) -> None:
    first = start(mode, kernels=ALL_KERNELS)
    assert first == "exact: F16 cache, wide kernels (costs less than llama.cpp's default)"
    assert (with_wide.examined, with_wide.measured) == ([WIDE], 1)
    before = with_wide.count()
    with_wide.costs[WIDE], with_wide.exact = 9.0, {}
    assert start(mode, kernels=ALL_KERNELS) == first
    assert with_wide.count() == (before[0] + 1, before[1] + 1, *before[2:])


@pytest.mark.parametrize(
    ("cost", "exact", "mode", "words"),
    [
        (0.8, {WIDE: ONE, BF16: ALL}, "auto", "inexact: F16 cache, wide kernels (the cheapest exact one costs 30%"),
        (0.98, {WIDE: ONE, BF16: ALL}, "auto", "exact: F16 keys, BF16 values, repacked weights (costs 6%"),
        (0.8, {WIDE: ONE}, "auto", "inexact: F16 cache, wide kernels (no exact configuration that can draft"),
        (1.09, {WIDE: ALL}, "auto", "exact: F16 cache, wide kernels (costs 9% more"),
        (1.09, {WIDE: ALL, F16: ALL}, "auto", "exact: F16 cache, repacked weights (costs 0%"),
        (1.29, {WIDE: ALL}, "auto", "inexact: F16 cache, repacked weights (the cheapest exact one costs 29%"),
        (1.29, {WIDE: ALL, Q8: ALL}, "strict", "exact: F16 cache, wide kernels (costs 29%"),
        (1.31, {WIDE: ALL, Q8: ALL}, "strict", "exact: Q8_0 cache, repacked weights (costs 30%"),
    ],
)
def test_wide_kernels_compete_like_the_others(
    with_wide: _World,
    start: Callable[..., str],
    cost: float,
    exact: dict[str, frozenset[int] | None],
    mode: str,
    words: str,
) -> None:
    others: dict[str, frozenset[int] | None] = {F16: ONE, BF16: ONE, Q8: ONE, OFF: ONE, f"{F16} plain": ONE}
    with_wide.costs[WIDE], with_wide.exact = cost, others | exact
    assert start(mode, kernels=ALL_KERNELS).startswith(words)
    assert with_wide.examined[0] == WIDE
    assert with_wide.most_loaded <= 2


def test_a_budget_used_up_by_wide_kernels_is_not_exceeded(with_wide: _World, start: Callable[..., str]) -> None:
    with_wide.exact = {BF16: ALL}
    late = start(kernels=ALL_KERNELS, budget=1.0)  # an examination takes a second in this world
    assert late == "inexact: F16 cache, wide kernels (no exact configuration was found)"
    assert (with_wide.examined, with_wide.measured) == ([WIDE], 1)
    assert start("strict", kernels=ALL_KERNELS, budget=1.0).startswith("exact: F16 keys, BF16 values, repacked")


def test_off_takes_the_faster_default_and_remembers_it(with_wide: _World, start: Callable[..., str]) -> None:
    assert start("off", kernels=ALL_KERNELS) == "inexact: F16 cache, wide kernels (exactness is off)"
    with_wide.costs[WIDE] = 3.0
    assert start("off", kernels=ALL_KERNELS) == "inexact: F16 cache, wide kernels (exactness is off)"
    assert start("off") == "inexact: F16 cache, repacked weights (exactness is off)"
    assert with_wide.measured == 1
    assert with_wide.examined == []


def test_wide_kernels_are_for_models_on_the_cpu(with_wide: _World, start: Callable[..., str]) -> None:
    words = "inexact: F16 cache, repacked weights (exactness is off)"
    assert start("off", kernels=ALL_KERNELS, gpu_layers=1) == words
    assert start("off", kernels=["repacked", "wide"]).startswith("inexact: F16 cache, wide")
    assert start("off", kernels=["wide"]).startswith("inexact: F16 cache, wide")
    with_wide.exact[f"{F16} plain"] = ALL
    assert start("strict", kernels=["plain"]).startswith("exact: F16 cache, plain")


def test_without_wide_kernels_others_are_decided_on(with_wide: _World, start: Callable[..., str]) -> None:
    with_wide.exact[BF16] = ALL
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")
    assert start().startswith("exact: F16 keys, BF16 values, repacked")
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")


def test_costs_of_different_hours_are_not_compared(with_wide: _World, start: Callable[..., str]) -> None:
    with_wide.exact[BF16] = ALL
    start("off", kernels=ALL_KERNELS)  # measures wide and the default
    start()  # measures llama.cpp's four
    assert with_wide.measured == 2
    with_wide.costs[WIDE] = 2.0
    assert start("strict", kernels=ALL_KERNELS).startswith("exact: F16 keys, BF16 values, repacked weights (costs 4%")
    assert with_wide.measured == 4  # wide and the default again, then all
    start("strict")
    assert with_wide.measured == 4


def test_where_two_copies_do_not_fit_one_is_loaded_at_a_time(
    with_wide: _World, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lib, "available_bytes", lambda: 2 * 1024 * 1024)
    assert start(kernels=ALL_KERNELS).startswith("exact: F16 cache, wide")
    assert with_wide.most_loaded == 1
    assert with_wide.measured == 2


@pytest.mark.parametrize(
    ("cost", "may_be_wide", "kernels"), [(0.9, True, "wide"), (1.1, True, "repacked"), (0.9, False, "repacked")]
)
def test_a_draft_model_is_wide_where_one_row_is_no_slower(
    with_wide: _World, tiny_draft: Path, tmp_path: Path, cost: float, may_be_wide: bool, kernels: str
) -> None:
    with_wide.costs[WIDE] = cost
    for _ in range(2):  # the second time from disk
        settings = ContextSettings(n_ctx=640, threads=1, grid_prefill=False)
        loaded = load_draft_model(tiny_draft, settings, may_be_wide=may_be_wide, cache_dir=tmp_path)
        assert loaded.kernels == kernels
        loaded.close()
        with_wide.costs[WIDE] = 1.0 / cost
    assert with_wide.measured == int(may_be_wide)
