"""Predicted text: where an answer is in it, and that prompt lookup drafts from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.search import Prediction, PromptLookup
from localspec.engine.interfaces import DraftRequest, History, Request
from localspec.engine.loop import Loop
from localspec.planning.plan import FixedPlan
from localspec.types import NO_TOKENS, Noise, SamplingParams, Tokens
from tests.fakes import Answer, FakeTarget, FakeVocabulary, HashModel, answer, draft_request, prompt

MODEL = HashModel(200, order=6)
VOCABULARY = FakeVocabulary(200)


def said(prediction: Prediction, history: list[int], count: int = 3) -> tuple[list[int], int]:
    tokens, matched = prediction.lookup(np.array(history, dtype=np.int32), count)
    return tokens.tolist(), matched


def test_the_answer_is_expected_to_begin_where_the_text_does_and_to_go_on() -> None:
    prediction = Prediction(prompt(*range(10, 20)), 2, 5, start=2)
    assert said(prediction, [7, 7]) == ([10, 11, 12], 5)
    assert said(prediction, [7, 7, 10]) == ([11, 12, 13], 6)
    assert said(prediction, [7, 7, 10, 11, 12, 13]) == ([14, 15, 16], 9)
    assert said(prediction, [7, 7, *range(10, 18)]) == ([18, 19], 13)
    assert said(prediction, [7, 7, *range(10, 20)]) == ([], 0)


def test_the_place_is_found_again_behind_what_was_inserted_left_out_or_changed() -> None:
    prediction = Prediction(prompt(*range(10, 30)), 2, 5, start=1)
    for history, expected in (
        ([1, 10, 11, 99], []),
        ([1, 10, 11, 99, 98], []),
        ([1, 10, 11, 99, 98, 12], []),
        ([1, 10, 11, 99, 98, 12, 13], [14, 15, 16]),
        ([1, 10, 11, 99, 98, 12, 13, 20], []),
        ([1, 10, 11, 99, 98, 12, 13, 20, 21, 22], [23, 24, 25]),
    ):
        assert said(prediction, history)[0] == expected


def test_of_equal_matches_the_next_place_is_taken() -> None:
    line = [5, 6, 7]
    prediction = Prediction(prompt(*line, 1, *line, 2, *line, 3, *line, 4), 2, 3, start=0)
    assert said(prediction, [*line, 1], 1) == ([5], 7)
    assert said(prediction, [*line, 1, 90], 1) == ([], 0)
    assert said(prediction, [*line, 1, 90, *line], 1) == ([2], 3), "not the first, not the last one"


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 5),
)
def test_whatever_is_said_what_is_expected_stands_behind_a_match(
    text: list[int], said_later: list[list[int]], shortest: int, more: int, count: int
) -> None:
    prediction = Prediction(prompt(*text), shortest, shortest + more, start=2)
    history = [0, 1]
    for piece in [[], *said_later]:
        history += piece
        expected, matched = said(prediction, history, count)
        assert bool(expected) == bool(matched)
        if not matched or len(history) == 2:
            continue
        end = history[-min(matched, len(history) - 2, shortest) :]
        ends = [place for place in range(len(text) + 1) if text[max(0, place - len(end)) : place] == end]
        assert any(text[place : place + count] == expected for place in ends)


# -- through prompt lookup -------------------------------------------------------------------------------------------


def ask(history: History, prediction: Tokens = NO_TOKENS, nodes: int = 4) -> DraftRequest:
    return draft_request(0, history, nodes, nodes, SamplingParams(), Noise(1), prediction=prediction)


def test_prediction_is_preferred_unless_the_conversation_matches_longer() -> None:
    expected = prompt(50, 51, 52, 53, 54)
    drafter, history = PromptLookup(), History([1, 2, 3, 1, 2])
    assert drafter.draft([ask(history)])[0].origin == "lookup"
    (draft,) = drafter.draft([ask(history, expected)])
    assert (draft.tokens.tolist(), draft.origin) == ([50, 51, 52, 53], "prediction")
    history.append([9, 1, 2])
    (draft,) = drafter.draft([ask(history, expected)])
    assert (draft.tokens[:1].tolist(), draft.origin) == ([9], "lookup")
    assert drafter.draft([ask(History([1, 2, 3, 1, 2]))])[0].origin == "lookup", "the next request has none"


def test_an_edited_history_is_followed_again() -> None:
    expected = prompt(*range(50, 70))
    drafter, history = PromptLookup(), History([1])
    for token in (50, 51, 52):
        drafter.draft([ask(history, expected)])
        history.append([token])
    history.truncate(2)
    history.append([60, 61])
    drafter.draft([ask(history, expected)])
    history.append([62])
    assert drafter.draft([ask(history, expected)])[0].tokens.tolist() == [63, 64, 65, 66]


def answered(request: Request) -> Answer:
    return answer(Loop(FakeTarget(MODEL, 200), FixedPlan([PromptLookup()], 7, None), VOCABULARY), request)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_prediction_changes_the_speed_and_never_the_text(temperature: float) -> None:
    sampling = SamplingParams(temperature=temperature)
    request = Request(prompt(3, 1, 4), sampling=sampling, seed=7, max_tokens=120, ignore_end=True)
    plain = answered(request)
    edited = np.array(plain.tokens, dtype=np.int32)
    edited[[20, 50, 51]] = 199, 198, 197
    right = answered(replace(request, prediction=np.delete(edited, range(80, 84))))
    wrong = answered(replace(request, prediction=edited[::-1].copy()))
    assert right.tokens == wrong.tokens == plain.tokens
    assert right.text == plain.text
    assert right.stats.accepted_by_drafter["prediction"] > 80
    assert right.stats.passes < 0.4 * plain.stats.passes
    assert {origin.drafter for origin in right.origins} >= {"", "prediction"}
