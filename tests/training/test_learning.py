"""Training: what it learns from, that it learns, and that a run which is cut off goes on as if it had not been."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.cut import VocabPart, Weights, read_shape
from localspec.errors import LocalspecError, ModelFileError
from localspec.gguf import Header
from localspec.training.answers import LONGEST, TOP, TeacherAnswer

torch = pytest.importorskip("torch")

from localspec.training.learning import (  # noqa: E402 - needs torch
    StudentModel,
    Training,
    example,
    loss_of,
    weight_of,
)

SECONDS = 3600.0
"""Of training, as far as the learning rate knows: the tests stop after some steps."""


def answers(part: VocabPart, count: int = 24) -> list[TeacherAnswer]:
    """Answers that count on from token to token of the part, as sure as can be."""
    made = []
    for number in range(count):
        tokens = part.ids[[(7 * number + step) % 40 + 300 for step in range(30)]]
        ids = np.tile(part.ids[:TOP], (20, 1)).astype(np.int32)
        ids[:, 0] = tokens[10:]
        chances = np.full((20, TOP), -20.0, dtype=np.float16)
        chances[:, 0] = 0.0
        made.append(TeacherAnswer(tokens, 10, ids, chances))
    return made


def model_of(header: Header, part: VocabPart) -> StudentModel:
    torch.manual_seed(0)
    return StudentModel(read_shape(header), Weights(header), part, [0, 5])


def steps(training: Training, count: int) -> None:
    """Trains for so many steps, then stops as Ctrl-C does."""
    last = training.progress.step + count

    def told(progress: Any) -> None:
        if progress.step >= last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.run(SECONDS, told)


def test_an_answer_is_read_in_tokens_of_the_part(header: Header, part: VocabPart) -> None:
    outside = next(token for token in range(300, 4096) if part.places[token] < 0 and header.token_types[token] == 1)
    inside = int(part.ids[400])
    tokens = np.array([inside, outside, inside, outside, inside], dtype=np.int32)
    ids = np.full((3, TOP), outside, dtype=np.int32)
    ids[:, 1] = inside
    chances = np.log(np.full((3, TOP), 0.25)).astype(np.float16)
    found = example(TeacherAnswer(tokens, 2, ids, chances), part)
    assert found is not None
    pieces = part.pieces(outside)
    place = int(part.places[inside])
    assert found.tokens.tolist() == [place, *pieces, place, *pieces, place]
    assert found.places.tolist() == [len(pieces), len(pieces) + 1, 2 * len(pieces) + 1], "after the token before"
    assert found.chances[:, 0].tolist() == [0.0] * 3, "a token outside the part cannot be guessed"
    np.testing.assert_allclose(found.chances[:, 1].numpy(), 0.25, rtol=1e-3)
    assert (found.ids[:, 1] == place).all()


def test_a_long_answer_keeps_its_end(part: VocabPart) -> None:
    tokens = part.ids[np.arange(1000) % 500].astype(np.int32)
    ids, chances = np.zeros((990, TOP), dtype=np.int32), np.zeros((990, TOP), dtype=np.float16)
    found = example(TeacherAnswer(tokens, 10, ids, chances), part)
    assert found is not None
    assert len(found.tokens) == LONGEST
    assert found.places.tolist() == list(range(LONGEST - 1))
    assert len(found.ids) == LONGEST - 1


def test_tokens_weigh_what_answers_use_them(part: VocabPart) -> None:
    found = weight_of(answers(part, 2), 4096)
    assert found[part.ids[307]] > 1.0
    assert found.sum() == pytest.approx(2 * (20 + 10), rel=1e-3)


def test_it_learns_and_guesses_what_it_learned(header: Header, part: VocabPart, tmp_path: Path) -> None:
    model, found = model_of(header, part), answers(part)
    examples = [one for answer in found if (one := example(answer, part)) is not None]
    with torch.no_grad():
        before = float(loss_of(model, examples[:8]))
    training = Training(model, examples, tmp_path / "checkpoint.pt", SECONDS)
    steps(training, 45)
    with torch.no_grad():
        after = float(loss_of(model, examples[:8]))
        one = examples[3]
        guesses = model.logits(model(one.tokens[None])[0][one.places]).argmax(-1)
    assert after < 0.2 * before
    assert (guesses == one.ids[:, 0]).float().mean() > 0.9
    assert training.progress.loss < before
    assert len(training.progress.losses) == 2


def test_a_run_that_was_cut_off_goes_on_as_if_it_had_not_been(header: Header, part: VocabPart, tmp_path: Path) -> None:
    examples = [one for answer in answers(part) if (one := example(answer, part)) is not None]
    learned = []
    for name, cuts in (("whole", (12,)), ("cut", (5, 4, 3))):
        for cut in cuts:
            training = Training(model_of(header, part), examples, tmp_path / name, SECONDS)
            assert not (name == "whole" and training.progress.step)
            steps(training, cut)
        learned.append((training.progress.step, training.progress.loss))
    assert learned[0][0] == learned[1][0] == 12
    assert math.isclose(learned[0][1], learned[1][1], rel_tol=0.02), "the learning rate follows the clock"


def test_a_damaged_checkpoint_is_one_sentence(header: Header, part: VocabPart, tmp_path: Path) -> None:
    examples = [one for answer in answers(part) if (one := example(answer, part)) is not None]
    file = tmp_path / "checkpoint.pt"
    steps(Training(model_of(header, part), examples, file, SECONDS), 1)
    whole = file.read_bytes()
    for damaged in (whole[:5000], b"", b"nothing", whole[:-3000]):
        file.write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"checkpoint\.pt cannot be read: "):
            Training(model_of(header, part), examples, file, SECONDS)
    file.write_bytes(whole)
    other = StudentModel(read_shape(header), Weights(header), part, [0])
    with pytest.raises(ModelFileError, match=r"checkpoint\.pt cannot be read: "):
        Training(other, examples, file, SECONDS)


def test_a_checkpoint_that_cannot_be_written_is_one_sentence(header: Header, part: VocabPart, tmp_path: Path) -> None:
    examples = [one for answer in answers(part) if (one := example(answer, part)) is not None]
    training = Training(model_of(header, part), examples, tmp_path / "nowhere" / "checkpoint.pt", SECONDS)
    with pytest.raises(LocalspecError, match=r"checkpoint\.pt cannot be written: "):
        training.save()
