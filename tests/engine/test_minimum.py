"""An answer of at least so many tokens: nothing ends it before, plain or drafting, under a grammar or without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.engine.constraint import Minimum
from localspec.engine.interfaces import Constraint, Request
from localspec.engine.loop import Loop
from localspec.engine.slot import FinishReason
from localspec.errors import UsageError
from localspec.grammar.grammar import Trigger
from localspec.grammar.matcher import Lazy
from localspec.planning.plan import FixedPlan
from localspec.types import Rule
from tests.engine.test_constraint import END, MODEL, NAMES, SIZE, VOCABULARY, Counting, drafters_of, plain, request_for
from tests.fakes import FakeTarget, answer, prompt

STOP_TOKEN = 20
LEAST = 14
FORMS: dict[str, Constraint | None] = {
    "free": None,
    "grammar": Counting(),
    "lazy": Lazy(Counting(2), Trigger(4, again=True), SIZE),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_plain_decoding_and_long_enough(name: str, form: str) -> None:
    shorter = 0
    for seed in range(12):
        short = replace(request_for(seed, 1.0, stop_tokens=frozenset({STOP_TOKEN})), grammar=FORMS[form])
        request = replace(short, min_tokens=LEAST)
        expected = plain(request)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, expected.tokens), 5, None), VOCABULARY)
        found = answer(loop, request)
        assert (found.tokens, found.text, found.finish) == (expected.tokens, expected.text, expected.finish)
        assert not {END, STOP_TOKEN} & set(found.tokens[:LEAST])
        assert len(found.tokens) > LEAST
        shorter += len(plain(short).tokens) <= LEAST
    assert shorter > 4


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_other_rules_keep_it_too(rule: Rule) -> None:
    for seed in range(8):
        request = replace(request_for(seed, 1.0), rule=rule, min_tokens=LEAST, grammar=None)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of("all", ()), 5, None), VOCABULARY)
        assert END not in answer(loop, request).tokens[:LEAST]


def test_log_probabilities_are_the_models_own() -> None:
    request = replace(request_for(3, 1.0, top_log_probs=2), grammar=None)
    first = plain(replace(request, min_tokens=LEAST)).log_probs[0]
    assert first.top == plain(request).log_probs[0].top


@pytest.mark.parametrize("name", ["draft", "lookup", "trees"])
def test_stop_strings_are_not_looked_for_before(name: str) -> None:
    stopped = 0
    for seed in range(12):
        request = replace(request_for(seed, 1.0, stop=("a",), ignore_end=True), grammar=None, min_tokens=LEAST)
        expected = plain(request)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, expected.tokens), 5, None), VOCABULARY)
        found = answer(loop, request)
        assert (found.tokens, found.text) == (expected.tokens, expected.text)
        assert len(found.tokens) > LEAST
        free = VOCABULARY.text(found.tokens[:LEAST]).rstrip("\N{REPLACEMENT CHARACTER}")
        assert found.text.startswith(free)
        assert "a" not in found.text[len(free) :]
        stopped += "a" in free
    assert stopped > 4


def test_a_grammar_that_only_ends_ends() -> None:
    request = Request(prompt(1), grammar=Counting(1), min_tokens=9, seed=1)
    found = plain(request)
    assert found.finish is FinishReason.STOP
    assert len(found.tokens) == 3
    only_end = Minimum(9, {END}, SIZE, Only())
    mask = only_end.mask([])
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [END]
    assert only_end.fits([END]) == 1


class Only(Counting):
    """Nothing but the end."""

    def _allowed(self, tokens: object) -> list[int]:
        return [END]


def test_drafts_hold_no_end_before() -> None:
    least = Minimum(3, {END}, SIZE, None)
    assert least.fits([1, END, 2]) == 1
    assert least.fits([1, 2, 3, END, 5]) == 5
    for token in (1, 2):
        least.advance(token)
    assert least.fits([5, END]) == 2
    mask = least.mask([5])
    assert mask is not None
    assert mask.all()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"min_tokens": -1}, "min_tokens is -1; it must be 0 or more"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; it must not be more than max_tokens, 8"),
        ({"min_tokens": None}, "min_tokens is None; it must be a whole number"),
    ],
)
def test_impossible_numbers(fields: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Request(prompt(1), **fields)  # type: ignore[arg-type]
