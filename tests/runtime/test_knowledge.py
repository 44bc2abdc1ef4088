"""What is kept between runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.interfaces import Draft
from localspec.kept import FactStore
from localspec.planning.acceptance import Candidate, Tracker, learn
from localspec.planning.costs import MOST_KEPT_PASSES, DraftCosts, Knowledge, PassCosts
from localspec.runtime import memory
from localspec.runtime.costs import KnowledgeStore
from localspec.runtime.engine import Engine
from tests.runtime.fake_engine import make, read, request


def store(folder: Path, pair: str = "a", machine: str = "m") -> KnowledgeStore:
    return KnowledgeStore(FactStore(folder), {"files": [pair]}, {"cpu": machine})


def learned(where: KnowledgeStore) -> Knowledge:
    knowledge = where.read()
    draft = Draft.chain([1], confidence=np.full(1, 0.5, dtype=np.float32))
    guess = Candidate(0, Tracker(knowledge.acceptance["draft"]), draft, free=False)
    for _ in range(50):
        learn(guess, [0])
    knowledge.costs = PassCosts({128: {1: 0.03, 4: 0.06}, 512: {1: 0.03, 4: 0.06}})
    knowledge.draft_costs["draft"] = DraftCosts({1: 0.003}, 0.001)
    knowledge.draft_costs["untimed"] = DraftCosts({1: 0.003}, 0.001, estimated=True)
    where.write(knowledge)
    return knowledge


def test_what_was_learned_is_there_at_the_next_start(tmp_path: Path) -> None:
    old = learned(store(tmp_path))
    new = store(tmp_path).read()
    assert new.acceptance == old.acceptance
    assert new.kept_passes[4][0] == pytest.approx(2.0)
    assert new.kept_passes[4][1] == pytest.approx(MOST_KEPT_PASSES)
    assert not new.costs.known, "only ratios are kept"
    assert new.draft_costs["draft"].read_seconds == 0.001
    assert "untimed" not in new.draft_costs


def test_what_was_learned_of_passes_is_worth_less_with_time(tmp_path: Path) -> None:
    learned(store(tmp_path))
    (path,) = tmp_path.glob("costs-*.json")
    data = json.loads(path.read_text("utf-8"))
    data["time"] -= 60 * 24 * 3600
    path.write_text(json.dumps(data), "utf-8")
    assert store(tmp_path).read().kept_passes[4] == pytest.approx((2.0, MOST_KEPT_PASSES / 4), rel=0.01)


def test_what_is_known_of_a_drafter_that_is_gone_is_passed_over(tmp_path: Path, engines: list[Engine]) -> None:
    old = learned(store(tmp_path))
    old.acceptance["gone"] = old.acceptance["draft"]
    old.draft_costs["gone"] = old.draft_costs["draft"]
    store(tmp_path).write(old)
    found = store(tmp_path).read()
    assert found.acceptance["draft"] == old.acceptance["draft"]
    engine, _ = make()
    engines.append(engine)
    engine.loaded.knowledge = found
    engine.configure(drafter="auto", max_draft_tokens=2)  # drafted whatever it costs here
    generation = read(engine.generate(request(1).prompt, seed=1, max_tokens=20, ignore_end=True))
    assert generation.stats.drafted_by_drafter
    assert "gone" not in generation.stats.drafted_by_drafter


def test_another_pair_or_machine_starts_afresh(tmp_path: Path) -> None:
    learned(store(tmp_path))
    other_pair, other_machine = store(tmp_path, pair="b").read(), store(tmp_path, machine="n").read()
    assert other_pair.acceptance == {}
    assert other_pair.kept_passes
    assert other_machine.acceptance != {}
    assert not other_machine.kept_passes
    assert other_machine.draft_costs == {}


def test_a_pair_begins_with_what_is_known_of_its_target(tmp_path: Path) -> None:
    old = learned(store(tmp_path))
    pair = replace(store(tmp_path, pair="a and its draft", machine="both"), alone=store(tmp_path))
    assert pair.read().acceptance == old.acceptance
    assert pair.read().kept_passes[4][0] == pytest.approx(2.0)
    own = learned(pair)
    assert own.acceptance != old.acceptance
    assert pair.read().acceptance == own.acceptance, "its own, once it has run"
    assert store(tmp_path).read().acceptance == old.acceptance


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"x": {}}', "truncate", "foreign"])
@pytest.mark.parametrize("kind", ["acceptance", "costs"])
def test_a_damaged_or_foreign_file_is_as_if_there_were_none(tmp_path: Path, kind: str, damage: str) -> None:
    learned(store(tmp_path))
    (path,) = tmp_path.glob(f"{kind}-*.json")
    if damage == "truncate":
        damage = path.read_text("utf-8")[:-40]
    elif damage == "foreign":
        damage = json.dumps({"passes": {"1": [-3, 1]}, "drafts": {}, "time": 1.0})
    path.write_text(damage, "utf-8")
    found = store(tmp_path).read()
    if kind == "acceptance":
        assert found.acceptance == {}
    else:
        assert not found.kept_passes
    store(tmp_path).write(found)


def test_nothing_is_kept_without_a_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    learned(store(tmp_path / "file" / "plans"))


# -- memory ----------------------------------------------------------------------------------------------------------


def test_short_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [None, 2**20, 2**40]
    monkeypatch.setattr(memory, "available_bytes", lambda: answers.pop(0))
    assert [memory.is_short() for _ in range(3)] == [False, True, False]
