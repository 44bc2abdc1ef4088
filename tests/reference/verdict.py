"""What the target says to a draft: coupled, rejection and block verification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from localspec.errors import KernelError
from localspec.types import (
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)
from tests.reference.numbers import gumbel, lane_sum, log, uniform
from tests.reference.rows import COLD, TINY, Support, best_by_score, check_row, patched, target_of


@dataclass
class Walk:
    """One call's constants, and where on the path it is."""

    rows: LogitRows
    tokens: Tokens
    parents: Tokens
    probs: tuple[SparseProbs, ...] | None
    sampling: SamplingParams
    window: Tokens
    noise: Noise
    position: int
    accepted: list[int]

    @property
    def node(self) -> int:
        return self.accepted[-1] if self.accepted else -1

    def children(self) -> Iterator[int]:
        """Nodes after the last accepted one, in trial order."""
        return (int(i) for i in np.flatnonzero(self.parents == self.node))

    def path(self) -> Tokens:
        """The window and the accepted tokens."""
        return np.concatenate((self.window, self.tokens[self.accepted]))

    def target(self) -> tuple[Support, Float64Array]:
        index = 1 + self.node
        position = self.position + len(self.accepted)
        return target_of(self.rows[index], index, self.sampling, self.path(), self.noise, position)

    def draft_probs(self, node: int) -> SparseProbs:
        if self.probs is None:
            return SparseProbs(self.tokens[node : node + 1], np.ones(1))
        return self.probs[node]

    def draft_prob(self, node: int) -> float:
        draft = self.draft_probs(node)
        found = draft.probs[draft.tokens == self.tokens[node]]
        if not (len(found) and found[0] > 0.0):
            raise KernelError(f"draft node {node} is token {self.tokens[node]}, to which its own draft_probs give 0.")
        return float(found[0])

    def accept_uniform(self, node: int, depth: int) -> float:
        return float(uniform(self.noise, Purpose.ACCEPT, self.position + depth, self.tokens[node : node + 1])[0])

    def subtract_draft(self, support: Support, weights: Float64Array, node: int) -> Float64Array:
        """max(weights - draft_probs, 0), not normalised."""
        draft = self.draft_probs(node)
        _, at, where = np.intersect1d(support.tokens, draft.tokens, return_indices=True)
        left = weights[at] - draft.probs[where]
        result: Float64Array = weights.copy()
        result[at] = np.where(left < TINY, 0.0, left)
        return result

    def draw_residual(self, support: Support, weights: Float64Array) -> int:
        some = weights > 0
        tokens = support.tokens[some]
        position = self.position + len(self.accepted)
        scores = log(weights[some]) + gumbel(self.noise, Purpose.RESIDUAL, position, tokens)
        return int(tokens[np.lexsort((tokens, -scores))[0]])


def _verify_coupled(walk: Walk) -> int:
    while True:
        index = 1 + walk.node
        row = patched(walk.rows[index], walk.sampling, walk.path())
        check_row(row, index)
        if walk.sampling.temperature < COLD:
            token = int(np.argmax(row))
        else:
            position = walk.position + len(walk.accepted)
            support, drawn, _ = best_by_score(row, walk.sampling, walk.noise, position, 1)
            token = int(support.tokens[drawn[0]])
        child = next((i for i in walk.children() if walk.tokens[i] == token), None)
        if child is None:
            return token
        walk.accepted.append(child)


def _try_children(walk: Walk, support: Support, probs: Float64Array) -> tuple[int | None, Float64Array]:
    target_probs = probs
    for child in walk.children():
        draft_prob = walk.draft_prob(child)
        target_prob = probs[support.tokens == walk.tokens[child]].sum()
        if walk.accept_uniform(child, len(walk.accepted)) * draft_prob < target_prob:
            return child, probs
        probs = walk.subtract_draft(support, probs, child)
        total = lane_sum(probs)
        # A sum of 0: target equals draft up to rounding, and the refusal had next to no probability.
        probs = probs / total if total > 0.0 else target_probs
    return None, probs


def _verify_rejection(walk: Walk) -> int:
    while True:
        support, probs = walk.target()
        child, probs = _try_children(walk, support, probs)
        if child is None:
            return walk.draw_residual(support, probs)
        walk.accepted.append(child)


def _verify_block(walk: Walk) -> int:
    share, kept_share, kept = 1.0, 1.0, 0
    count = len(walk.tokens)
    for i in range(count):
        draft_prob = walk.draft_prob(i)
        support, probs = walk.target()
        if i > 0:
            total = lane_sum(walk.subtract_draft(support, share * probs, i))
            h = total / (total + (1.0 - share)) if share < 1.0 else 1.0  # 1 also for 0 / 0
            if walk.accept_uniform(i - 1, i - 1) < h:
                kept, kept_share = i, share
        target_prob = float(probs[support.tokens == walk.tokens[i]].sum())
        share = min(1.0, share * target_prob / draft_prob)
        if share <= 0.0:
            break
        walk.accepted.append(i)
    if count and share > 0.0 and walk.accept_uniform(count - 1, count - 1) < share:
        kept = count
    walk.accepted = list(range(kept))
    support, probs = walk.target()
    if kept < count:
        residual = walk.subtract_draft(support, kept_share * probs, kept)
        probs = residual if lane_sum(residual) > 0.0 else probs
    return walk.draw_residual(support, probs)


def verify(
    rows: LogitRows,
    tokens: Tokens,
    parents: Tokens,
    probs: tuple[SparseProbs, ...] | None,
    sampling: SamplingParams,
    window: Tokens,
    noise: Noise,
    position: int,
    rule: Rule,
) -> tuple[Tokens, int]:
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise KernelError(f"draft node {i} has parent {parent}; parents come before children.")
        if rule == Rule.BLOCK and parent != i - 1:
            raise KernelError(f"draft node {i} has parent {parent}: the block rule takes chains only.")
    walk = Walk(rows, tokens, parents, probs, sampling, window, noise, position, [])
    rules = {Rule.COUPLED: _verify_coupled, Rule.REJECTION: _verify_rejection, Rule.BLOCK: _verify_block}
    next_token = rules[rule](walk)
    return np.array(walk.accepted, dtype=np.int32), next_token
