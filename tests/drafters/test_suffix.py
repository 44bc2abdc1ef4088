"""Suffix decoding: where its guesses come from, how sure it is, and who hears that one was right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.drafters.search import SuffixDecoding
from localspec.engine.interfaces import Draft, DraftRequest, History, Outcome, Verdict
from localspec.types import LogitRows, Noise, SamplingParams
from tests.drafters.test_contract import FixedCorpus
from tests.fakes import draft_request, prompt

ROWS = LogitRows.from_matrix(np.zeros((1, 6), dtype=np.float32))


def ask(*tokens: int, nodes: int = 4, depth: int | None = None) -> DraftRequest:
    return draft_request(0, History(tokens), nodes, nodes if depth is None else depth, SamplingParams(), Noise(1))


LONG = (0, 6, 7)
"""Before two more tokens: as many as must match in past answers."""


def corpus_of(*texts: list[int]) -> FixedCorpus:
    corpus = FixedCorpus()
    for number in range(2):
        corpus.index.remove(number)
    corpus.index.add([prompt(*one) for one in texts])
    return corpus


def guess(drafter: SuffixDecoding, request: DraftRequest) -> Draft:
    (draft,) = drafter.draft([request])
    return draft


def test_the_longest_match_of_the_conversation_is_gone_on_with() -> None:
    draft = guess(SuffixDecoding(), ask(1, 2, 3, 9, 9, 2, 3, 7, 7, 1, 2, 3))
    assert draft.tokens.tolist() == [9, 9, 2, 3]
    assert draft.origin == "suffix"
    assert draft.confidence is not None
    assert draft.confidence.tolist() == pytest.approx([3, 4, 5, 6]), "one sequel behind a match of m: odds of m"


def test_one_token_is_no_match() -> None:
    assert len(guess(SuffixDecoding(), ask(1, 5, 1))) == 0
    assert len(guess(SuffixDecoding(corpus_of([1, 5, 5, 5])), ask(3, 1))) == 0


def test_where_sequels_differ_it_is_less_sure() -> None:
    corpus = corpus_of(*([*LONG, 1, 2, token] for token in (3, 4, 4, 4)))
    draft = guess(SuffixDecoding(corpus), ask(*LONG, 1, 2))
    assert draft.tokens.tolist() == [4]
    assert draft.confidence is not None
    assert draft.confidence.tolist() == pytest.approx([3 / (4 - 3 + 1 / 5)])
    even = guess(SuffixDecoding(corpus_of([*LONG, 1, 2, 3], [*LONG, 1, 2, 4])), ask(*LONG, 1, 2))
    assert even.confidence is not None
    assert even.confidence.tolist() == pytest.approx([1 / 2.2]), "below one half it is the chance itself"


def test_the_corpus_is_asked_where_it_promises_more() -> None:
    corpus = corpus_of([0, 5, 1, 2, 3, 4, 6, 7])
    drafter = SuffixDecoding(corpus)
    assert guess(drafter, ask(0, 5, 1, 2, 3)).tokens.tolist() == [4, 6, 7]
    assert guess(drafter, ask(0, 5, 1, 2, 3, 8, 0, 5, 1, 2, 3)).tokens.tolist() == [8, 0, 5, 1], "as good, its own"
    assert guess(drafter, ask(2, 3, 8, 8, 0, 5, 1, 2, 3, nodes=3)).tokens.tolist() == [4, 6, 7], "a longer match"
    assert len(guess(drafter, ask(5, 1, 2, 3))) == 0, "what follows fewer tokens is for habits"


def test_a_tree_only_where_a_request_allows_more_nodes_than_levels() -> None:
    corpus = corpus_of([*LONG, 1, 2, 3, 3], [*LONG, 1, 2, 4, 4], [*LONG, 1, 2, 4, 5])
    request = ask(*LONG, 1, 2, nodes=5, depth=2)
    tree = guess(SuffixDecoding(corpus), request)
    assert tree.parents.tolist().count(-1) == 2
    assert tree.tokens.tolist()[0] == 4
    assert len(tree) == 5
    chain = guess(SuffixDecoding(corpus), replace(request, max_nodes=2))
    assert chain.parents.tolist() == [-1, 0]
    assert chain.tokens.tolist()[0] == 4


@pytest.mark.parametrize(
    ("accepted", "origin", "right"),
    [((0,), "suffix", [2]), ((), "suffix", []), ((0,), "lookup", [])],
    ids=["accepted", "rejected", "another's draft"],
)
def test_a_text_of_the_corpus_hears_that_it_was_of_use(
    accepted: tuple[int, ...], origin: str, right: list[int]
) -> None:
    corpus = corpus_of([*LONG, 5, 1, 2, 3])
    drafter, request = SuffixDecoding(corpus), ask(*LONG, 5, 1)
    draft = replace(guess(drafter, request), origin=origin)
    outcome = Outcome(0, request.history, draft.truncated(1), Verdict(prompt(*accepted), 4), ROWS)
    drafter.observe([outcome])
    drafter.observe([outcome])
    assert corpus.right == right, "once"


def test_what_the_conversation_itself_said_is_nobodys_merit() -> None:
    corpus = corpus_of([5, 1, 2, 3])
    drafter, request = SuffixDecoding(corpus), ask(4, 4, 0, 4, 4)
    draft = guess(drafter, request)
    drafter.observe([Outcome(0, request.history, draft, Verdict(prompt(0), 4), ROWS)])
    assert corpus.right == []
