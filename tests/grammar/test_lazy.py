"""A grammar from a mark on: before it anything goes, after it nothing but the grammar, plain or drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from localspec.engine.loop import Loop
from localspec.engine.slot import FinishReason
from localspec.grammar.grammar import Trigger
from localspec.grammar.matcher import Lazy
from localspec.planning.plan import FixedPlan
from localspec.types import Rule
from tests.engine.test_constraint import END, MODEL, NAMES, SIZE, VOCABULARY, Counting, drafters_of, plain, request_for
from tests.fakes import FakeTarget, answer

OPENING, THINK, THOUGHT = 4, 7, 9


def lazy(pairs: int = 2, again: bool = False, thinking: bool = False, said: tuple[int, ...] = ()) -> Lazy:
    return Lazy(Counting(pairs), Trigger(OPENING, (THINK, THOUGHT), thinking, again, said), SIZE)


def held(tokens: Sequence[int], again: bool = False) -> list[list[int]]:
    """What a grammar of two pairs must have taken of an answer: from each opening on."""
    found: list[list[int]] = []
    thinking = inside = False
    for token in tokens:
        if inside:
            found[-1].append(token)
            inside = not (again and len(found[-1]) == 6)
            continue
        thinking = token != THOUGHT if thinking else token == THINK
        if token == OPENING and not thinking:
            found.append([token])
            inside = True
    return found


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_that_of_plain_decoding(name: str, again: bool) -> None:
    drafted = calls = 0
    for seed in range(16):
        request = replace(request_for(seed, 1.0), grammar=lazy(again=again))
        expected = plain(request)
        loop = Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of(name, expected.tokens), 5, None), VOCABULARY)
        found = answer(loop, request)
        assert (found.tokens, found.finish) == (expected.tokens, expected.finish)
        taken = held(found.tokens, again)
        assert all(Counting(2).fits(part) == len(part) for part in taken)
        assert all(len(part) <= 6 for part in taken)
        drafted += found.stats.accepted
        calls += len(taken)
    assert calls > 8
    assert drafted > 0 or name in ("lookup", "grammar")


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_other_rules_follow_it_too(rule: Rule) -> None:
    for seed in range(16):
        request = replace(request_for(seed, 1.0), rule=rule, grammar=lazy())
        found = answer(Loop(FakeTarget(MODEL, SIZE), FixedPlan(drafters_of("all", ()), 5, None), VOCABULARY), request)
        assert all(Counting(2).fits(part) == len(part) for part in held(found.tokens))


def test_where_it_holds() -> None:
    free = lazy()
    assert free.fits([5, 5, END]) == 3
    mask = free.mask([5, 3])
    assert mask is not None
    assert mask.all()
    assert free.fits([5, OPENING, 3, 22, 5]) == 4
    assert free.fits([THINK, OPENING, 5, THOUGHT, OPENING, 5, 5]) == 6
    assert lazy(thinking=True).fits([OPENING, 5, 5, THOUGHT, OPENING, 5, 5]) == 6
    behind = free.mask([5, OPENING])
    assert behind is not None
    assert np.flatnonzero(behind).tolist() == list(range(1, 22, 2))
    assert list(free.forced()) == []
    for token in (OPENING, 3):
        free.advance(token)
    assert list(free.forced()) == [22]
    assert free.fresh().fits([5, 5]) == 2, "a fresh one begins free"


def test_after_it_the_answer_is_over_or_free_again() -> None:
    whole = [OPENING, 3, 22, 6, 5, 22]
    assert lazy().mask(whole) is None
    assert lazy().fits([*whole, 5]) == 6
    assert lazy(again=True).fits([*whole, 5, END]) == 8
    assert lazy(again=True).fits([*whole, 5, *whole, 5, OPENING, 4]) == 15
    once, more = lazy(), lazy(again=True)
    for token in whole:
        once.advance(token)
        more.advance(token)
    assert once.complete
    assert not more.complete
    assert more.fits([5, 5, OPENING, 4]) == 3


def test_it_may_hold_from_what_the_prompt_says() -> None:
    begun = lazy(again=True, said=(OPENING, 3))
    assert begun.fits([5]) == 0
    assert begun.fits([22, 6]) == 2
    assert begun.fresh().fits([5]) == 0


def test_an_answer_ends_after_a_grammar_that_holds_once() -> None:
    ends = []
    for seed in range(16):
        request = replace(request_for(seed, 1.0, ignore_end=True), grammar=lazy())
        found = plain(request)
        if held(found.tokens):
            ends.append(found.finish)
            assert found.finish is FinishReason.STOP
    assert ends
