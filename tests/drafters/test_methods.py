"""What is particular to each drafter: what it feeds, whom it asks, what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.draft_model import DraftModel
from localspec.drafters.search import PromptLookup
from localspec.engine.interfaces import (
    DraftRequest,
    History,
    Price,
)
from localspec.errors import UsageError
from localspec.native import kernels
from localspec.types import LogitRows, Noise, SamplingParams
from tests.fakes import FakeDraftContext, HashModel, draft_request

MODEL = HashModel(8)
SAMPLING = SamplingParams(temperature=0.9)


def ask(history: History, slot: int = 0, nodes: int = 4, needs_probs: bool = False) -> DraftRequest:
    return draft_request(slot, history, nodes, nodes, SAMPLING, Noise(3), needs_probs=needs_probs)


# -- the draft model -------------------------------------------------------------------------------------------------


def test_the_draft_model_is_fed_only_what_it_has_not_seen() -> None:
    context = FakeDraftContext(MODEL)
    drafter, history = DraftModel(context, frozenset()), History([1, 2, 3, 4, 5])
    (draft,) = drafter.draft([ask(history)])
    assert [rows[0] for rows in context.passes] == [5, 1, 1, 1], "the prompt once, then its own guesses"
    for accepted in range(5):
        context.passes.clear()
        history.append([*draft.tokens[:accepted].tolist(), (int(draft.tokens[min(accepted, 3)]) + 1) % 8])
        cached = min(accepted, 3)  # nobody ever fed it its last guess
        (draft,) = drafter.draft([ask(history)])
        assert [rows[0] for rows in context.passes] == [accepted - cached + 1, 1, 1, 1]


def test_a_long_history_is_read_in_chunks_before_anything_is_guessed() -> None:
    context = FakeDraftContext(MODEL)
    context.CHUNK = 32
    drafter, history = DraftModel(context, frozenset()), History([1, 2] * 50)
    short = History([3, 4])
    guessed = []
    for _ in range(4):
        long_draft, short_draft = drafter.draft([ask(history), ask(short, slot=1)])
        guessed.append(len(long_draft))
        assert len(short_draft) == 4, "nobody waits for it"
    assert guessed == [0, 0, 0, 4]
    assert [rows[0] for rows in context.passes if 0 in rows] == [32, 32, 32, 4, 1, 1, 1]
    fresh = DraftModel(FakeDraftContext(MODEL), frozenset()).draft([ask(history)])[0]
    assert fresh.tokens.tolist() == long_draft.tokens.tolist()


def test_a_regenerated_or_edited_history_is_fed_from_where_it_differs() -> None:
    context = FakeDraftContext(MODEL)
    drafter, history = DraftModel(context, frozenset()), History(range(8))
    drafter.draft([ask(history)])
    context.passes.clear()
    history.truncate(5)
    history.append([7, 7])
    drafter.draft([ask(history, nodes=1)])
    assert context.passes == [{0: 2}]


def test_the_draft_model_decodes_all_slots_in_one_batch() -> None:
    context = FakeDraftContext(MODEL)
    drafter = DraftModel(context, frozenset())
    histories = {slot: History(range(1 + slot)) for slot in range(3)}
    drafter.draft([ask(history, slot, nodes=1 + slot) for slot, history in histories.items()])
    assert context.passes == [{0: 1, 1: 2, 2: 3}, {1: 1, 2: 1}, {2: 1}], "and a slot that is done stays out"


def test_the_draft_model_draws_with_the_targets_noise() -> None:
    """So a draft model that is the target guesses everything right."""
    history = History([1, 2, 3])
    (draft,) = DraftModel(FakeDraftContext(MODEL), frozenset()).draft([ask(history)])
    path = [1, 2, 3]
    for token in draft.tokens.tolist():
        rows = LogitRows.from_matrix(MODEL(np.array(path, dtype=np.int32))[None, :].copy())
        drawn, _ = kernels.sample(rows, 0, SAMPLING, np.array(path, dtype=np.int32), Noise(3), len(path), 1)
        assert drawn.tolist() == [token]
        path.append(token)


def test_a_guess_that_has_no_other_beside_it_is_as_sure_as_a_chance_can_be() -> None:
    only = np.where(np.arange(8) == 3, 0.0, -np.inf).astype(np.float32)
    (draft,) = DraftModel(FakeDraftContext(lambda tokens: only), frozenset()).draft([ask(History([1]))])
    assert draft.confidence is not None
    assert draft.confidence.tolist() == pytest.approx([0.999] * 4), "from 1 on it would count as a length"


@pytest.mark.parametrize("branches", [1, 3])
def test_nothing_is_guessed_behind_an_end_token(branches: int) -> None:
    everything = frozenset(range(8))
    drafter = DraftModel(FakeDraftContext(MODEL), everything, branches)
    assert len(drafter.draft([ask(History([1]), nodes=6)])[0]) == branches


def test_a_draft_drawn_for_rejection_does_not_end_because_of_what_was_drawn() -> None:
    drafter = DraftModel(FakeDraftContext(MODEL), frozenset(range(8)))
    assert len(drafter.draft([ask(History([1]), nodes=6, needs_probs=True)])[0]) == 6


def test_branches_are_leaves_beside_the_main_chain_in_trial_order() -> None:
    drafter = DraftModel(FakeDraftContext(MODEL), frozenset(), 3)
    (draft,) = drafter.draft([ask(History([1]), nodes=8)])
    assert draft.parents.tolist() == [-1, -1, -1, 0, 0, 0, 3, 3]
    chain = DraftModel(FakeDraftContext(MODEL), frozenset()).draft([ask(History([1]), nodes=3)])[0]
    assert draft.tokens[[0, 3, 6]].tolist() == chain.tokens.tolist()


def test_a_closed_draft_model_guesses_nothing() -> None:
    drafter = DraftModel(FakeDraftContext(MODEL), frozenset())
    drafter.close()
    assert len(drafter.draft([ask(History([1]))])[0]) == 0


@pytest.mark.parametrize("length", [14, 15, 16, 17])
def test_the_draft_model_stops_at_the_end_of_its_own_context(length: int) -> None:
    context = FakeDraftContext(MODEL, n_ctx=16)
    (draft,) = DraftModel(context, frozenset()).draft([ask(History([1] * length), nodes=8)])
    assert len(draft) == max(0, 16 - length)


class Stop(Price):
    """Goes on `levels` times."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.asked: list[tuple[list[float], int]] = []

    def pays(self, path: Sequence[float], nodes: int) -> bool:
        self.asked.append((list(path), nodes))
        return len(self.asked) <= self.levels


