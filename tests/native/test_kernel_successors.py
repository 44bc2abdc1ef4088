"""Token recycling: both implementations against each other, and what they guess against all paths there are."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.native import kernels
from localspec.native.guess import Guess
from localspec.native.successors import SUCCESSORS, SuccessorIndex
from localspec.types import NO_TOKENS, LogitRows, Noise, Purpose, SamplingParams
from tests.native.inside import memory_bytes

from .backends import BACKENDS, REFERENCE, Backend

both = pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)
MOST_NODES = 64


def rows(seed: int, count: int, vocabulary: int, spread: float = 3.0, fill: float | None = None) -> LogitRows:
    """Random rows; with `fill`, only some 4 tokens of each have another logit than that."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(0.0, spread, (count, vocabulary)).astype(np.float32)
    if fill is not None:
        matrix[rng.random((count, vocabulary)) > 4.0 / vocabulary] = fill
    return LogitRows.from_matrix(matrix)


def taught(backend: Backend, seed: int, vocabulary: int = 24, spread: float = 3.0, fill: float | None = None) -> Any:
    """An index that has seen a row behind every token."""
    index = backend.successors()
    index.learn(rows(seed, vocabulary, vocabulary, spread, fill), range(vocabulary), range(vocabulary))
    return index


def content(guess: Guess) -> tuple[list[int], list[int], bytes]:
    return guess.tokens.tolist(), guess.parents.tolist(), guess.confidence.tobytes()


def reaches(guess: Guess) -> list[float]:
    """Chance that a guess and all before it are right."""
    found: list[float] = []
    for parent, chance in zip(guess.parents.tolist(), guess.confidence.tolist(), strict=True):
        found.append(chance * (found[parent] if parent >= 0 else 1.0))
    return found


def levels(guess: Guess) -> list[int]:
    found: list[int] = []
    for parent in guess.parents.tolist():
        found.append(1 + (found[parent] if parent >= 0 else 0))
    return found


asked = {
    "seed": st.integers(0, 2**20),
    "spread": st.sampled_from([0.0, 0.5, 3.0, 60.0, 300.0]),
    "temperature": st.sampled_from([0.0, 1e-31, 0.1, 0.7, 1.0, 100.0]),
    "nodes": st.integers(0, 70),
    "depth": st.integers(0, 9),
    "breadth": st.integers(1, SUCCESSORS),
}


@pytest.mark.parametrize("backend", BACKENDS[1:], ids=str)
@settings(max_examples=60)
@given(**asked, fill=st.sampled_from([None, -20.0, -math.inf]))
def test_native_guesses_with_the_same_bits(
    backend: Backend,
    seed: int,
    spread: float,
    temperature: float,
    nodes: int,
    depth: int,
    breadth: int,
    fill: float | None,
) -> None:
    noise, position = Noise(seed, stream=3), 2**31 + seed
    twins = [taught(one, seed, spread=spread, fill=fill) for one in (REFERENCE, backend)]
    for token in (seed % 24, 23, 24, -1):
        first, second = (one.guess(token, temperature, noise, position, nodes, depth, breadth) for one in twins)
        assert content(first) == content(second)


@both
@given(**asked)
def test_a_guess_is_a_tree_that_grows_where_it_is_likeliest_to_be_reached(
    backend: Backend, seed: int, spread: float, temperature: float, nodes: int, depth: int, breadth: int
) -> None:
    guess = taught(backend, seed, spread=spread).guess(seed % 24, temperature, Noise(seed), 7, nodes, depth, breadth)
    found, parents = reaches(guess), guess.parents.tolist()
    assert len(found) <= min(nodes, MOST_NODES)
    assert (len(found) > 0) == (nodes > 0 and depth > 0)
    assert all(-1 <= parent < node for node, parent in enumerate(parents))
    assert max(levels(guess), default=0) <= depth
    assert max((parents.count(node) for node in range(-1, len(parents))), default=0) <= breadth
    rounding = float(np.finfo(np.float32).tiny)  # smaller chances have fewer bits
    assert all(later <= sooner * (1.0 + 1e-6) + rounding for sooner, later in pairwise(found))
    siblings = list(zip(parents, guess.tokens.tolist(), strict=True))
    assert len(set(siblings)) == len(siblings)
    whole = math.fsum(chance for chance, parent in zip(guess.confidence.tolist(), parents, strict=True) if parent < 0)
    assert whole <= 1.0 + 1e-6


