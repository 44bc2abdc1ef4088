"""Answers of a target and what it found likely: they can be read again, and a run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec import Engine
from localspec.chat.turn import Message
from localspec.checks.prompts import Conversation, prompt_tokens, shipped
from localspec.errors import LocalspecError, ModelFileError, UsageError
from localspec.training import answers
from localspec.types import Tokens


class Enough(Exception):
    """A piece is written."""


def enough(seconds: float) -> None:
    raise Enough


def write(engine: Engine, folder: Path) -> list[tuple[int, float]]:
    """One piece."""
    told: list[tuple[int, float]] = []
    with pytest.raises(Enough):
        answers.write(engine, list(shipped()), folder, 600.0, lambda *one: told.append(one), enough)
    return told


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIECE": 6, "SLOTS": 2, "MOST_TOKENS": 24}.items():
        monkeypatch.setattr(answers, name, value)


@pytest.mark.usefixtures("small")
def test_they_are_what_the_target_says_and_finds_likely(tiny_target: Path, tmp_path: Path) -> None:
    with Engine.load(tiny_target, slots=2, context=answers.CONTEXT) as engine:
        told = write(engine, tmp_path)
        found = list(answers.read(tmp_path))
        assert len(found) == len(told) == 6
        assert told[-1][0] == sum(len(one.tokens) - one.prompt for one in found)
        one = found[0]
        assert one.ids.shape == one.chances.shape == (len(one.tokens) - one.prompt, answers.TOP)
        scores = engine.score(one.tokens, answers.TOP)[-len(one.ids) :]
        for place, score in enumerate(scores):
            assert score.token == one.tokens[one.prompt + place]
            likely = [chance for _, chance in score.top]
            np.testing.assert_allclose(one.chances[place], likely, rtol=2e-2, atol=2e-2)
        greedy = next(one for one in found if (one.ids[:, 0] == one.tokens[one.prompt :]).all())
        assert len(greedy.ids) > 0

        write(engine, tmp_path)
        again = list(answers.read(tmp_path))
        assert [path.name for path in answers.pieces(tmp_path)] == [f"answers-0000{n}.safetensors" for n in range(2)]
        assert len(again) == 12
        assert len({one.tokens.tobytes() for one in again}) == 12, "each of another prompt"


@pytest.mark.usefixtures("small")
def test_prompts_that_fill_the_context_are_one_sentence(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "CONTEXT", 25)
    prompts = list(shipped())[:20]
    with Engine.load(tiny_target, slots=2, context=64) as engine, pytest.raises(LocalspecError) as error:
        answers.write(engine, prompts, tmp_path, 600.0, lambda *one: None, lambda seconds: None)
    why = "each fills 25 tokens by itself, or the target's chat template refuses it"
    assert error.value.message == f"None of 20 prompts could be answered: {why}."


@pytest.mark.usefixtures("small")
def test_a_piece_without_an_answer_is_passed_over(tiny_target: Path, tmp_path: Path) -> None:
    long = [(Message("user", f"{number} " + "word " * answers.CONTEXT),) for number in range(12)]
    for _ in range(2):
        with Engine.load(tiny_target, slots=2, context=answers.CONTEXT) as engine, pytest.raises(Enough):
            answers.write(engine, [*long, *list(shipped())[:6]], tmp_path, 600.0, lambda *one: None, enough)
    assert [path.name for path in answers.pieces(tmp_path)] == [f"answers-0000{n}.safetensors" for n in (2, 5)]
    assert len(list(answers.read(tmp_path))) == 12


@pytest.mark.usefixtures("small")
def test_a_prompt_that_the_template_refuses_is_left_out(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(engine: Engine, prompt: Conversation) -> Tokens:
        if prompt == one:
            raise UsageError("The model's chat template refuses these messages: roles must alternate.")
        return prompt_tokens(engine, prompt)

    one = next(shipped())
    monkeypatch.setattr("localspec.training.answers.prompt_tokens", refusing)
    with Engine.load(tiny_target, slots=2, context=answers.CONTEXT) as engine:
        write(engine, tmp_path)
    assert len(list(answers.read(tmp_path))) == 5


def test_after_the_end_of_the_time_nothing_more_is_asked(
    tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_TOKENS", 8)
    with Engine.load(tiny_target, slots=answers.SLOTS, context=answers.CONTEXT) as engine:
        for count in (8, 16):
            answers.write(engine, list(shipped()), tmp_path, 1e-3, lambda *one: None, lambda seconds: None)
            found = list(answers.read(tmp_path))
            assert len(found) == len({one.tokens.tobytes() for one in found}) == count


@pytest.mark.usefixtures("small")
def test_a_stop_keeps_what_was_answered(tiny_target: Path, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with Engine.load(tiny_target, slots=2, context=answers.CONTEXT) as engine:
        write(engine, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            answers.write(engine, list(shipped()), tmp_path, 60.0, stop, lambda seconds: None)
        assert len(list(answers.read(tmp_path))) == 7
        assert not engine.running or all(one.cancelled for one in engine.running.values())


@pytest.mark.usefixtures("small")
def test_a_damaged_piece_is_named(tiny_target: Path, tmp_path: Path) -> None:
    with Engine.load(tiny_target, slots=2, context=answers.CONTEXT) as engine:
        write(engine, tmp_path)
    (path,) = answers.pieces(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=path.name):
        list(answers.read(tmp_path))
