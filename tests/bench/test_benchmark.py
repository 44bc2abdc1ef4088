"""The benchmark with the bundled pair: turns, texts, logs, and going on after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from localspec import Engine
from localspec.bench.contest.benchmark import Benchmark, BenchSettings
from localspec.bench.contest.contenders import engine_contenders, possible_drafters
from localspec.bench.contest.run import Contender, Session, Turn
from localspec.bench.contest.workloads import load_workloads
from localspec.bench.results.cells import make_cells
from localspec.errors import ContextOverflowError, UsageError
from localspec.options import Options
from localspec.types import SamplingParams

SETTINGS = BenchSettings((0.0, 1.0), tokens=24, rounds=1)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(threads=1, tuned=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def contenders(engine: Engine) -> list[Contender]:
    return engine_contenders(engine, ["draft", "lookup"], [3])


@pytest.fixture(scope="module")
def benchmark(engine: Engine, contenders: list[Contender]) -> Benchmark:
    return Benchmark(engine, contenders, load_workloads(["copy", "multi-turn", "random"], limit=2), SETTINGS)


@pytest.fixture(scope="module")
def session(benchmark: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A whole benchmark."""
    with Session.open(tmp_path_factory.mktemp("bench") / "session.jsonl") as session:
        benchmark.measure(session)
        yield session


def test_every_contender_answers_every_prompt(benchmark: Benchmark, session: Session) -> None:
    assert len(benchmark.runs) == 3 * 2 * 2 * 4
    assert benchmark.left(session) == []
    assert benchmark.found(session) == list(session.runs.values())
    cells = make_cells(benchmark.found(session))
    assert [(cell.workload, cell.temperature) for cell in cells] == [
        (name, temperature) for temperature in (0.0, 1.0) for name in ("copy", "multi-turn", "random")
    ]
    assert all(list(cell.contenders) == list(cells[0].contenders) for cell in cells)


def test_who_is_first_changes(benchmark: Benchmark) -> None:
    firsts = {planned.key.contender for planned in benchmark.runs[::4]}
    assert len(firsts) > 1


def test_texts_are_plain_decodings(benchmark: Benchmark, session: Session) -> None:
    for cell in make_cells(benchmark.found(session)):
        for name, figures in cell.contenders.items():
            assert figures.exact
            assert cell.forks(name) == (0, 2)


def test_plain_drafts_nothing_and_fixed_lengths_draft_theirs(benchmark: Benchmark, session: Session) -> None:
    by_name = {name: [run for run in session.runs.values() if run.key.contender == name] for name in (
        "plain", "draft 3", "lookup 3")}  # fmt: skip
    for run in by_name["plain"]:
        assert all(one.drafted == 0 for answer in run.answers for one in answer.passes)
    for name in ("draft 3", "lookup 3"):
        lengths = [one.drafted for run in by_name[name] for answer in run.answers for one in answer.passes]
        assert max(lengths) == 3
    drafts = [one for run in by_name["draft 3"] for answer in run.answers for one in answer.passes]
    assert sum(one.drafted == 3 for one in drafts) > len(drafts) / 2
    assert {one.drafter for one in drafts} <= {"draft", ""}


def test_the_log_adds_up(session: Session) -> None:
    for run in session.runs.values():
        assert len(run.answers) == (4 if run.key.workload == "multi-turn" else 1)
        for answer in run.answers:
            assert sum(one.accepted + 1 for one in answer.passes) >= answer.tokens
            assert sum(tokens for _, tokens in answer.arrivals) == answer.tokens == answer.stats["generated_tokens"]
            assert 0 < answer.prefill_seconds < answer.ttft_seconds <= answer.wall_seconds
            assert 0 < sum(one.seconds for one in answer.passes) < answer.decode_seconds
            assert answer.costs["passes"][1] > 0
        if run.key.workload == "random":
            assert run.answers[0].tokens == SETTINGS.tokens


def test_nothing_is_reused_between_runs_but_turns_reuse_each_other(session: Session) -> None:
    for run in session.runs.values():
        first, *others = (answer.stats["reused_tokens"] for answer in run.answers)
        assert first == 0
        assert all(others)


def test_the_clairvoyant_is_never_slower(benchmark: Benchmark, session: Session) -> None:
    for cell in make_cells(benchmark.found(session)):
        limit = cell.limit
        assert limit is not None
        assert limit.speedup >= 1.0
        assert limit.known > 0.5