@both
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 3.0])
def test_the_first_guess_is_what_the_target_would_draw(backend: Backend, temperature: float) -> None:
    index, vocabulary = taught(backend, 5, SUCCESSORS), SUCCESSORS
    sampling = SamplingParams(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    seen, row = rows(5, vocabulary, vocabulary), 3
    for seed in range(60):
        drawn, _ = kernels.sample(seen, row, sampling, NO_TOKENS, Noise(seed), 11, 1)
        assert index.guess(row, temperature, Noise(seed), 11, 1, 1, 1).tokens.tolist() == drawn.tolist()


@both
def test_chances_follow_the_noise_and_add_up_to_what_is_kept(backend: Backend) -> None:
    index, temperature, noise = taught(backend, 2), 0.8, Noise(4)
    shares = index.guess(3, 0.0, noise, 20, 64, 1, SUCCESSORS)
    guess = index.guess(3, temperature, noise, 20, 64, 1, SUCCESSORS)
    assert sorted(guess.tokens.tolist()) == sorted(shares.tokens.tolist())
    assert guess.confidence.sum() == pytest.approx(shares.confidence.sum(), rel=1e-6)
    share = dict(zip(shares.tokens.tolist(), shares.confidence.tolist(), strict=True))
    gumbel = kernels.gumbel(noise, Purpose.SAMPLE, 20, guess.tokens).tolist()
    scores = [
        math.log(share[token]) + temperature * one for token, one in zip(guess.tokens.tolist(), gumbel, strict=True)
    ]
    assert scores == sorted(scores, reverse=True)
    ratios = np.log(guess.confidence[:-1] / guess.confidence[1:])
    assert ratios.tolist() == pytest.approx([one - other for one, other in pairwise(scores)], abs=1e-5)


@both
def test_kept_are_shares_of_the_32_likeliest(backend: Backend) -> None:
    index = backend.successors()
    matrix = np.zeros((1, 64), dtype=np.float32)
    matrix[0, [5, 9]] = 3.0, 2.0
    index.learn(LogitRows.from_matrix(matrix), [0], [1])
    guess = index.guess(1, 0.0, Noise(0), 1, 64, 1, SUCCESSORS)
    assert guess.tokens.tolist() == [5, 9, 0, 1, 2, 3, 4, 6]
    known = math.exp(3.0) + math.exp(2.0) + 30.0
    assert guess.confidence[:3].tolist() == pytest.approx([math.exp(3.0) / known, math.exp(2.0) / known, 1.0 / known])


@both
def test_behind_what_is_unlikely_to_be_reached_nothing_is_guessed(backend: Backend) -> None:
    index = backend.successors()
    even = np.full((1, 40), -np.inf, dtype=np.float32)
    even[0, :6] = 0.0  # 1/6 each, and behind two of them 1/36
    index.learn(LogitRows.from_matrix(np.repeat(even, 6, axis=0)), range(6), range(6))
    assert max(levels(index.guess(0, 0.0, Noise(0), 1, 64, 9, 3))) == 2


@both
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_hold_no_numbers_and_tokens_that_are_none_are_passed_over(backend: Backend, bad: float) -> None:
    index = backend.successors()
    matrix = np.zeros((3, 40), dtype=np.float32)
    matrix[0, 7] = matrix[2, 8] = 5.0
    index.learn(LogitRows.from_matrix(matrix), [0, 0, 0], [1, -1, 40])
    matrix[1] = bad
    index.learn(LogitRows.from_matrix(matrix), [1, 1, 2], [1, 2, 3])
    first = [index.guess(token, 0.0, Noise(0), 1, 1, 1, 1).tokens.tolist() for token in (1, 2, 3, -1, 40)]
    assert first == [[7], [], [8], [], []]
    assert (matrix[[0, 2]].max(axis=1) == 5.0).all(), "rows hold what they held"


@both
def test_the_last_row_behind_a_token_has_the_last_word(backend: Backend) -> None:
    index, seen = backend.successors(), rows(1, 4, 40)
    index.learn(seen, [0, 1, 2], [5, 5, 5])
    alone = backend.successors()
    alone.learn(seen, [2], [5])
    first, second = (one.guess(5, 0.0, Noise(0), 1, 8, 1, 8) for one in (index, alone))
    assert content(first) == content(second)


@both
def test_a_narrow_row_leaves_nothing_of_a_wide_one(backend: Backend) -> None:
    index = backend.successors()
    matrix = np.zeros((2, 40), dtype=np.float32)
    matrix[1], matrix[1, 3] = -np.inf, 0.0
    index.learn(LogitRows.from_matrix(matrix), [0, 1], [5, 5])
    assert index.guess(5, 0.0, Noise(0), 1, 8, 1, 8).tokens.tolist() == [3]


@both
def test_memory_is_bounded_by_the_vocabulary(backend: Backend) -> None:
    index = backend.successors()
    assert memory_bytes(index) == 0
    index.learn(rows(1, 1, 40), [0], [3])
    assert memory_bytes(index) == 40 * 64
    for token in range(40):
        index.learn(rows(1, 1, 40), [0], [token])
    assert memory_bytes(index) == 40 * 64
    index.learn(rows(1, 1, 50), [0], [4])
    assert memory_bytes(index) == 50 * 64
    assert not len(index.guess(3, 0.0, Noise(0), 1, 1, 1, 1).tokens), "another vocabulary"
    index.clear()
    assert memory_bytes(index) == 0
    assert not len(index.guess(4, 0.0, Noise(0), 1, 1, 1, 1).tokens)


@both
def test_a_vocabulary_smaller_than_what_is_kept(backend: Backend) -> None:
    index = backend.successors()
    index.learn(rows(3, 2, 2), [0, 1], [0, 1])
    guess = index.guess(0, 0.5, Noise(1), 1, 64, 3, SUCCESSORS)
    assert set(guess.tokens.tolist()) == {0, 1}


def test_what_was_guessed_stays_when_more_is_asked() -> None:
    index = SuccessorIndex()
    index.learn(rows(1, 24, 24), range(24), range(24))
    first = index.guess(3, 0.0, Noise(1), 1, 9, 9)
    before = content(first)
    index.guess(4, 1.0, Noise(2), 1, 9, 9, 8)
    assert content(first) == before


@pytest.mark.parametrize(("nodes", "depth", "breadth"), [(-1, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, SUCCESSORS + 1)])
def test_numbers_out_of_range_are_refused(nodes: int, depth: int, breadth: int) -> None:
    with pytest.raises(KernelError, match=f"{nodes} nodes of depth {depth} and {breadth} after each"):
        SuccessorIndex().guess(1, 0.0, Noise(0), 1, nodes, depth, breadth)


@pytest.mark.parametrize(("indices", "tokens"), [([0], [1, 2]), ([0, 3], [1, 2]), ([-1], [1])])
def test_rows_that_are_not_there_are_refused(indices: list[int], tokens: list[int]) -> None:
    with pytest.raises(KernelError, match="of 3 came with"):
        SuccessorIndex().learn(rows(1, 3, 40), indices, tokens)
