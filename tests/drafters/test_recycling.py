"""Token recycling: what it keeps of a pass, which path it takes, and what the target's noise has to do with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localspec.drafters.search.recycling import RecyclingSettings, TokenRecycling
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Outcome, Verdict
from localspec.errors import UsageError
from localspec.native import kernels
from localspec.native.successors import SUCCESSORS, SuccessorIndex
from localspec.types import LogitRows, Noise, SamplingParams
from tests.fakes import HashModel, draft_request, prompt

COLD = SamplingParams(temperature=0.0)


def rows_of(*likeliest: dict[int, float], n_vocab: int = 40) -> LogitRows:
    """A row each: the logits named, and -20 for every other token."""
    matrix = np.full((len(likeliest), n_vocab), -20.0, dtype=np.float32)
    for row, logits in zip(matrix, likeliest, strict=True):
        row[list(logits)] = list(logits.values())
    return LogitRows.from_matrix(matrix)


def taught(kept: dict[int, dict[int, float]], branches: int = 1) -> TokenRecycling:
    """One that has seen these logits behind these tokens."""
    successors = SuccessorIndex()
    for token, logits in kept.items():
        successors.learn(rows_of(logits), [0], [token])
    return TokenRecycling(successors, RecyclingSettings(branches))


def ask(
    *tokens: int, nodes: int = 4, depth: int | None = None, sampling: SamplingParams = COLD, **more: Any
) -> DraftRequest:
    return draft_request(0, History(tokens), nodes, nodes if depth is None else depth, sampling, Noise(1), **more)


def guess(drafter: TokenRecycling, request: DraftRequest) -> Draft:
    (draft,) = drafter.draft([request])
    return draft


def test_nothing_is_kept_at_first() -> None:
    assert guess(TokenRecycling(), ask(1, 2)) is EMPTY_DRAFT


def test_a_chain_goes_from_token_to_token() -> None:
    drafter = taught({1: {2: 9.0, 3: 5.0}, 2: {4: 9.0}, 4: {1: 9.0, 2: 7.0}})
    draft = guess(drafter, ask(7, 1, nodes=5))
    assert draft.tokens.tolist() == [2, 4, 1, 2, 4]
    assert draft.parents.tolist() == [-1, 0, 1, 2, 3]
    assert draft.origin == "recycling"
    assert draft.confidence is not None
    assert (draft.confidence < 1.0).all(), "no share may look like a length"
    assert guess(drafter, ask(3)) is EMPTY_DRAFT


def test_a_tree_grows_where_the_next_token_is_likeliest() -> None:
    """Shares: 2 and 3 behind 1 about 0.73 and 0.27; behind 2 two at 0.5; behind 3 one at 1."""
    drafter = taught({1: {2: 1.0, 3: 0.0}, 2: {4: 1.0, 5: 1.0}, 3: {6: 1.0}}, branches=2)
    draft = guess(drafter, ask(1, nodes=5))
    assert draft.tokens.tolist() == [2, 4, 5, 3, 6]
    assert draft.parents.tolist() == [-1, 0, 0, -1, 3]
    assert draft.confidence is not None
    assert draft.confidence.tolist() == pytest.approx([0.731, 0.5, 0.5, 0.269, 0.999], abs=1e-3)


def test_a_request_with_more_nodes_than_levels_gets_a_tree() -> None:
    drafter = taught({1: {token: float(-token) for token in range(2, 8)}})
    draft = guess(drafter, ask(1, nodes=4, depth=1))
    assert draft.tokens.tolist() == [2, 3, 4, 5]
    assert draft.parents.tolist() == [-1] * 4


def test_what_is_not_likely_to_be_reached_is_not_guessed_at() -> None:
    even = dict.fromkeys(range(10, 18), 0.0)
    drafter = taught({1: even, 10: {**even, 10: 0.1}})
    assert len(guess(drafter, ask(1, nodes=30))) == 2, "0.125, about as much of that, and no further"


def hear(
    drafter: TokenRecycling, history: list[int], draft: Draft, accepted: list[int], next_token: int, rows: LogitRows
) -> None:
    """A pass about which it was asked."""
    drafter.draft([ask(*history)])
    drafter.observe([Outcome(0, History(history), draft, Verdict(prompt(*accepted), next_token), rows)])


def test_every_row_of_a_pass_is_kept_by_the_token_it_follows() -> None:
    """Draft 2, 3 and 4 behind 1; 2 was right, 3 was not, 4 was a wrong sibling."""
    drafter = TokenRecycling()
    draft = Draft(prompt(2, 3, 4), prompt(-1, 0, -1))
    rows = rows_of({2: 5.0, 4: 3.0}, {9: 5.0, 3: 4.0}, {20: 5.0}, {30: 5.0})
    hear(drafter, [1, 2, 9], draft, [0], 9, rows)
    for token, sequel in ((1, 2), (2, 9), (3, 20), (4, 30)):
        assert guess(drafter, ask(token, nodes=1)).tokens.tolist() == [sequel]
    assert guess(drafter, ask(9)) is EMPTY_DRAFT


def test_the_text_itself_has_the_last_word_and_the_latest() -> None:
    drafter = TokenRecycling()
    draft = Draft(prompt(2, 1), prompt(-1, 0))  # a wrong guess says something else behind 1
    hear(drafter, [1, 7], draft, [], 7, rows_of({7: 5.0}, {8: 5.0}, {9: 5.0}))
    assert guess(drafter, ask(1, nodes=1)).tokens.tolist() == [7]
    hear(drafter, [1, 8], EMPTY_DRAFT, [], 8, rows_of({8: 5.0}))
    assert guess(drafter, ask(1, nodes=1)).tokens.tolist() == [8]


def test_a_pass_it_was_not_asked_about_teaches_nothing() -> None:
    """A request that nobody drafts for pays for nobody's guesses."""
    drafter, rows = TokenRecycling(), rows_of({8: 5.0})
    passed = Outcome(0, History([1, 8]), EMPTY_DRAFT, Verdict(prompt(), 8), rows)
    drafter.observe([passed])
    drafter.draft([replace(ask(1), slot=1)])
    drafter.observe([passed])
    drafter.draft([ask(1, needs_probs=True)])
    drafter.observe([passed])
    assert guess(drafter, ask(1)) is EMPTY_DRAFT
    drafter.observe([passed])
    assert guess(drafter, ask(1)).tokens.tolist() == [8]


