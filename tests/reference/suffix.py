"""Suffix decoding with a sorted list."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from localspec.errors import KernelError
from localspec.native.indexes import TreeGuess
from localspec.types import Tokens
from tests.native.guesses import NOTHING, Continuation

_MOST_VOTERS, _MOST_NODES = 32, 64
_FEW = 64
_Place = tuple[int, int]
"""(sequence, index of a token in it)."""


class _Candidate(NamedTuple):
    reach: float
    parent: int
    latest: _Place
    token: int
    depth: int
    chance: float
    voters: list[_Place]


class SuffixIndex:
    """Places of tokens, sorted by the tokens before them read backwards, then by age."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._sequences: list[list[int] | None] = []
        self._order: list[_Place] = []

    def _tokens(self, sequence: int) -> list[int]:
        tokens = self._sequences[sequence]
        assert tokens is not None
        return tokens

    def _before(self, place: _Place) -> list[int]:
        sequence, at = place
        return self._tokens(sequence)[max(0, at - self._depth) : at][::-1]

    def _key(self, place: _Place) -> tuple[list[int], _Place]:
        return self._before(place), place

    def _enter(self, places: list[_Place]) -> None:
        if len(places) > _FEW:
            self._order = sorted(self._order + places, key=self._key)
            return
        for place in places:
            insort(self._order, place, key=self._key)

    def add(self, sequences: Sequence[Tokens]) -> int:
        found = [_checked(tokens) for tokens in sequences]
        first = len(self._sequences)
        self._sequences += found
        self._enter([(first + i, at) for i, tokens in enumerate(found) for at in range(len(tokens))])
        return first

    def remove(self, sequence: int) -> None:
        if not 0 <= sequence < len(self._sequences) or self._sequences[sequence] is None:
            raise KernelError(f"the suffix index has no sequence {sequence}.")
        self._order = [place for place in self._order if place[0] != sequence]
        self._sequences[sequence] = None

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        fresh = _checked(tokens)
        if not self._sequences or self._sequences[-1] is None:
            self._sequences.append([])
        newest = len(self._sequences) - 1
        held = self._tokens(newest)
        same = min(unchanged, len(held))
        while same < min(len(fresh), len(held)) and fresh[same] == held[same]:
            same += 1
        if same < len(held):
            self._order = [place for place in self._order if place[0] != newest or place[1] < same]
        self._sequences[newest] = fresh
        self._enter([(newest, at) for at in range(same, len(fresh))])

    def guess(
        self, context: Tokens, max_nodes: int, max_depth: int, tree: bool = False, runs_on: bool = False
    ) -> Continuation:
        end = context[-self._depth :].tolist()[::-1]
        where = bisect_left(self._order, end, key=self._before)
        match = max(
            (_common(end, self._before(place)) for place in self._order[max(0, where - 1) : where + 1]), default=0
        )
        if not match or max_nodes < 1 or max_depth < 1:
            return NOTHING
        low = bisect_left(self._order, end[:match], key=lambda place: self._before(place)[:match])
        high = bisect_right(self._order, end[:match], key=lambda place: self._before(place)[:match])
        used = min(high - low, _MOST_VOTERS)
        voters = [self._order[low + i * (high - low) // used] for i in range(used)]
        nodes: list[_Candidate] = []
        waiting = self._children(nodes, -1, match, voters, runs_on, tree)
        while waiting and len(nodes) < min(max_nodes, _MOST_NODES):
            best = max(waiting, key=lambda one: (one.reach, -one.parent, one.latest))
            waiting.remove(best)
            nodes.append(best)
            if best.depth < max_depth:
                waiting += self._children(nodes, len(nodes) - 1, match, best.voters, runs_on, tree)
        score = 0.0
        for node in nodes:
            score += node.reach
        return Continuation(
            np.array([node.token for node in nodes], dtype=np.int32),
            np.array([node.parent for node in nodes], dtype=np.int32),
            np.array([node.chance for node in nodes]),
            score,
            match,
            nodes[0].latest[0],
        )

    def follow(
        self,
        tokens: Tokens,
        unchanged: int,
        max_nodes: int,
        max_depth: int,
        tree: bool = False,
        other: SuffixIndex | None = None,
        least: int = 1,
    ) -> TreeGuess:
        self.sync(tokens, unchanged)
        best, sequence = self.guess(tokens, max_nodes, max_depth, tree, True), -1
        if other is not None:
            found = other.guess(tokens, max_nodes, max_depth, tree)
            if found.score > best.score and found.match >= least:
                best, sequence = found, found.sequence
        scores = [chance if chance < 0.5 else chance / (1.0 - chance) for chance in best.chances.tolist()]
        return TreeGuess(best.tokens, best.parents, np.array(scores, dtype=np.float32), best.match, sequence)

    def _children(
        self, nodes: list[_Candidate], parent: int, match: int, voters: list[_Place], runs_on: bool, tree: bool
    ) -> list[_Candidate]:
        """What may follow a node; of a chain the best of it only."""
        path: list[int] = []
        node = parent
        while node >= 0:
            path.insert(0, nodes[node].token)
            node = nodes[node].parent
        depth, reach = len(path), nodes[parent].reach if parent >= 0 else 1.0
        votes: dict[int, list[_Place]] = {}
        for sequence, at in voters:
            tokens = self._tokens(sequence)
            if at + depth < len(tokens):
                votes.setdefault(tokens[at + depth], []).append((sequence, at))
            elif runs_on:  # it goes on with what is guessed
                votes.setdefault(path[at + depth - len(tokens)], []).append((sequence, at))
        total = sum(map(len, votes.values())) + 1.0 / (match + depth)
        found = []
        for token, places in votes.items():
            chance = len(places) / total
            found.append(_Candidate(reach * chance, parent, max(places), token, depth + 1, chance, places))
        return found if tree or not found else [max(found, key=lambda one: (one.reach, one.latest))]

    def check_integrity(self) -> str:
        places = [(i, at) for i, tokens in enumerate(self._sequences) for at in range(len(tokens or ()))]
        return "" if self._order == sorted(places, key=self._key) else "the suffix index is out of order."

    def tokens_held(self) -> int:
        return len(self._order)

    def memory_bytes(self) -> int:
        """A rough guess: what CPython needs for the lists and their numbers."""
        return 200 + 150 * len(self._order) + 60 * len(self._sequences)

    def close(self) -> None:
        self._sequences, self._order = [], []


def _checked(tokens: Tokens) -> list[int]:
    found: list[int] = tokens.tolist()
    if found and min(found) < 0:
        raise KernelError(f"the suffix index cannot take the token {min(found)}.")
    return found


def _common(one: list[int], other: list[int]) -> int:
    """Tokens at the beginning that are the same."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same
