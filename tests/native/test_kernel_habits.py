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
from localspec.native.suffix import SuffixIndex
from localspec.types import Noise, Purpose
from tests import reference

makers: list[Callable[[int], Any]] = [SuffixIndex, reference.SuffixIndex]
small = st.lists(st.integers(0, 3), min_size=1, max_size=14)
NOISE = Noise(7)


def tokens_of(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def test_what_was_said_most_often_comes_first_and_its_chance_is_told() -> None:
    """After "2": three times 5, once 6; a context of one token that was met four times with two sequels has a say of
    4 / 6, and there is no shorter one."""
    index = SuffixIndex()
    found = index.habits(tokens_of([2, 5, 2, 5, 2, 6, 2, 5, 2]), 0, 0.0, NOISE, 8, 1, 8)
    assert found.tokens.tolist()[:2] == [5, 6]
    lone = SuffixIndex()
    lone.add([tokens_of([9, 2, 5]), tokens_of([8, 2, 5]), tokens_of([7, 2, 5]), tokens_of([6, 2, 6])])
    found = SuffixIndex().habits(tokens_of([2]), 0, 0.0, NOISE, 8, 1, 8, lone)
    assert found.tokens.tolist() == [5, 6]
    assert found.confidence.tolist() == pytest.approx([3 / 4 * 4 / 6, 1 / 4 * 4 / 6])


def test_longer_contexts_have_their_say_first() -> None:
    past = SuffixIndex()
    past.add([tokens_of([1, 2, 5])] * 2 + [tokens_of([4, 2, 6])] * 6)
    assert SuffixIndex().habits(tokens_of([1, 2]), 0, 0.0, NOISE, 1, 1, 1, past).tokens.tolist() == [5]
    assert SuffixIndex().habits(tokens_of([3, 2]), 0, 0.0, NOISE, 1, 1, 1, past).tokens.tolist() == [6]


def test_what_the_conversation_says_outweighs_past_answers() -> None:
    past = SuffixIndex()
    past.add([tokens_of([2, 6])] * 5)
    assert SuffixIndex().habits(tokens_of([2, 5, 2]), 0, 0.0, NOISE, 1, 1, 1, past).tokens.tolist() == [5]


@settings(max_examples=150)
@given(
    history=small,
    kept=st.integers(0, 20),
    past=st.lists(small, max_size=6),
    temperature=st.sampled_from([0.0, 0.8]),
    nodes=st.integers(0, 9),
    depth=st.integers(0, 6),
    breadth=st.sampled_from([1, 2, 8]),
)
def test_both_implementations_guess_the_same(
    history: list[int], kept: int, past: list[list[int]], temperature: float, nodes: int, depth: int, breadth: int
) -> None:
    found = []
    for make in makers:
        own, others = make(64), make(64)
        others.add([tokens_of(one) for one in past])
        own.sync(tokens_of(history[: min(kept, len(history))]))
        found.append(
            own.habits(tokens_of(history), min(kept, len(history)), temperature, NOISE, nodes, depth, breadth, others)
        )
    native, expected = found
    assert native.tokens.tolist() == expected.tokens.tolist()
    assert native.parents.tolist() == expected.parents.tolist()
    assert native.confidence.tolist() == pytest.approx(expected.confidence.tolist(), rel=1e-6)


def test_under_a_temperature_it_guesses_what_the_target_draws() -> None:
    """Of tokens that are equally likely, the first guess is the one that the noise of that position prefers."""
    past, rng = SuffixIndex(), np.random.default_rng(3)
    past.add([tokens_of([1, token]) for token in (10, 11, 12, 13)])
    drawn = Counter[int]()
    for position in range(1, 40):
        history = rng.integers(20, 30, size=position).astype(np.int32)
        history[-1] = 1
        index = SuffixIndex()
        (guess,) = index.habits(history, 0, 1.0, NOISE, 1, 1, 1, past).tokens.tolist()
        noise = reference.gumbel(NOISE, Purpose.SAMPLE, position, tokens_of([10, 11, 12, 13]))
        assert guess == 10 + int(np.argmax(noise))
        drawn[guess] += 1
    assert len(drawn) == 4


def test_a_frequent_context_is_counted_by_some_of_its_places() -> None:
    past, rng = SuffixIndex(), np.random.default_rng(1)
    sequels = rng.choice([5, 6], size=4000, p=[0.8, 0.2])
    past.add(
        [
            tokens_of([int(before), 2, int(sequel)])
            for before, sequel in zip(rng.integers(10, 60, 4000), sequels, strict=True)
        ]
    )
    found = SuffixIndex().habits(tokens_of([2]), 0, 0.0, NOISE, 2, 1, 2, past)
    assert found.tokens.tolist() == [5, 6]
    assert 0.6 < found.confidence[0] < 0.95


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
        SuffixIndex().habits(tokens_of([1, 2, 3]), unchanged, temperature, NOISE, nodes, depth, breadth)
