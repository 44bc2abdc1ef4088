"""What the model says often: guessed from its own answers only, and not once they are gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.drafters.search import Habits, SuffixDecoding
from localspec.engine.interfaces import Draft
from localspec.errors import UsageError
from tests.drafters.test_contract import FixedCorpus, ask


def corpus_of(*answers: list[int]) -> FixedCorpus:
    corpus = FixedCorpus()
    corpus.counts.close()
    for one in answers:
        corpus.counts.add(np.array(one, dtype=np.int32))
    return corpus


def guess(drafter: Habits, tokens: list[int], recall: bool = True) -> Draft:
    request = ask(tokens, temperature=0.0)
    (draft,) = drafter.draft([replace(request, asked=replace(request.asked, recall=recall))])
    return draft


def test_one_token_of_context_is_enough() -> None:
    draft = guess(Habits(corpus_of([1, 2, 3], [4, 2, 3])), [9, 2])
    assert draft.tokens.tolist()[:1] == [3]
    assert draft.confidence is not None
    assert draft.confidence[0] == pytest.approx(2 / 3)


def test_a_request_may_leave_past_answers_alone() -> None:
    corpus = corpus_of([1, 2, 3])
    assert len(guess(Habits(corpus), [1, 2], recall=False)) == 0
    assert guess(Habits(corpus), [1, 2, 5, 2], recall=False).tokens.tolist()[:1] == [5], "the conversation is searched"


def test_what_was_deleted_is_not_guessed_any_more() -> None:
    corpus = corpus_of([1, 2, 3])
    drafter = Habits(corpus)
    assert len(guess(drafter, [1, 2]))
    corpus.counts.remove(np.array([1, 2, 3], dtype=np.int32))
    assert len(guess(drafter, [1, 2])) == 0


def test_it_shares_conversations_with_suffix_decoding() -> None:
    """Each guesses as if it were alone."""
    history = [1, 2, 3, 1, 2]
    suffix = SuffixDecoding()
    both = Habits(conversations=suffix._conversations)
    for tokens in (history, [*history, 3, 1], [5, 5, 5, 5], history):
        alone = guess(Habits(), tokens)
        suffix.draft([ask(tokens)])
        assert guess(both, tokens).tokens.tolist() == alone.tokens.tolist()
        assert (
            suffix.draft([ask(tokens)])[0].tokens.tolist() == SuffixDecoding().draft([ask(tokens)])[0].tokens.tolist()
        )


@pytest.mark.parametrize("branches", [0, 9])
def test_branches_outside_are_refused(branches: int) -> None:
    with pytest.raises(UsageError, match=f"branches is {branches}; it must be between 1 and 8"):
        Habits(branches=branches)
