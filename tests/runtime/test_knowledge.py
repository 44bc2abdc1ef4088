"""What is kept between runs, and what is timed at load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.costs import DraftCosts, PassCosts
from localspec.engine.guard import OPENING_PASSES
from localspec.engine.interfaces import Draft
from localspec.runtime import calibration, memory
from localspec.runtime.knowledge import Knowledge, Store
from localspec.types import Feed, LogitRows
from tests.fakes import FakeDraftContext, HashModel


def store(folder: Path, pair: str = "a", machine: str = "m") -> Store:
    return Store(folder, {"files": [pair]}, {"cpu": machine})


def learned(where: Store) -> Knowledge:
    knowledge = where.read()
    tracker = knowledge.acceptance.tracker("draft", "coupled", 1.0)
    for _ in range(50):
        tracker.score(Draft.chain([1], None, np.full(1, 0.5, dtype=np.float32)), [0])
    knowledge.costs = PassCosts({128: {1: 0.03, 4: 0.06}})
    knowledge.draft_costs["draft"] = DraftCosts({128: {1: 0.003}}, 0.001)
    knowledge.account.scale(0.03)
    knowledge.account.book(0.03, 0.06)
    knowledge.save()
    return knowledge


def test_what_was_learned_is_there_at_the_next_start(tmp_path: Path) -> None:
    old = learned(store(tmp_path))
    new = store(tmp_path).read()
    assert new.acceptance.to_json() == old.acceptance.to_json()
    assert new.costs.seconds(4, 128) == pytest.approx(0.06)
    assert new.draft_costs["draft"].read_seconds == 0.001
    assert new.account.opening == pytest.approx(old.account.passes)
    assert OPENING_PASSES - 2.0 < new.account.opening < OPENING_PASSES


def test_a_debt_ends_with_the_program_that_made_it(tmp_path: Path) -> None:
    old = learned(store(tmp_path))
    old.account.write_off(1e9)
    old.save()
    assert store(tmp_path).read().account.opening == 0.0


def test_another_pair_or_machine_starts_afresh(tmp_path: Path) -> None:
    learned(store(tmp_path))
    other_pair, other_machine = store(tmp_path, pair="b").read(), store(tmp_path, machine="n").read()
    assert other_pair.acceptance.to_json() == {}
    assert other_pair.costs.known
    assert other_machine.acceptance.to_json() != {}
    assert not other_machine.costs.known
    assert other_machine.draft_costs == {}


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"key": "x", "content": {}}', "truncate", "foreign"])
@pytest.mark.parametrize("kind", ["acceptance", "costs"])
def test_a_damaged_or_foreign_file_is_as_if_there_were_none(tmp_path: Path, kind: str, damage: str) -> None:
    learned(store(tmp_path))
    (path,) = tmp_path.glob(f"{kind}-*.json")
    if damage == "truncate":
        damage = path.read_text("utf-8")[:-40]
    elif damage == "foreign":
        data = json.loads(path.read_text("utf-8"))
        data["content"] = {"passes": {"1": {"1": -3}}, "drafts": {}, "balance": 1.0, "hits": 4}
        damage = json.dumps(data)
    path.write_text(damage, "utf-8")
    found = store(tmp_path).read()
    if kind == "acceptance":
        assert found.acceptance.to_json() == {}
    else:
        assert not found.costs.known
        assert found.account.opening == OPENING_PASSES
    found.save()


def test_nothing_is_kept_without_a_folder_that_can_be_written(tmp_path: Path) -> None:
    Knowledge().save()
    (tmp_path / "file").write_text("in the way")
    learned(store(tmp_path / "file" / "plans"))


# -- calibration -----------------------------------------------------------------------------------------------------


class Timed(FakeDraftContext):
    """A context in which a row takes a millisecond and a pass two more."""

    def __init__(self, n_ctx: int = 256, slowness: float = 1.0) -> None:
        super().__init__(HashModel(8), n_ctx)
        self.now, self.slowness = 0.0, slowness
        self.widths: list[int] = []

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        drafted = sum(len(feed.draft_tokens) for feed in feeds)
        plain = [Feed(feed.slot, feed.tokens, feed.prompt_length) for feed in feeds]
        rows = super().decode(plain)
        for feed in feeds:
            self.cached[feed.slot] += feed.draft_tokens.tolist()
        self.widths.append(sum(self.passes[-1].values()) + drafted)
        self.now += self.slowness * (0.002 + 0.001 * self.widths[-1])
        return rows

    def forget(self, slot: int, keep: int = 0) -> None:
        self.cached[slot] = self.cached.get(slot, [])[:keep]


def test_a_draft_model_is_timed() -> None:
    context = Timed()
    costs = calibration.draft_costs(context, 1, lambda: context.now)
    assert costs.level_seconds(1, 100) == pytest.approx(0.003)
    assert costs.read_seconds == pytest.approx(0.001, rel=0.05)
    assert len(context.widths) <= 20
    assert context.cached[0] == []


def test_a_target_nobody_timed_is_timed() -> None:
    context = Timed()
    found = calibration.pass_costs(context, 8, lambda: context.now)
    (length,) = found
    assert found[length] == pytest.approx({width: 0.002 + 0.001 * width for width in range(1, 9)})
    assert len(context.widths) <= 20
    assert context.cached[0] == []


@pytest.mark.parametrize("slowness", [100, 1000])
def test_a_slow_target_gets_the_ends_of_its_curve(slowness: float) -> None:
    context = Timed(slowness=slowness)
    (row,) = calibration.pass_costs(context, 8, lambda: context.now).values()
    assert {1, 8} <= set(row) < set(range(1, 9))
    assert row == pytest.approx({width: slowness * (0.002 + 0.001 * width) for width in row})


@pytest.mark.parametrize("n_ctx", [2, 8, 12, 16, 60])
def test_a_small_context_is_not_overfilled(n_ctx: int) -> None:
    context = Timed(n_ctx)
    calibration.draft_costs(context, 1, lambda: context.now)
    calibration.pass_costs(context, 8, lambda: context.now)
    calibration.largest_pass(context, 1, 8)


def test_every_width_up_to_8_is_timed_and_the_widest() -> None:
    context = Timed()
    (row,) = calibration.pass_costs(context, 16, lambda: context.now).values()
    assert set(row) == {*range(1, 9), 16}
    assert len(context.widths) <= 20


def test_the_largest_pass_fills_every_slot_and_is_timed() -> None:
    context = Timed()
    seconds = calibration.largest_pass(context, 3, 5, lambda: context.now)
    assert context.widths == [3 * 8 + 3 * 4, *[3 * 5] * 3], "the first one reads eight tokens a slot"
    assert seconds == pytest.approx(0.002 + 0.001 * 15)
    assert calibration.largest_pass(Timed(8), 1, 8) == 0.0, "it does not fit"
    assert all(not cached for cached in context.cached.values())


def test_a_largest_pass_that_was_disturbed_does_not_count() -> None:
    context = Timed()
    moments = iter([1.0, 1.4, 1.4, 1.4, 1.4, 1.5, 1.5, 1.5, 1.8])  # 0.4 s, 0.1 s and 0.3 s
    assert calibration.largest_pass(context, 1, 5, lambda: next(moments)) == pytest.approx(0.1)
    slow = Timed(slowness=100)
    calibration.largest_pass(slow, 1, 5, lambda: slow.now)
    assert len(slow.widths) == 3, "0.7 s each: those that began within half a second"


def test_a_wider_pass_grows_with_the_context_as_the_widest_known_one_does() -> None:
    known = {100: {1: 1.0, 8: 2.0}, 1000: {1: 1.5, 8: 3.0}}
    assert calibration.with_width(known, 16, 2.6) == {
        100: {1: 1.0, 8: 2.0, 16: 2.6},
        1000: {1: 1.5, 8: 3.0, 16: pytest.approx(3.9)},
    }
    assert calibration.with_width(known, 16, 0.1)[100][16] == 2.0, "never less than a narrower one"
    assert calibration.with_width(known, 8, 9.0) == known
    assert calibration.with_width(known, 16, 0.0) == known, "it was not timed"
    costs = PassCosts(calibration.with_width(known, 16, 2.6), 16)
    assert [costs.seconds(width, 100) for width in (8, 9, 16)] == pytest.approx([2.0, 2.6, 2.6])


# -- memory ----------------------------------------------------------------------------------------------------------


def test_memory_that_is_left(tmp_path: Path) -> None:
    source = tmp_path / "meminfo"
    assert memory.available_bytes(source) is None
    source.write_text("MemTotal: 100 kB\nMemAvailable:   2048 kB\n")
    assert memory.available_bytes(source) == 2**21
    for damaged in ("MemAvailable:", "MemAvailable: x kB", ""):
        source.write_text(damaged)
        assert memory.available_bytes(source) is None


def test_short_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [None, 2**20, 2**40]
    monkeypatch.setattr(memory, "available_bytes", lambda: answers.pop(0))
    assert [memory.is_short() for _ in range(3)] == [False, True, False]
