"""Heads that guess a block name the distributions they draw from, and leave those of answers as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from localspec.drafters.heads.blocks import MarkovRows, Scaling
from localspec.engine.interfaces import Request
from localspec.engine.loop import Loop
from localspec.planning.plan import FixedPlan
from localspec.types import Rule
from tests.drafters import test_contract as contract
from tests.drafters.block_context import KINDS, FakeBlocks, Table, block_drafter, rows_of
from tests.engine import test_distribution as answers
from tests.fakes import FakeTarget, FakeVocabulary, answer, prompt


@pytest.mark.parametrize("rule", Rule)
@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_distributed_as_the_targets_own(kind: str, branches: int, rule: Rule) -> None:
    if branches > 1 and rule is Rule.BLOCK:
        return  # chains only
    assert answers.misfit(block_drafter(answers.SIZE, kind, branches), rule) < 4.5


@pytest.mark.parametrize("branches", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_drawn_from_the_distributions_named(kind: str, branches: int) -> None:
    assert contract.misfit(block_drafter(contract.VOCABULARY, kind, branches), 3000) < 4.5


def test_names_that_forget_the_bias_are_noticed() -> None:
    drafter = block_drafter(contract.VOCABULARY, "dspark", sharpness=0.3)
    plain = block_drafter(contract.VOCABULARY, "dflash", sharpness=0.3)

    class Forgetful:
        """Draws after the bias of the token before, and names what was there without it."""

        def draft(self, requests: Any) -> Any:
            pairs = zip(drafter.draft(requests), plain.draft(requests), strict=True)
            return [replace(drawn, probs=(other.probs or ())[: len(drawn)]) for drawn, other in pairs]

    assert contract.misfit(Forgetful(), 3000) > 6


@pytest.mark.parametrize("kind", KINDS)
def test_coupled_texts_are_plains(kind: str) -> None:
    model = answers.MODEL
    drafter = block_drafter(answers.SIZE, kind, 2)
    accepted = 0
    for seed in range(200):
        texts = []
        for guesses in ([], [drafter]):
            loop = Loop(FakeTarget(model, 4), FixedPlan(guesses, 4, None), FakeVocabulary(answers.SIZE))
            said = answer(loop, Request(prompt(1, 2), sampling=answers.SAMPLING, seed=seed, max_tokens=12))
            texts.append(said.tokens)
            accepted += said.stats.accepted
        assert texts[0] == texts[1]
    assert accepted > 100


def test_a_bias_of_another_token_takes_the_place_of_the_rows_own() -> None:
    blocks = FakeBlocks(50, "dspark")
    block, rows = blocks.blocks({0: prompt(1, 2)})[0], rows_of(blocks)
    for level in (0, 1, 3):
        own = 2 if level == 0 else int(block.rows[level - 1].argmax())
        base = block.rows[level] - blocks.bias(own)
        for previous in (own, 7, 49):
            np.testing.assert_allclose(rows.row(block, level, previous), base + blocks.bias(previous), atol=1e-5)


def test_of_a_large_vocabulary_only_the_likeliest_tokens_get_another_bias() -> None:
    blocks = FakeBlocks(900, "dspark")
    block, rows = blocks.blocks({0: prompt(1, 2)})[0], rows_of(blocks)
    said = rows.row(block, 1, 5 if int(block.rows[0].argmax()) != 5 else 6)
    known = np.flatnonzero(np.isfinite(said))
    assert len(known) == 256
    assert block.rows[1][known].min() >= np.delete(block.rows[1], known).max()


def test_logits_are_capped_before_the_bias() -> None:
    blocks = FakeBlocks(50, "dspark")
    block = blocks.blocks({0: prompt(1, 2)})[0]
    before: Any = Table(blocks.before)
    after: Any = Table(blocks.after)
    rows = MarkovRows(5, True, before, after, None, Scaling(2.0, 0.5))
    wanted = 0.5 * np.tanh(2.0 * (block.rows[0] - blocks.bias(2)) / 0.5) + blocks.bias(2)
    np.testing.assert_allclose(rows.row(block, 0, 2), wanted, atol=1e-5)
