"""The configuration chosen stays the same from start to start, and probing fails safely."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.errors import ModelFileError
from localspec.llama import decision as decisions
from localspec.llama import probe as probes
from localspec.llama import widths
from localspec.llama.bench import Bench, beside, comb, in_turn
from localspec.llama.choice import choose
from localspec.llama.configuration import ALL_KERNELS, LLAMA_KERNELS, Configuration
from localspec.llama.decision import Decision
from localspec.llama.model import Model
from localspec.llama.observe import Observer
from localspec.llama.probe import Probe
from localspec.llama.settings import ContextSettings
from localspec.llama.tree import layout
from tests.llama.scripted_choice import ALL, BF16, F16, OFF, ONE, Q8, SETTINGS, WIDE, World


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_a_later_start_loads_what_was_decided_and_nothing_else(
    world: World, start: Callable[..., str], mode: str
) -> None:
    world.exact = {BF16: ALL}
    first = start(mode)
    assert first.startswith("exact: F16 keys, BF16 values, repacked")
    before = world.count()
    world.costs, world.exact = {F16: 9.0, BF16: 9.0, Q8: 1.0, OFF: 0.1}, {Q8: ALL, OFF: ALL}
    assert start(mode) == first
    assert world.count() == (before[0] + 1, before[1] + 1, before[2], before[3])


def test_slots_and_trees_and_widths_share_a_decision(world: World, start: Callable[..., str]) -> None:
    world.exact = {BF16: ALL}
    first = start()
    measured = world.measured
    world.costs = {F16: 1.0, BF16: 2.0}
    for settings, widest in ((replace(SETTINGS, n_slots=2), 8), (replace(SETTINGS, max_leaves=3), 8), (SETTINGS, 12)):
        assert start(settings=settings, widest=widest) == first
    assert world.measured == measured


def test_a_second_measurement_leaves_the_first_alone(
    world: World, start: Callable[..., str], tiny_target: Path, tmp_path: Path
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


def test_a_slow_disk_changes_nothing(world: World, start: Callable[..., str], tmp_path: Path) -> None:
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


def test_strict_does_not_change_what_auto_does(world: World, start: Callable[..., str]) -> None:
    several = {"settings": replace(SETTINGS, n_slots=2), "widest": 16}
    world.exact = {F16: ONE, BF16: ONE, Q8: ALL, OFF: ONE, f"{F16} plain": ONE}
    first = start()
    assert first.startswith("inexact: F16 cache")
    assert start("strict").startswith("exact: Q8_0 cache")
    assert start() == first
    assert start(**several) == first


@pytest.mark.parametrize("quiet", [2, 3, 4])
def test_what_was_not_examined_in_time_is_tried_again(world: World, start: Callable[..., str], quiet: int) -> None:
    late = "inexact: F16 cache, repacked weights (no exact configuration was found in time)"
    for turn in range(1, quiet):
        assert start() == late
        assert world.examined.count(F16) == turn
    examined, world.exact = len(world.examined), {BF16: ALL}
    if quiet < 4:
        assert start().startswith("exact: F16 keys, BF16 values")
    else:  # three starts had too little time: a fourth does not wait for it
        assert start() == late
        assert len(world.examined) == examined
    assert world.measured <= 1 + quiet  # costs are known after the first


@pytest.mark.parametrize("quiet", [2, 3, 4])
def test_a_shape_that_was_not_examined_in_time_is_tried_again(
    world: World, start: Callable[..., str], quiet: int
) -> None:
    world.exact = {F16: ALL}
    plain = start()
    several = replace(SETTINGS, n_slots=2)
    late = "inexact: F16 cache, repacked weights (wide passes, slots and trees could not be examined in time)"
    world.exact = {}
    for _ in range(1, quiet):
        assert start(settings=several) == late
    world.exact = {F16: ALL}
    assert start(settings=several) == (plain if quiet < 4 else late)
    assert start("strict", settings=several).startswith("exact: F16 cache")
    assert start(settings=several) == (plain if quiet < 4 else late)


def test_a_busy_machine_is_no_verdict(world: World, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    several = replace(SETTINGS, n_slots=2)
    with monkeypatch.context() as busy:
        busy.setattr(decisions, "cpus", SimpleNamespace(asleep=True))
        for _ in range(4):
            assert start(settings=several).startswith("inexact")
        world.exact = {F16: ALL}
        assert start().startswith("exact: F16 cache")
        world.exact = {}
        for _ in range(4):
            assert start(settings=several).startswith("inexact")
    world.exact = {F16: ALL}
    assert start(settings=several).startswith("exact: F16 cache")


@pytest.mark.parametrize(("mode", "exact"), [("auto", {}), ("auto", {WIDE: ALL}), ("off", {})])
def test_a_machine_that_is_never_quiet_is_not_waited_for_at_every_start(
    with_wide: World, start: Callable[..., str], monkeypatch: pytest.MonkeyPatch, mode: str, exact: dict[str, Any]
) -> None:
    monkeypatch.setattr(decisions, "cpus", SimpleNamespace(asleep=True))
    several = {"settings": replace(SETTINGS, n_slots=2), "kernels": ALL_KERNELS}
    with_wide.exact = exact
    start(mode, kernels=ALL_KERNELS)
    with_wide.exact = {}
    for _ in range(12):
        start(mode, **several)
    before = with_wide.count()
    assert start(mode, **several).startswith("inexact")
    assert with_wide.count() == (before[0] + 1, before[1] + 1, *before[2:]), "it loads what was decided, and no more"


def test_wider_passes_are_examined_in_the_time_that_the_decision_left(world: World, start: Callable[..., str]) -> None:
    world.exact = {F16: ALL}
    start(widest=16, budget=10.0)  # measuring takes a second in this world, and so does each examination
    assert world.budgets[-1] == 10.0 - world.measured - (len(world.examined) - 1)


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_wider_passes_are_not_examined_at_every_start(world: World, start: Callable[..., str], mode: str) -> None:
    world.exact = {F16: ALL}
    first, examined = start(mode), len(world.examined)
    world.exact = {}
    for _ in range(4):
        assert start(mode, widest=16) == first
    assert len(world.examined) - examined == 2, "the second one had all the time there is"


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", "[" * 100000, "key", "cache", "kernels", "probe", "row", "exact"]
)
def test_a_damaged_or_foreign_decision_is_made_again(
    world: World, start: Callable[..., str], tmp_path: Path, damage: str
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
    world: World, start: Callable[..., str], exact: dict[str, frozenset[int] | None], mode: str, words: str
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


def test_chains_beside_a_main_one() -> None:
    assert beside(2) == ([-1, -1], [1])
    assert beside(5) == ([-1, 0, 1, -1, 3], [3, 4])
    assert in_turn(6) == ([-1, -1, -1, 1, 2, 3], [1, 3, 5])
    for nodes in range(4, 20):
        for parents, chain in (beside(nodes), in_turn(nodes)):
            assert len(parents) == nodes
            assert [parents[node] for node in chain] == [-1, *chain[:-1]]
            assert not set(chain) & set(layout(parents).order[: layout(parents).main_length])
        assert layout(in_turn(nodes)[0]).leaves == 3


def test_a_chain_whose_rows_lie_apart_is_examined(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, n_ctx=320, threads=1)
    equals = Bench._side_equals

    def together(self: Bench, length: int, parents: list[int], true: list[int]) -> bool:
        return equals(self, length, parents, true) and true == list(range(true[0], true[-1] + 1))

    monkeypatch.setattr(Bench, "_side_equals", together)
    assert widths.examine(model, replace(settings, max_leaves=2), Probe(), widest=6).exact == frozenset(range(1, 7))
    assert widths.examine(model, replace(settings, max_leaves=3), Probe(), widest=6).exact == frozenset(range(1, 5))


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
