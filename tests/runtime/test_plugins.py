"""Drafters from outside in an engine on fakes: they guess beside its own, and the answer goes on without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.runtime.engine import Engine
from localspec.types import Rule
from tests.drafters import plug_ins
from tests.runtime.fake_engine import alone, make, read, request

HERE = plug_ins.__name__
TIRED = "it raised RuntimeError('no more ideas') in `draft`"


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with a free drafter, one that costs, and one that cannot be made."""
    places = {"tiring": f"{HERE}:Tiring", "slow": f"{HERE}:Slow", "unborn": f"{HERE}:Unborn"}
    plug_ins.offer(tmp_path, monkeypatch, **places)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "localspec"]


@pytest.mark.usefixtures("offered")
def test_installed_ones_join_the_others_and_one_that_cannot_be_made_is_said_once(
    engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = make(drafter="auto")
    engines.append(engine)
    assert {"lookup", "tiring", "slow", "draft"} <= set(engine.drafters)
    assert engine.drafters[-1] == "draft", "a fixed plan asks it last"
    assert list(engine.dropped) == ["unborn"]
    engine.configure(max_draft_tokens=2)
    (line,) = said(caplog)
    assert "unborn cannot be made: OSError: its weights are not there. Answers go on without it." in line


@pytest.mark.usefixtures("offered")
def test_one_that_fails_in_mid_answer_is_dropped_and_the_answer_goes_on(
    engines: list[Engine], caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = make(drafter="auto", max_draft_tokens=3)
    engines.append(engine)
    caplog.clear()
    assert read(engine.submit(request(1, 30))).tokens == alone(request(1, 30))
    assert engine.dropped["tiring"] == TIRED
    assert f"The drafter tiring is not used any more: {TIRED}." in said(caplog)
    assert read(engine.submit(request(2, 30))).tokens == alone(request(2, 30))
    assert len([line for line in said(caplog) if "tiring" in line]) == 1


@pytest.mark.usefixtures("offered")
def test_one_that_costs_and_fails_leaves_the_draft_model_alone(engines: list[Engine]) -> None:
    engine, _ = make(drafter="auto", max_draft_tokens=3)
    engines.append(engine)
    answer = read(engine.submit(replace(request(1, 30), drafter="slow")))
    assert answer.tokens == alone(request(1, 30))
    assert answer.stats.drafted_by_drafter["slow"] > 0
    assert engine.dropped["slow"] == TIRED
    assert engine.loaded.draft_context is not None
    answer = read(engine.submit(replace(request(2, 30), drafter="draft")))
    assert answer.tokens == alone(request(2, 30))
    assert answer.stats.drafted_by_drafter.keys() == {"draft"}


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_a_fixed_plan_goes_on_without_it(rule: Rule, engines: list[Engine]) -> None:
    engine, _ = make(drafter=f"{HERE}:Tiring", max_draft_tokens=3)
    engines.append(engine)
    assert engine.drafters == ("tiring",)
    answer = read(engine.submit(replace(request(1, 30), rule=rule)))
    assert len(answer.tokens) == 30
    assert engine.dropped == {"tiring": TIRED}
    assert answer.stats.drafted_by_drafter["tiring"] > 0


def test_it_drafts_for_several_slots_and_nobody_notices_that_it_fails(engines: list[Engine]) -> None:
    engine, _ = make(3, drafter=f"{HERE}:Tiring", max_draft_tokens=2)
    engines.append(engine)
    running = [engine.submit(request(seed, 20)) for seed in range(3)]
    assert [read(one).tokens for one in running] == [alone(request(seed, 20)) for seed in range(3)]
    assert engine.dropped == {"tiring": TIRED}


@pytest.mark.parametrize("kind", ["Meddling", "Reusing"])
def test_what_it_does_to_conversations_and_guesses_does_not_change_the_text(kind: str, engines: list[Engine]) -> None:
    engine, _ = make(drafter=f"{HERE}:{kind}", max_draft_tokens=3)
    engines.append(engine)
    assert read(engine.submit(request(4, 25))).tokens == alone(request(4, 25))
    assert bool(engine.dropped) == (kind == "Meddling")


def test_a_change_to_one_that_cannot_be_made_changes_nothing(engines: list[Engine]) -> None:
    engine, _ = make(drafter="lookup")
    engines.append(engine)
    for kind, words in (("Unborn", "cannot be made"), ("Nobody", "has no Nobody")):
        with pytest.raises(UsageError, match=words):
            engine.configure(drafter=f"{HERE}:{kind}")
    assert engine.settings.drafter == "lookup"
    assert read(engine.submit(request(1))).tokens == alone(request(1))
    with pytest.raises(UsageError, match="no drafter called 'tiring' here"):
        engine.submit(replace(request(1), drafter="tiring"))