@pytest.mark.parametrize("branches", [1, 2])
def test_the_draft_model_stops_when_the_next_guess_no_longer_pays(branches: int) -> None:
    context, price = FakeDraftContext(MODEL), Stop(2)
    drafter = DraftModel(context, frozenset(), branches)
    (draft,) = drafter.draft([replace(ask(History([1]), nodes=14), price=price)])
    assert len(draft) == 3 * branches
    assert len(context.passes) == 3, "no pass for a guess nobody wants"
    assert draft.confidence is not None
    assert [nodes for _, nodes in price.asked] == [branches, 2 * branches, 3 * branches]
    assert price.asked[-1][0] == draft.confidence[::branches].tolist(), "confidences of the main chain"


@pytest.mark.parametrize("branches", [0, 9])
def test_branches_outside_are_refused(branches: int) -> None:
    with pytest.raises(UsageError, match=f"branches is {branches}"):
        DraftModel(FakeDraftContext(MODEL), frozenset(), branches)


# -- prompt lookup ---------------------------------------------------------------------------------------------------


def naive_lookup(tokens: list[int], least: int, most: int, limit: int) -> tuple[list[int], int]:
    """What followed the latest earlier place where the longest end of the tokens stood, on into what it says."""
    for size in range(min(most, len(tokens) - 1), least - 1, -1):
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == tokens[-size:]:
                said = list(tokens)
                for place in range(start + size, start + size + limit):
                    said.append(said[place])
                return said[len(tokens) :], size
    return [], 0


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    least=st.integers(1, 3),
    more=st.integers(0, 4),
    limit=st.integers(1, 6),
)
def test_lookup_finds_what_a_plain_search_finds(tokens: list[int], least: int, more: int, limit: int) -> None:
    drafter = PromptLookup(least, least + more)
    (draft,) = drafter.draft([ask(History(tokens), nodes=limit)])
    expected, matched = naive_lookup(tokens, least, least + more, limit)
    assert draft.tokens.tolist() == expected
    if expected:
        assert draft.confidence is not None
        assert draft.confidence.tolist() == [matched] * len(expected)


def test_lookup_follows_a_history_that_grows_and_is_edited() -> None:
    drafter, history = PromptLookup(1, 3), History([1, 2, 3, 1])
    assert drafter.draft([ask(history, nodes=2)])[0].tokens.tolist() == [2, 3]
    history.append([2])
    assert drafter.draft([ask(history, nodes=2)])[0].tokens.tolist() == [3, 1]
    history.truncate(2)
    history.append([5, 2])
    assert drafter.draft([ask(history, nodes=2)])[0].tokens.tolist() == [5, 2]


@pytest.mark.parametrize(("least", "most"), [(0, 3), (3, 2), (1, 33)])
def test_ngrams_outside_are_refused(least: int, most: int) -> None:
    with pytest.raises(UsageError, match=f"min_ngram is {least} and max_ngram {most}"):
        PromptLookup(least, most)


# -- the cascade -----------------------------------------------------------------------------------------------------
