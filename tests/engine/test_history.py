"""`History`, `Draft` and `Request`: what every drafter may rely on."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Request
from localspec.errors import UsageError
from localspec.types import Noise, SamplingParams, SparseProbs
from tests.fakes import draft_request, prompt

edits = st.lists(st.lists(st.integers(0, 9), max_size=5) | st.integers(0, 400), max_size=30)


@given(start=st.lists(st.integers(0, 9), max_size=5), edits=edits)
def test_history_is_a_list_that_says_when_its_middle_changed(start: list[int], edits: list[list[int] | int]) -> None:
    history, expected = History(start), list(start)
    for edit in edits:
        before, epoch, old = history.tokens, history.epoch, list(expected)
        if isinstance(edit, list):
            history.append(edit)
            expected += edit
            assert history.epoch == epoch
        else:
            length = edit % (len(expected) + 1)
            history.truncate(length)
            assert (history.epoch != epoch) == (length < len(expected))
            del expected[length:]
        assert history.tokens.tolist() == expected
        assert len(history) == len(expected)
        assert before.tolist() == old, "a view taken before changed"


def test_an_older_view_survives_truncating_and_growing_again() -> None:
    history = History([1, 2, 3])
    view = history.tokens
    history.truncate(1)
    history.append([9, 9])
    assert view.tolist() == [1, 2, 3]
    assert history.tokens.tolist() == [1, 9, 9]


def test_history_views_cannot_be_written_and_the_source_is_copied() -> None:
    source = prompt(1, 2)
    history = History(source)
    source[0] = 7
    assert history.tokens.tolist() == [1, 2]
    assert history.tokens.dtype == np.int32
    with pytest.raises(ValueError):
        history.tokens[0] = 5


@pytest.mark.parametrize("length", [-1, 3])
def test_history_refuses_to_truncate_outside(length: int) -> None:
    with pytest.raises(UsageError, match=f"2 tokens to {length}"):
        History([1, 2]).truncate(length)


def test_a_chain_has_every_token_below_the_one_before() -> None:
    draft = Draft.chain([4, 5, 6], origin="x")
    assert draft.parents.tolist() == [-1, 0, 1]
    assert draft.tokens.dtype == draft.parents.dtype == np.int32
    assert len(draft) == 3
    assert draft.origin == "x"


def test_a_draft_cut_short_keeps_what_belongs_to_its_nodes() -> None:
    probs = tuple(SparseProbs(prompt(token), np.ones(1)) for token in (4, 5, 6))
    draft = Draft(prompt(4, 5, 6), prompt(-1, -1, 0), probs, np.array([3, 2, 1], dtype=np.float32), "x")
    cut = draft.truncated(2)
    assert cut.tokens.tolist() == [4, 5]
    assert cut.parents.tolist() == [-1, -1]
    assert cut.probs == probs[:2]
    assert cut.confidence is not None
    assert cut.confidence.tolist() == [3, 2]
    assert cut.origin == "x"
    assert draft.truncated(3) is draft
    assert draft.truncated(9) is draft


def test_an_empty_draft_is_legal_and_false() -> None:
    assert not EMPTY_DRAFT
    assert len(Draft.chain([])) == 0
    assert EMPTY_DRAFT.tokens.dtype == np.int32
    assert not EMPTY_DRAFT.tokens.flags.writeable, "all empty drafts share it"


def test_a_request_for_a_draft_never_stops_early_by_default() -> None:
    request = draft_request(0, History([1]), 4, 4, SamplingParams(), Noise(1))
    assert request.price.pays([0.0], 1)
    assert request.price.pays([0.5, 0.0, 0.0], 64)
    assert not request.needs_probs


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"stream": 2**32}, "stream is 4294967296"),
        ({"stop": ("a", "")}, "stop string is empty"),
        ({"top_log_probs": -1}, "top_log_probs is -1"),
        ({"top_log_probs": 101}, "top_log_probs is 101"),
    ],
)
def test_a_request_names_the_option_it_refuses(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Request(prompt(1), **options)  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UsageError, match="The prompt is empty"):
        Request(prompt())


def test_requests_without_a_seed_differ() -> None:
    assert Request(prompt(1)).seed != Request(prompt(1)).seed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("typical_p", 2.0),
        ("repeat_penalty", 0.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", float("-inf")),
        ("top_k", -1),
        ("penalty_last_n", -2),
        ("logit_bias", ((-1, 0.0),)),
        ("logit_bias", ((1, float("nan")),)),
        ("logit_bias", ((1, float("inf")),)),
    ],
)
def test_sampling_settings_name_what_they_refuse(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_a_request_that_is_limited_differs_in_nothing_else() -> None:
    values = {one.name: object() for one in fields(DraftRequest)}
    request = DraftRequest(**values)  # type: ignore[arg-type]
    assert request.limited(3) == replace(request, max_nodes=3, max_depth=3)
