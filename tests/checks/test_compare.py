"""The comparer, with sides that are functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.turn import Message
from localspec.checks.compare import Answering, AskedTurn, Run, Side, TimedAnswer, ask, compare, fork, gain, tasks
from localspec.checks.prompts import BenchPrompt
from localspec.errors import ContextOverflowError, LocalspecError
from localspec.options import Options
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams

PROMPTS = [BenchPrompt(str(index), (Message("user", f"question {index}"),), index=index) for index in range(3)]


class Scripted:
    """Answers with the last message; keeps what it was asked."""

    def __init__(self, log: list[str], name: str, seconds: float = 1.0) -> None:
        self.log, self.name, self.seconds = log, name, seconds
        self.turns: list[AskedTurn] = []

    def answer(self, turn: AskedTurn) -> TimedAnswer:
        self.log.append(self.name)
        self.turns.append(turn)
        said = turn.messages[-1].content
        if said == "too long":
            raise ContextOverflowError("The prompt does not fit.")
        return TimedAnswer(f"re: {said}", 10, self.seconds)


def scripted(*names: str) -> tuple[list[str], list[Scripted], list[Side]]:
    log: list[str] = []
    found = [Scripted(log, name, float(1 + number)) for number, name in enumerate(names)]
    return log, found, [Side(one.name, one.answer) for one in found]


def test_every_side_is_first_as_often_as_the_others_and_rounds_are_outermost() -> None:
    log, _, sides = scripted("a", "b", "c")
    heats = list(compare(sides, tasks(PROMPTS, (0.0,), 8), rounds=2))
    assert "".join(log) == "abcbcacabbcacababc"
    assert [(heat.round, heat.number) for heat in heats] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_at_each_temperature_every_side_is_first_as_often_as_the_others() -> None:
    log, _, sides = scripted("a", "b")
    list(compare(sides, tasks(PROMPTS[:2], (0.0, 1.0), 8)))
    assert "".join(log) == "abbabaab"


def test_in_blocks_a_side_answers_several_before_it_is_anothers_turn() -> None:
    log, _, sides = scripted("a", "b")
    list(compare(sides, tasks(PROMPTS, (0.0,), 8), rounds=2, block=3))
    assert "".join(log) == "aaabbbbbbaaa"


def test_all_sides_have_the_same_seeds_and_every_prompt_and_turn_its_own() -> None:
    _, found, sides = scripted("a", "b")
    two = BenchPrompt("two", (Message("user", "one"), Message("user", "two")), index=7)
    list(compare(sides, tasks([*PROMPTS, two], (0.0, 1.0), 8, seed=5), rounds=2))
    first, second = ([turn.options.seed for turn in one.turns] for one in found)
    assert first == second
    assert set(first) == {5, 1005, 2005, 7005, 7006}
    last = found[0].turns[-1]
    assert [message.content for message in last.messages] == ["one", "re: one", "two"]
    assert not any(turn.options.recall or turn.options.remember for turn in found[0].turns)


def test_what_warms_up_does_not_count() -> None:
    log, found, sides = scripted("a", "b")
    heats = list(compare(sides, tasks(PROMPTS[:1], (0.0,), 8), rounds=2, warm=3))
    assert "".join(log) == "aabbba"
    assert [turn.options.max_tokens for turn in found[0].turns] == [3, 8, 8]
    assert len(heats) == 2


def test_progress_is_told_and_may_stop_with_what_is_finished() -> None:
    _, _, sides = scripted("a", "b")
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        told.append((done, total))
        if done == 3:
            raise KeyboardInterrupt

    heats = compare(sides, tasks(PROMPTS, (0.0,), 8), progress=progress)
    assert sorted(next(heats).runs) == ["a", "b"]
    with pytest.raises(KeyboardInterrupt):
        next(heats)
    assert told == [(0, 6), (1, 6), (2, 6), (3, 6)]


def test_a_prompt_that_does_not_fit_is_refused_and_a_conversation_that_outgrows_the_context_is_kept() -> None:
    log, _, sides = scripted("a", "b")
    first = BenchPrompt("first", (Message("user", "too long"),))
    later = BenchPrompt("later", (Message("user", "hi"), Message("user", "too long")))
    refused, kept = compare(sides, tasks([first, later], (0.0,), 8))
    assert isinstance(refused.refused, ContextOverflowError)
    assert refused.runs == {}
    assert log.count("b") == 2, "nobody else is asked what cannot be answered"
    assert [len(run.answers) for run in kept.runs.values()] == [1, 1]


def test_an_error_of_a_side_ends_all() -> None:
    def broken(turn: AskedTurn) -> TimedAnswer:
        raise LocalspecError("It is gone.")

    with pytest.raises(LocalspecError, match="gone"):
        list(compare([Side("broken", broken)], tasks(PROMPTS, (0.0,), 8)))


def test_of_conversations_apart_the_last_counts() -> None:
    _, found, sides = scripted("a")
    prompt = BenchPrompt("apart", (Message("user", "one"), Message("user", "two")), apart=True)
    (heat,) = compare(sides, tasks([prompt], (0.0,), 8))
    assert [len(turn.messages) for turn in found[0].turns] == [1, 1]
    assert [answer.text for answer in heat.runs["a"].answers] == ["re: two"]


def said(*answers: tuple[str, list[int]]) -> Run:
    return Run([], [TimedAnswer(text, len(ids), 1.0, ids=ids) for text, ids in answers])


@pytest.mark.parametrize(
    ("other", "where"),
    [
        (said(("ab", [1, 2]), ("cd", [3, 4])), None),
        (said(("ab", [1, 2]), ("cx", [3, 5])), (1, 1)),
        (said(("ab", [1, 2]), ("cd", [3, 4, 9])), (1, 2)),
        (said(("ab", [1, 2]), ("cd", [9, 4])), (1, 0)),
        (said(("ab", []), ("cd", [])), None),
        (said(("ab", []), ("cx", [])), (1, 0)),
        (said(("ab", [1, 2])), (1, 0)),
    ],
)
def test_the_first_fork(other: Run, where: tuple[int, int] | None) -> None:
    assert fork(said(("ab", [1, 2]), ("cd", [3, 4])), other) == where


def test_gain_is_the_ratio_of_times_a_token_of_the_same_prompts() -> None:
    _, _, sides = scripted("a", "b")
    heats = list(compare(sides, tasks(PROMPTS, (0.0,), 8), rounds=2))
    found = gain(heats, "a", "b")
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.over == "rounds"
    assert gain(heats, "a", "nobody") is None
    heats[0].runs["a"].answers[0].tokens = 5  # as fast by the token
    heats[0].runs["a"].answers[0].wall_seconds = 0.5
    again = gain(heats, "a", "b")
    assert again is not None
    assert again.value == pytest.approx(2.0)


def test_an_interrupted_answer_is_cancelled(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return 0.0

    options = Options(sampling=SamplingParams(temperature=0.0), seed=1, max_tokens=400, ignore_end=True)
    turn = AskedTurn((Message("user", "Tell me about the sea."),), options)
    with Engine.load(tiny_target, threads=1, context=512, tuned=False) as engine:
        monkeypatch.setattr("localspec.checks.compare.perf_counter", clock)
        with pytest.raises(KeyboardInterrupt):
            ask(engine, turn)
        assert not engine.running


def test_an_engine_answers_as_if_nothing_had_been_answered_before(tiny_target: Path) -> None:
    side = Answering(tiny_target, None, {"threads": 1, "context": 256, "exact": "off", "wide": False})
    try:
        turn = AskedTurn(
            (Message("user", "Hi"),), Options(sampling=SamplingParams(temperature=0.0), seed=1, max_tokens=8)
        )
        answers = [side.answer(turn) for _ in range(2)]
    finally:
        side.close()
    assert [answer.stats["reused_tokens"] for answer in answers] == [0, 0]
    assert answers[0].text == answers[1].text
    assert sum(tokens for _, tokens in answers[0].arrivals) == answers[0].tokens == len(answers[0].ids)
    assert 0 < answers[0].prefill_seconds < answers[0].ttft_seconds <= answers[0].wall_seconds