def test_an_answer_that_was_cut_off_teaches_nothing() -> None:
    drafter = TokenRecycling()
    rows = rows_of({2: 5.0}, {3: 5.0}, {4: 5.0})
    hear(drafter, [6, 1, 2], Draft.chain([2, 3]), [0, 1], 4, rows)
    assert all(guess(drafter, ask(token)) is EMPTY_DRAFT for token in range(7))


def test_rows_that_nobody_looked_at_may_hold_anything() -> None:
    matrix = np.zeros((2, 40), dtype=np.float32)
    matrix[0, 7], matrix[1] = 5.0, np.nan
    drafter = TokenRecycling()
    rows = LogitRows.from_matrix(matrix)
    hear(drafter, [1, 7], Draft.chain([2]), [], 7, rows)
    assert guess(drafter, ask(1, nodes=1)).tokens.tolist() == [7]
    assert guess(drafter, ask(2)) is EMPTY_DRAFT


def test_it_ranks_with_the_noise_that_the_target_draws_with() -> None:
    """Where the row is the same again, the guess is the target's own token, at any temperature."""
    model, history = HashModel(8, order=1), History([3, 5])
    successors = SuccessorIndex()
    row = LogitRows.from_matrix(model(history.tokens)[None, :].copy())
    successors.learn(row, [0], [5])
    drafter, seen = TokenRecycling(successors), set()
    for temperature in (0.0, 0.6, 1.0, 3.0):
        sampling = SamplingParams(temperature=temperature, top_p=1.0, min_p=0.0, top_k=0)
        for seed in range(40):
            request = replace(ask(sampling=sampling, nodes=1), history=history, noise=Noise(seed))
            drawn, _ = kernels.sample(row, 0, sampling, history.tokens, request.noise, len(history), 1)
            assert guess(drafter, request).tokens.tolist() == drawn.tolist()
            seen.add(int(drawn[0]))
    assert len(seen) > 3


def test_rejection_and_block_hear_nothing_of_earlier_answers() -> None:
    """Their text depends on the draft, so it would depend on who was served before."""
    assert guess(taught({1: {2: 5.0}}), ask(1, needs_probs=True)) is EMPTY_DRAFT


def test_what_is_cleared_is_not_guessed() -> None:
    successors = SuccessorIndex()
    successors.learn(rows_of({2: 5.0}), [0], [1])
    drafter = TokenRecycling(successors)
    assert guess(drafter, ask(1, nodes=1)).tokens.tolist() == [2]
    successors.clear()
    assert guess(drafter, ask(1)) is EMPTY_DRAFT


@pytest.mark.parametrize("branches", [0, SUCCESSORS + 1])
def test_branches_outside_are_refused(branches: int) -> None:
    with pytest.raises(UsageError, match=f"branches is {branches}"):
        RecyclingSettings(branches)
