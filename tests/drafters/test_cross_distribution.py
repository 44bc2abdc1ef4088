"""Drawn from the tokens both vocabularies have, and said so: every rule stays exact with another tokenizer."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.drafters.draft_model import DraftModel
from localspec.types import Float32Array, Rule, Tokens
from tests.drafters import test_contract as contract
from tests.drafters.made_tokenizers import MadeTokenizer, foreign_draft_model
from tests.engine import test_distribution as answers
from tests.fakes import FakeDraftContext, HashModel

TARGET = MadeTokenizer([b"a", b"b", b"ab", b" "])
DRAFT = MadeTokenizer([b" ", b"ba", b"b", b"?", b"a", b" b"])
"""Has three of the target's four tokens, and writes "b a" and "ba" otherwise than it."""
FOREIGN = HashModel(len(DRAFT.pieces), order=2, seed=7, sharpness=0.6)


@pytest.mark.parametrize(
    ("rule", "branches", "n_ctx"),
    [
        (Rule.REJECTION, 1, 64),
        (Rule.REJECTION, 2, 64),
        (Rule.REJECTION, 1, 3),
        (Rule.BLOCK, 1, 64),
        (Rule.BLOCK, 1, 3),
    ],
)
def test_answers_are_distributed_as_the_targets_own(rule: Rule, branches: int, n_ctx: int) -> None:
    """*Coupled* is compared text by text elsewhere. With a context of 3 a draft ends where its words take more tokens
    than there is room for."""
    drafter = foreign_draft_model(FOREIGN, TARGET, DRAFT, branches=branches, n_ctx=n_ctx)
    assert answers.misfit(drafter, rule) < 4.5


def test_where_there_is_no_room_depends_on_what_was_drawn() -> None:
    """Else the context of 3 would prove nothing above."""
    drafter = foreign_draft_model(FOREIGN, TARGET, DRAFT, n_ctx=3)
    asked = [contract.ask([1, 2], seed=seed, needs_probs=True) for seed in range(40)]
    assert len({len(drafter.draft([request])[0]) for request in asked}) > 1


LETTERS = MadeTokenizer([b"a", b"b", b"c", b"d", b"e", b"f"])
FEWER = MadeTokenizer([b"!", b"e", b"c", b"a", b"?", b"b", b"ab"])
FLAT = HashModel(len(FEWER.pieces), order=1, seed=4, sharpness=0.5)


def test_tokens_are_drawn_from_the_restricted_distributions_named() -> None:
    drafter = foreign_draft_model(FLAT, LETTERS, FEWER)
    assert contract.misfit(drafter, 3000) < 4.5
    (draft,) = drafter.draft([contract.ask([2, 1, 3], nodes=6, needs_probs=True)])
    assert draft.probs is not None
    for probs in draft.probs:
        assert set(probs.tokens.tolist()) <= {0, 1, 2, 4}, "d and f are not the draft's"


def test_a_draft_model_with_the_targets_words_is_right_where_it_can_be() -> None:
    """The target itself with its tokens in another order: every guess is what coupled verification will say."""
    order = [3, 0, 5, 1, 4, 2]
    shuffled = MadeTokenizer([LETTERS.pieces[token] for token in order])
    same = contract.MODEL

    def logits(tokens: Tokens) -> Float32Array:
        return same(np.array([order[token] for token in tokens.tolist()], dtype=np.int32))[order]

    request = contract.ask([2, 1, 3], nodes=6)
    foreign = foreign_draft_model(logits, LETTERS, shuffled).draft([request])[0]
    native = DraftModel(FakeDraftContext(same), frozenset()).draft([request])[0]
    assert foreign.tokens.tolist() == native.tokens.tolist()
