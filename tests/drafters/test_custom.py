"""A drafter from outside is held to the contract: what is wrong is dropped with a sentence, and harms nobody."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from localspec.drafters.plugin import Custom
from localspec.engine.interfaces import EMPTY_DRAFT, Draft, DraftRequest, History, Outcome, Verdict
from localspec.types import LogitRows, Noise, SamplingParams, SparseProbs
from tests.drafters import plug_ins
from tests.fakes import draft_request, prompt

N_VOCAB = 6


def ask(*tokens: int, nodes: int = 4, depth: int = 3, needs_probs: bool = False) -> DraftRequest:
    history = History(tokens or (1, 2, 3))
    return draft_request(0, history, nodes, depth, SamplingParams(), Noise(1), needs_probs=needs_probs)


def held(drafter: Any, max_leaves: int = 1) -> Custom:
    return Custom(drafter, N_VOCAB, max_leaves)


class Says(plug_ins.Silent):
    """Answers every question with the same."""

    def __init__(self, answer: Any) -> None:
        super().__init__(plug_ins.setup())
        self.answer = answer

    def draft(self, requests: Sequence[DraftRequest]) -> Any:
        return self.answer


def tree(tokens: Sequence[int], parents: Sequence[int], **more: Any) -> list[Draft]:
    return [Draft(prompt(*tokens), prompt(*parents), **more)]


def drawn(*probs: SparseProbs) -> list[Draft]:
    return [Draft.chain([1, 2][: len(probs)], probs=probs)]


HALVES = SparseProbs(prompt(1, 2), np.array([0.5, 0.5]))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "answered 1 requests with NoneType drafts"),
        ([], "answered 1 requests with 0 drafts"),
        ([[1, 2]], "it guessed [1, 2], which is no Draft"),
        ([Draft([1], prompt(-1))], "the tokens of its guess are list, not int32[n]"),  # type: ignore[arg-type]
        ([Draft(np.array([1.5]), prompt(-1))], "the tokens of its guess are float64[1], not int32[n]"),
        (tree([1, 2], [-1]), "2 tokens with 1 parents"),
        (tree([1, 6], [-1, 0]), "it guessed token 6, and the vocabulary has 6"),
        (tree([-1], [-1]), "it guessed token -1, and the vocabulary has 6"),
        (tree([1, 2], [-1, 1]), "node 1 has the parent 1"),
        (tree([1, 2], [-2, 0]), "node 0 has the parent -2"),
        ([Draft.chain([1] * 5)], "5 tokens where 4 were asked for"),
        ([Draft.chain([1] * 4)], "4 deep where 3 were asked for"),
        (tree([1, 2], [-1, -1]), "a tree of 2 leaves where 1 fit"),
        (tree([1, 1], [-1, -1]), "the same token twice"),
        ([Draft.chain([1], confidence=np.ones(2, dtype=np.float32))], "not float32[1]"),
        ([Draft.chain([1], confidence=np.array([np.nan], dtype=np.float32))], "not a finite number"),
        (drawn(HALVES), ""),
        ([Draft.chain([1, 2], probs=(HALVES,))], "the probs of its guess are not 2 distributions"),
        (drawn(SparseProbs(prompt(2, 3), np.array([0.5, 0.5]))), "token 1 was drawn from"),
        (drawn(SparseProbs(prompt(1, 2), np.array([0.5, 0.6]))), "token 1 was drawn from"),
        (drawn(SparseProbs(prompt(), np.array([]))), "token 1 was drawn from"),
        (drawn(HALVES, SparseProbs(prompt(2, 6), np.array([0.5, 0.5]))), "token 2 was drawn from"),
        (EMPTY_DRAFT, "answered 1 requests with Draft drafts"),
    ],
)
def test_what_is_no_draft_never_reaches_the_loop(answer: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    inner = Says(answer)
    drafter = held(inner)
    found = drafter.draft([ask(needs_probs=True)])
    if not said:
        assert len(found[0]) == 1
        assert drafter.fault == ""
        return
    assert found == [EMPTY_DRAFT]
    assert said in drafter.fault
    assert [record.getMessage() for record in caplog.records] == [
        f"The drafter silent is not used any more: {drafter.fault}."
    ]
    assert inner.closed == 1
    assert drafter.draft([ask(), ask()]) == [EMPTY_DRAFT] * 2
    assert drafter.missing(0, History([1])) == 0
    assert len(caplog.records) == 1, "said once"


def test_a_tree_passes_where_trees_fit() -> None:
    (found,) = held(Says(tree([1, 2, 1], [-1, -1, 0])), max_leaves=2).draft([ask()])
    assert found.parents.tolist() == [-1, -1, 0]
    assert found.origin == "silent", "its origin is its own name, whatever it says"


def test_guesses_are_copied() -> None:
    drafter = held(plug_ins.Reusing(plug_ins.setup()))
    request = ask()
    (found,) = drafter.draft([request])
    rows = LogitRows.from_matrix(np.zeros((3, N_VOCAB), dtype=np.float32))
    drafter.observe([Outcome(0, request.history, found, Verdict(prompt(), 1), rows)])
    assert drafter.fault == ""
    assert (found.tokens.tolist(), found.origin) == ([2, 1], "reusing")
    assert found.tokens.flags.c_contiguous


def test_a_conversation_that_it_changes_is_put_right() -> None:
    drafter = held(plug_ins.Meddling(plug_ins.setup()))
    asked = [ask(4, 5, 4, 5), ask(1)]
    assert drafter.draft(asked) == [EMPTY_DRAFT] * 2
    assert [request.history.tokens.tolist() for request in asked] == [[4, 5, 4, 5], [1]]
    assert drafter.fault == "it changed the conversation in `draft`"


@pytest.mark.parametrize("answer", [-1, None, "7", 2.5])
def test_what_is_missing_is_a_number(answer: Any) -> None:
    inner = plug_ins.Silent(plug_ins.setup())
    inner.missing = lambda slot, history: answer  # type: ignore[method-assign]
    drafter = held(inner)
    assert drafter.missing(0, History([1])) == 0
    assert f"its `missing` is {answer!r}" in drafter.fault


def test_whatever_it_raises_stays_here(caplog: pytest.LogCaptureFixture) -> None:
    inner = plug_ins.Silent(plug_ins.setup())

    def fail(outcomes: Sequence[Outcome]) -> None:
        raise KeyError("slot 3")

    inner.observe = fail  # type: ignore[method-assign]
    drafter = held(inner)
    drafter.observe([])
    assert drafter.fault == "it raised KeyError('slot 3') in `observe`"
    drafter.close()
    assert inner.closed == 1
    leaving = held(plug_ins.Leaving(plug_ins.setup()))
    with caplog.at_level(logging.WARNING):
        leaving.close()
        leaving.close()
    assert caplog.messages[-1] == "The drafter leaving is not used any more: it raised SystemExit(3) in `close`."
    assert len(caplog.records) == 2
