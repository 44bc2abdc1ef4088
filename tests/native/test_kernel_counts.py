"""What a text says after its last tokens: against counting by hand, and both implementations against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.native.indexes import ContextCounts, TreeGuess
from localspec.types import Noise, Purpose, Tokens
from tests import reference
from tests.native.inside import memory_bytes

makers: list[Callable[[], Any]] = [ContextCounts, reference.ContextCounts]
small = st.lists(st.integers(0, 3), min_size=1, max_size=14)
NOISE = Noise(7)


def tokens_of(values: list[int]) -> Tokens:
    return np.array(values, dtype=np.int32)


def counts_of(*sequences: list[int]) -> ContextCounts:
    counts = ContextCounts()
    for one in sequences:
        counts.add(tokens_of(one))
    return counts


def after(history: list[int], past: ContextCounts | None = None, nodes: int = 8) -> TreeGuess:
    """One level of guesses, best first."""
    return ContextCounts().guess(tokens_of(history), 0, 0.0, NOISE, nodes, 1, 8, past)


def test_what_was_said_most_often_comes_first_and_its_chance_is_told() -> None:
    """A context that was met four times with two sequels has a say of 4 / 6, and there is no shorter one."""
    found = after([2], counts_of([9, 2, 5], [8, 2, 5], [7, 2, 5], [6, 2, 6]))
    assert found.tokens.tolist() == [5, 6]
    assert found.confidence.tolist() == pytest.approx([3 / 4 * 4 / 6, 1 / 4 * 4 / 6])


def test_longer_contexts_have_their_say_first() -> None:
    past = counts_of(*[[1, 2, 5]] * 2, *[[4, 2, 6]] * 6)
    assert after([1, 2], past).tokens.tolist()[0] == 5
    assert after([3, 2], past).tokens.tolist()[0] == 6


def test_what_the_conversation_says_outweighs_past_answers() -> None:
    past = counts_of(*[[2, 6]] * 5)
    assert after([2, 5, 2], past).tokens.tolist()[0] == 5


def test_a_draft_goes_on_with_its_own_guesses() -> None:
    found = ContextCounts().guess(tokens_of([1, 2, 3, 4, 5, 1, 2]), 0, 0.0, NOISE, 3, 3, 1)
    assert found.tokens.tolist() == [3, 4, 5]
    assert found.parents.tolist() == [-1, 0, 1]


@settings(max_examples=200)
@given(
    histories=st.lists(st.tuples(st.integers(0, 20), small), min_size=1, max_size=4),
    past=st.lists(small, max_size=6),
    gone=st.integers(0, 6),
)
def test_chances_are_those_of_counting(
    histories: list[tuple[int, list[int]]], past: list[list[int]], gone: int
) -> None:
    """Of one level, by token; through any edits of the conversation, and with some of the past taken out again."""
    (native, others), (expected, same) = ((make(), make()) for make in makers)
    for one in past:
        others.add(tokens_of(one))
        same.add(tokens_of(one))
    for one in past[:gone]:
        others.remove(tokens_of(one))
        same.remove(tokens_of(one))
    history: list[int] = []
    for kept, fresh in histories:
        kept = min(kept, len(history))
        history = history[:kept] + fresh
        asked = (tokens_of(history), kept, 0.0, NOISE, 8, 1, 8)
        found, wanted = native.guess(*asked, others), expected.guess(*asked, same)
        by_token = dict(zip(wanted.tokens.tolist(), wanted.confidence.tolist(), strict=True))
        assert dict(zip(found.tokens.tolist(), found.confidence.tolist(), strict=True)) == pytest.approx(by_token)


@settings(max_examples=200)
@given(
    history=small,
    past=st.lists(small, max_size=6),
    temperature=st.sampled_from([0.0, 0.8]),
    nodes=st.integers(0, 9),
    depth=st.integers(0, 6),
    breadth=st.sampled_from([1, 2, 8]),
)
def test_both_implementations_guess_the_same(
    history: list[int], past: list[list[int]], temperature: float, nodes: int, depth: int, breadth: int
) -> None:
    found = []
    for make in makers:
        own, others = make(), make()
        for one in past:
            others.add(tokens_of(one))
        found.append(own.guess(tokens_of(history), 0, temperature, NOISE, nodes, depth, breadth, others))
    native, expected = found
    assert native.tokens.tolist() == expected.tokens.tolist()
    assert native.parents.tolist() == expected.parents.tolist()
    assert native.confidence.tolist() == pytest.approx(expected.confidence.tolist(), rel=1e-6)


def test_under_a_temperature_it_guesses_what_the_target_draws() -> None:
    """Of tokens that are equally likely, the first guess is the one that the noise of that position prefers."""
    past, rng = counts_of(*([1, token] for token in (10, 11, 12, 13))), np.random.default_rng(3)
    drawn = Counter[int]()
    for position in range(1, 40):
        history = rng.integers(20, 30, size=position).astype(np.int32)
        history[-1] = 1
        (guess,) = ContextCounts().guess(history, 0, 1.0, NOISE, 1, 1, 1, past).tokens.tolist()
        noise = reference.gumbel(NOISE, Purpose.SAMPLE, position, tokens_of([10, 11, 12, 13]))
        assert guess == 10 + int(np.argmax(noise))
        drawn[guess] += 1
    assert len(drawn) == 4


def test_what_is_taken_out_leaves_nothing_however_full_it_was() -> None:
    """More contexts than there are lines, and more sequels than a line holds: rare ones fade, none stays for ever."""
    rng, counts = np.random.default_rng(5), ContextCounts()
    sequences = [(rng.zipf(1.3, size=4000) % 30_000).astype(np.int32) for _ in range(60)]
    for one in sequences:
        counts.add(one)
    assert memory_bytes(counts) < 20e6
    assert len(after([int(sequences[0][0])], counts).tokens)
    for one in sequences[1:]:
        counts.remove(one)
    left = set(sequences[0].tolist())
    for token in range(200):
        assert set(after([token], counts).tokens.tolist()) <= left
    counts.remove(sequences[0])
    assert not any(len(after([token], counts).tokens) for token in range(30_000))


def test_frequent_sequels_stay_where_there_are_more_than_a_line_holds() -> None:
    rng = np.random.default_rng(1)
    sequels = rng.choice(100, size=4000, p=[0.5, *[0.5 / 99] * 99])
    found = after([200], counts_of(*([200, int(sequel)] for sequel in sequels)))
    assert found.tokens[0] == 0
    assert 0.4 < found.confidence[0] < 0.55


@pytest.mark.parametrize(
    ("unchanged", "temperature", "nodes", "depth", "breadth"),
    [
        (4, 0.0, 1, 1, 1),
        (-1, 0.0, 1, 1, 1),
        (0, -1.0, 1, 1, 1),
        (0, 0.0, -1, 1, 1),
        (0, 0.0, 1, -1, 1),
        (0, 0.0, 1, 1, 9),
    ],
)
def test_numbers_out_of_range_are_refused(
    unchanged: int, temperature: float, nodes: int, depth: int, breadth: int
) -> None:
    with pytest.raises(KernelError):
        ContextCounts().guess(tokens_of([1, 2, 3]), unchanged, temperature, NOISE, nodes, depth, breadth)


def test_what_was_guessed_stays_when_more_is_asked() -> None:
    counts = ContextCounts()
    first = counts.guess(tokens_of([1, 2, 3, 1, 2]), 0, 0.0, NOISE, 3, 3)
    counts.guess(tokens_of([7, 8, 9, 7]), 0, 0.0, NOISE, 3, 3)
    assert first.tokens.tolist() == [3, 1, 2]


def test_closed_counts_start_anew() -> None:
    counts = counts_of([1, 2, 3])
    counts.close()
    counts.close()
    assert len(after([1], counts).tokens) == 0
    counts.add(tokens_of([1, 4]))
    assert after([1], counts).tokens.tolist() == [4]
