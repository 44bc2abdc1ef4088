"""The benchmark's own sides with the bundled pair: turns, texts, and what is learned where."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import Engine
from localspec.bench.report import make_cells
from localspec.bench.sides import EngineSide, engine_sides, possible_drafters
from localspec.checks.compare import AskedTurn, Heat, Side, TimedAnswer, compare, tasks
from localspec.checks.prompts import BenchPrompt, load_workloads
from localspec.errors import UsageError
from localspec.options import Options
from localspec.types import SamplingParams

TOKENS = 24


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(threads=1, tuned=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def sides(engine: Engine) -> list[EngineSide]:
    return engine_sides(engine, ["draft", "lookup"], [3])


def measured(
    sides: list[EngineSide], prompts: list[BenchPrompt], temperatures: tuple[float, ...], most: int
) -> list[Heat]:
    return list(compare([Side(one.name, one.answer, one.begin) for one in sides], tasks(prompts, temperatures, most)))


@pytest.fixture(scope="module")
def heats(sides: list[EngineSide]) -> list[Heat]:
    """A whole benchmark."""
    workloads = load_workloads(["copy", "multi-turn", "random"], limit=2)
    return measured(sides, [prompt for several in workloads.values() for prompt in several], (0.0, 1.0), TOKENS)


def answers(heats: list[Heat], side: str) -> list[TimedAnswer]:
    return [answer for heat in heats for answer in heat.runs[side].answers]


def test_every_side_answers_every_prompt(heats: list[Heat]) -> None:
    assert len(heats) == 3 * 2 * 2
    cells = make_cells(heats)
    assert [(cell.workload, cell.temperature) for cell in cells] == [
        (name, temperature) for temperature in (0.0, 1.0) for name in ("copy", "multi-turn", "random")
    ]
    assert all(cell.sides == ["plain", "localspec", "draft 3", "lookup 3"] for cell in cells)


def test_texts_are_plain_decodings(heats: list[Heat]) -> None:
    for cell in make_cells(heats):
        for side in cell.sides:
            assert cell.figures(side)["exact"]
            assert (cell.forks(side), cell.figures(side)["runs"]) == (0, 2)


def test_plain_drafts_nothing_and_fixed_lengths_draft_theirs(heats: list[Heat]) -> None:
    assert sum(answer.stats["drafted"] for answer in answers(heats, "plain")) == 0
    for name in ("draft", "lookup"):
        stats = [answer.stats for answer in answers(heats, f"{name} 3")]
        assert {drafter for one in stats for drafter in one["drafted_by_drafter"]} == {name}
        assert max(int(accepted) for one in stats for accepted in one["accepted_histogram"]) <= 3
    stats = [answer.stats for answer in answers(heats, "draft 3")]
    assert sum(one["drafted"] for one in stats) > 3 * sum(one["passes"] for one in stats) / 2


def test_every_turn_is_answered_and_timed(heats: list[Heat]) -> None:
    for heat in heats:
        for run in heat.runs.values():
            assert len(run.answers) == (4 if heat.task.prompt.workload == "multi-turn" else 1)
            for answer in run.answers:
                assert sum(tokens for _, tokens in answer.arrivals) == answer.tokens == answer.stats["generated_tokens"]
                assert 0 < answer.prefill_seconds < answer.ttft_seconds <= answer.wall_seconds
            if heat.task.prompt.workload == "random":
                assert run.answers[0].tokens == TOKENS


def test_nothing_is_reused_between_runs_but_turns_reuse_each_other(heats: list[Heat]) -> None:
    for run in (run for heat in heats for run in heat.runs.values()):
        first, *others = (answer.stats["reused_tokens"] for answer in run.answers)
        assert first == 0
        assert all(others)


def test_forced_drafts_are_no_experience_of_the_plan(engine: Engine, sides: list[EngineSide]) -> None:
    plain, product, draft, lookup = sides
    prompt = BenchPrompt("numbers", text="1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
    options = Options(sampling=SamplingParams(temperature=1.0), seed=1, max_tokens=24, ignore_end=True)
    turn = AskedTurn((), options, prompt.text)
    product.begin(prompt)
    knowledge = engine.loaded.knowledge
    known = knowledge.acceptance
    trials = copy.deepcopy(known)
    for forced in (draft, lookup):
        forced.begin(prompt)
        assert forced.answer(turn).stats["drafted"] > 24
        assert knowledge.acceptance is not known
    plain.begin(prompt)
    assert knowledge.acceptance is known
    assert known == trials


def test_of_conversations_apart_the_last_is_measured_and_what_was_answered_before_is_found(engine: Engine) -> None:
    several = engine_sides(engine, ["suffix"], [4])
    (heat,) = measured(several, load_workloads(["again"], limit=1)["again"], (0.0,), 40)
    assert {len(run.answers) for run in heat.runs.values()} == {1}
    assert len({run.answers[0].text for run in heat.runs.values()}) == 1
    stats = heat.runs["suffix 4"].answers[0].stats
    assert stats["accepted"] > 0.6 * stats["generated_tokens"], "the same question got the same answer before"
    for one in several:
        one.close()
    assert engine.loaded.corpus is None


def test_a_draft_model_that_is_not_there(tiny_target: Path) -> None:
    with Engine.load(tiny_target, threads=1, context=256, tuned=False) as engine:
        assert possible_drafters(engine) == ["lookup", "suffix", "habits"]
        assert engine.drafters == ("grammar", "lookup", "suffix", "habits")
        with pytest.raises(UsageError, match="needs a draft model"):
            engine_sides(engine, ["draft"], [2])
