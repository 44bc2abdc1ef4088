"""Suffix decoding against a brute-force search, and both implementations against each other, through any edits."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.types import Tokens
from tests.native.guesses import Continuation, GuessingIndex
from tests.native.inside import intact, memory_bytes, tokens_held

from .backends import BACKENDS, REFERENCE, Backend

both = pytest.mark.parametrize("backend", BACKENDS[:2], ids=str)


def tokens_of(values: Any) -> Tokens:
    return np.array(values, dtype=np.int32)


def content(found: Continuation) -> object:
    return tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in found)


def occurrences(sequences: list[list[int]], context: list[int], depth: int) -> tuple[int, list[list[int]]]:
    """The longest end of the context that stands before a token, and what follows it, wherever it does."""
    for match in range(min(depth, len(context)), 0, -1):
        end = context[-match:]
        found = [
            one[at:] for one in sequences for at in range(match, len(one)) if one[at - match : at] == end
        ]  # fmt: skip
        if found:
            return match, found
    return 0, []


small = st.lists(st.integers(0, 2), max_size=14)


@both
@given(sequences=st.lists(small, max_size=4), context=small, depth=st.integers(1, 6), length=st.integers(0, 5))
def test_a_chain_is_what_most_places_of_the_longest_match_say(
    backend: Backend, sequences: list[list[int]], context: list[int], depth: int, length: int
) -> None:
    index = backend.suffixes(depth)
    index.add([tokens_of(one) for one in sequences])
    found = index.guess(tokens_of(context), length, length)
    match, sequels = occurrences(sequences, context, depth)
    if not (match and length):
        assert (len(found.tokens), found.score, found.sequence) == (0, 0.0, -1)
        return
    assert found.match == match
    assert found.parents.tolist() == list(range(-1, len(found.tokens) - 1))
    reach, score = 1.0, 0.0
    for step, (token, chance) in enumerate(zip(found.tokens.tolist(), found.chances.tolist(), strict=True)):
        votes = [one[step] for one in sequels if len(one) > step]
        most = max(votes.count(one) for one in votes)
        assert votes.count(token) == most
        assert chance == pytest.approx(most / (len(votes) + 1 / (match + step)))
        reach *= chance
        score += reach
        sequels = [one for one in sequels if one[step : step + 1] == [token]]
    assert found.score == pytest.approx(score)
    assert len(found.tokens) == length or all(len(one) == len(found.tokens) for one in sequels)


@both
@given(sequences=st.lists(small, max_size=4), context=small, nodes=st.integers(0, 12), depth=st.integers(0, 4))
def test_a_tree_holds_the_likeliest_nodes(
    backend: Backend, sequences: list[list[int]], context: list[int], nodes: int, depth: int
) -> None:
    index = backend.suffixes(6)
    index.add([tokens_of(one) for one in sequences])
    found = index.guess(tokens_of(context), nodes, depth, tree=True)
    _, sequels = occurrences(sequences, context, 6)
    paths = {tuple(one[:n]) for one in sequels for n in range(1, min(depth, len(one)) + 1)}
    assert len(found.tokens) == min(nodes, len(paths))
    chosen: list[tuple[int, ...]] = []
    reaches: list[float] = []
    for token, parent, chance in zip(
        found.tokens.tolist(), found.parents.tolist(), found.chances.tolist(), strict=True
    ):
        assert parent < len(chosen)
        chosen.append((*(chosen[parent] if parent >= 0 else ()), token))
        reaches.append(chance * (reaches[parent] if parent >= 0 else 1.0))
    assert set(chosen) <= paths
    assert len(set(chosen)) == len(chosen)
    assert reaches == sorted(reaches, reverse=True)
    assert found.score == pytest.approx(sum(reaches))


@both
def test_a_sequence_that_repeats_itself_runs_on(backend: Backend) -> None:
    index = backend.suffixes(8)
    history = tokens_of([7, 1, 2, 3, 1, 2, 3])
    index.sync(history)
    assert index.guess(history, 7, 7, runs_on=True).tokens.tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert index.guess(history, 7, 7).tokens.tolist() == [1, 2, 3]


@both
def test_of_many_places_some_vote_evenly(backend: Backend) -> None:
    index = backend.suffixes(4)
    index.add([tokens_of([9, 1, 5])] * 300 + [tokens_of([9, 1, 6])] * 100)
    found = index.guess(tokens_of([9, 1]), 2, 1, tree=True)
    assert found.tokens.tolist() == [5, 6]
    assert found.chances.tolist() == pytest.approx([24 / 32.5, 8 / 32.5])


EDITS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=3)),
        st.tuples(st.just("add long"), st.integers(60, 130)),
        st.tuples(st.just("sync"), st.integers(0, 40), st.lists(st.integers(0, 3), max_size=30)),
        st.tuples(st.just("remove"), st.integers(0, 5)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(edits=EDITS, depth=st.sampled_from([1, 3, 64]), context=st.lists(st.integers(0, 3), max_size=8))
def test_both_implementations_agree_after_any_edits(
    edits: list[tuple[Any, ...]], depth: int, context: list[int]
) -> None:
    twins = [backend.suffixes(depth) for backend in BACKENDS[:2]]
    living: list[int] = []
    newest: list[int] = []
    last = -1
    for edit in edits:
        if edit[0] == "add":
            firsts = [one.add([tokens_of(tokens) for tokens in edit[1]]) for one in twins]
            assert firsts[0] == firsts[1]
            living += range(firsts[0], firsts[0] + len(edit[1]))
            last, newest = firsts[0] + len(edit[1]) - 1, edit[1][-1] if edit[1] else newest
        elif edit[0] == "add long":
            newest = [i * i % 7 % 4 for i in range(edit[1])]
            last, other = (one.add([tokens_of(newest)]) for one in twins)
            assert last == other
            living.append(last)
        elif edit[0] == "remove" and living:
            gone = living.pop(-1 - edit[1] % len(living))
            for one in twins:
                one.remove(gone)
        elif edit[0] == "sync" and living and living[-1] == last:
            kept = min(edit[1], len(newest))
            newest = newest[:kept] + edit[2]
            for one in twins:
                one.sync(tokens_of(newest))
        for one in twins:
            assert intact(one)
        assert tokens_held(twins[0]) == tokens_held(twins[1])
        for tree in (False, True):
            guesses = [content(one.guess(tokens_of(context), 9, 5, tree=tree)) for one in twins]
            assert guesses[0] == guesses[1]


@both
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32))
def test_token_by_token_equals_all_at_once(backend: Backend, seed: int) -> None:
    history = np.random.default_rng(seed).integers(0, 4, size=300).astype(np.int32)
    grown, whole = backend.suffixes(16), backend.suffixes(16)
    for end in range(0, 301, 3):
        grown.sync(history[:end], max(0, end - 3))
    assert intact(grown)
    whole.sync(history)
    assert content(grown.guess(history, 8, 8, runs_on=True)) == content(whole.guess(history, 8, 8, runs_on=True))
    for end in range(300, 100, -7):
        grown.sync(history[:end], end)
    assert intact(grown)
    whole.sync(history[:104])
    grown.sync(history[:104])
    assert content(grown.guess(history[:104], 8, 8)) == content(whole.guess(history[:104], 8, 8))


@both
@settings(max_examples=40)
@given(
    steps=st.lists(st.tuples(st.integers(0, 20), small), min_size=1, max_size=6),
    others=st.lists(small, max_size=3),
    nodes=st.integers(0, 9),
    tree=st.booleans(),
    least=st.integers(1, 4),
)
def test_a_pass_in_one_call_is_sync_and_the_better_of_two_guesses(
    backend: Backend, steps: list[tuple[int, list[int]]], others: list[list[int]], nodes: int, tree: bool, least: int
) -> None:
    one, apart, other = (backend.suffixes(8) for _ in range(3))
    other.add([tokens_of(tokens) for tokens in others])
    history: list[int] = []
    for kept, fresh in steps:
        kept = min(kept, len(history))
        history = history[:kept] + fresh
        for beside in (None, other):
            found = one.follow(tokens_of(history), kept, nodes, 5, tree=tree, other=beside, least=least)
            apart.sync(tokens_of(history))
            mine = apart.guess(tokens_of(history), nodes, 5, tree=tree, runs_on=True)
            theirs = other.guess(tokens_of(history), nodes, 5, tree=tree)
            best = theirs if beside is not None and theirs.score > mine.score and theirs.match >= least else mine
            assert found.tokens.tolist() == best.tokens.tolist()
            assert found.parents.tolist() == best.parents.tolist()
            odds = [chance if chance < 0.5 else chance / (1 - chance) for chance in best.chances.tolist()]
            assert found.confidence.tolist() == np.array(odds, dtype=np.float32).tolist()
            assert (found.match, found.sequence) == (best.match, theirs.sequence if best is theirs else -1)
        assert intact(one)


@both
def test_what_is_removed_is_not_found_and_its_memory_is_used_again(backend: Backend) -> None:
    index = backend.suffixes(32)
    rng = np.random.default_rng(5)
    numbers = [index.add([rng.integers(0, 50, size=100).astype(np.int32)]) for _ in range(40)]
    index.add([tokens_of([1, 2, 3])])
    before = memory_bytes(index)
    for round_ in range(3):
        for number in numbers:
            index.remove(number)
        assert intact(index)
        assert tokens_held(index) == 3
        assert index.guess(tokens_of([1, 2]), 3, 3).tokens.tolist() == [3]
        numbers = [index.add([rng.integers(0, 50, size=100).astype(np.int32)]) for _ in range(40)]
        assert memory_bytes(index) < 2 * before, round_
    with pytest.raises(KernelError, match="no sequence"):
        index.remove(0)


@both
def test_a_closed_index_starts_anew(backend: Backend) -> None:
    index = backend.suffixes(8)
    index.sync(np.arange(50_000 if backend is not REFERENCE else 500, dtype=np.int32) % 100)
    assert memory_bytes(index) > 16 * tokens_held(index)
    index.close()
    index.close()
    assert tokens_held(index) == 0
    assert memory_bytes(index) < 10_000
    index.sync(tokens_of([1, 2, 1]))
    assert index.guess(tokens_of([1]), 3, 3, runs_on=True).tokens.tolist() == [2, 1, 2]


@both
def test_negative_tokens_are_refused_and_match_nothing(backend: Backend) -> None:
    index = backend.suffixes(8)
    for wrong in ([-1], [3, -7]):
        with pytest.raises(KernelError):
            index.add([tokens_of(wrong)])
        with pytest.raises(KernelError):
            index.sync(tokens_of(wrong))
    index.add([tokens_of([1, 2, 3]), tokens_of([4])])
    assert intact(index)
    assert index.guess(tokens_of([-1]), 3, 3).match == 0
    assert index.guess(tokens_of([-1, 1]), 3, 3).match == 1


def test_bad_arguments_are_refused() -> None:
    for depth in (0, 65):
        with pytest.raises(KernelError, match=f"{depth} tokens deep"):
            GuessingIndex(depth)
    index = GuessingIndex(3)
    with pytest.raises(KernelError, match="cannot be unchanged"):
        index.sync(tokens_of([1, 2]), unchanged=3)
    with pytest.raises(KernelError, match="3 of 2 tokens"):
        index.follow(tokens_of([1, 2]), 3, 1, 1)
    with pytest.raises(KernelError, match="were asked for"):
        index.guess(tokens_of([1]), -1, 2)


@both
def test_a_damaged_index_is_noticed(backend: Backend) -> None:
    index = backend.suffixes(4)
    index.add([tokens_of([1, 2, 1, 3])])
    assert intact(index)
    if backend.name == "reference":
        index._order.reverse()
    else:  # the first token, behind four int32 and three int64: struct ls_suffix in native/suffix.h
        places = ctypes.c_size_t.from_address(index._handle + 40).value
        ctypes.c_int32.from_address(places + 16).value = 9
    assert not intact(index)