def test_an_interrupted_benchmark_goes_on(benchmark: Benchmark, session: Session, tmp_path: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    path = tmp_path / "session.jsonl"
    with Session.open(path) as short, pytest.raises(KeyboardInterrupt):
        benchmark.measure(short, stop)
    steps: list[int] = []
    with Session.open(path) as again:
        assert list(again.runs) == [planned.key for planned in benchmark.runs[:3]]
        before = dict(again.runs)
        with pytest.raises(KeyboardInterrupt):
            benchmark.measure(again, lambda what, done, total: steps.append(done) if done < 5 else stop(what, 3, total))
        assert steps == [3, 4]
        assert len(again.runs) == 5
        assert all(again.runs[key] == run for key, run in before.items())
    for key, run in again.runs.items():
        assert run.texts == session.runs[key].texts


def test_forced_drafts_are_no_experience_of_the_plan(engine: Engine, contenders: list[Contender]) -> None:
    plain, product, draft, lookup = contenders
    prompt = engine.tokenize("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16")
    options = Options(sampling=SamplingParams(temperature=1.0), seed=1, max_tokens=24, ignore_end=True)
    turn = Turn((), "", prompt, options)
    product.begin()
    knowledge = engine.loaded.knowledge
    known = knowledge.acceptance
    trials = deepcopy(known)
    for forced in (draft, lookup):
        forced.begin()
        assert forced.answer(turn).stats["drafted"] > 24
        assert knowledge.acceptance is not known
    plain.begin()
    assert knowledge.acceptance is known
    assert known == trials


def test_of_conversations_apart_the_last_is_measured_and_what_was_answered_before_is_found(
    engine: Engine, tmp_path: Path
) -> None:
    several = engine_contenders(engine, ["suffix"], [4])
    workloads = load_workloads(["again"], limit=1)
    benchmark = Benchmark(engine, several, workloads, BenchSettings((0.0,), tokens=40, rounds=1))
    with Session.open(tmp_path / "apart.jsonl") as session:
        benchmark.measure(session)
        runs = {run.key.contender: run for run in benchmark.found(session)}
    assert {len(run.answers) for run in runs.values()} == {1}
    assert {tuple(run.texts) for run in runs.values()} == {tuple(runs["plain"].texts)}
    stats = runs["suffix 4"].answers[0].stats
    assert stats["accepted"] > 0.6 * stats["generated_tokens"], "the same question got the same answer before"
    for one in several:
        one.close()
    assert engine.loaded.corpus is None


def test_other_settings_are_other_runs(engine: Engine, contenders: list[Contender], benchmark: Benchmark) -> None:
    workloads = load_workloads(["copy"], limit=1)
    keys = {planned.key for planned in benchmark.runs}
    same = Benchmark(engine, contenders, workloads, BenchSettings((0.0,), tokens=24, rounds=1))
    other = Benchmark(engine, contenders, workloads, BenchSettings((0.0,), tokens=25, rounds=1))
    assert {planned.key for planned in same.runs} <= keys
    assert not {planned.key for planned in other.runs} & keys
    assert same.name != other.name


def test_a_prompt_that_does_not_fit_is_named(tmp_path: Path) -> None:
    with Engine.load(threads=1, context=256, drafter="none", tuned=False) as engine:
        benchmark = Benchmark(engine, engine_contenders(engine), load_workloads(["long-code"], limit=1), SETTINGS)
        with Session.open(tmp_path / "s.jsonl") as session, pytest.raises(ContextOverflowError, match="long-code"):
            benchmark.measure(session)


def test_a_draft_model_that_is_not_there(tiny_target: Path) -> None:
    with Engine.load(tiny_target, threads=1, context=256, tuned=False) as engine:
        assert possible_drafters(engine) == ["lookup", "suffix", "recycling"]
        assert engine.drafters == ("grammar", "lookup", "suffix", "recycling")
        with pytest.raises(UsageError, match="needs a draft model"):
            engine_contenders(engine, ["draft"], [2])


@pytest.mark.parametrize(
    "wrong", [{"temperatures": ()}, {"temperatures": (-1.0,)}, {"tokens": 0}, {"rounds": 0}, {"seed": -1}]
)
def test_impossible_settings(wrong: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong)).rstrip("s")):
        BenchSettings(**wrong)  # type: ignore[arg-type]
