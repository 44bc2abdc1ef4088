"""Draft trees that grow where they are likeliest to be reached (EAGLE-2: Li et al. 2024, arXiv 2406.16858).

A level costs one pass of the draft model, however many paths it goes on: each time the most promising guesses so far
are followed, wherever they stand, and in the end the best ones are sent, which always form a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from localspec.drafters.models.draft_model import DraftContext, DraftModel, DraftModelSettings, masked
from localspec.engine.interfaces import EMPTY_DRAFT, HIGHEST_PROBABILITY, Draft, DraftRequest
from localspec.errors import KernelError
from localspec.native import kernels
from localspec.types import Feed, Float32Array, LogitRows, Purpose, Tokens

_LEAST_REACH = 0.02
"""Least probability of reaching a guess at which the draft goes on after it."""


class TreeContext(DraftContext, Protocol):
    """A `DraftContext` whose `decode` takes several paths of one slot that begin with the same history."""

    n_paths: int
    """Most paths of a slot that go different ways."""


@dataclass(slots=True, eq=False)
class _Node:
    """A guessed token; or the last token of the history, which is the parent of the first guesses and has no parent."""

    path: Tokens
    """int32[n]: the history and all guesses up to this one."""
    parent: _Node | None = None
    depth: int = 0
    reach: float = 1.0
    """Probability that this guess and all guesses before it are right."""
    confidence: float = 1.0
    followed: bool = False
    """Whether the draft goes on after this guess, which takes a path in the context."""


class BestFirst(DraftModel):
    """A `DraftModel` that draws such trees with `branches` above 1; but chains with leaves beside them for rules that a
    choice among drawn tokens would bend (`needs_probs`).
    """

    def __init__(
        self,
        context: TreeContext,
        end_tokens: frozenset[int],
        settings: DraftModelSettings,
        name: str,
        release: Callable[[], None] | None = None,
    ) -> None:
        """See `DraftModel`; `branches` is also how many guesses are followed in a pass."""
        super().__init__(context, end_tokens, settings, name, release)
        self._n_paths, self._n_ctx = context.n_paths, context.n_ctx

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if self.settings.branches == 1 or self._n_paths == 1:
            return super().draft(requests)
        return [super(BestFirst, self).draft([one])[0] if one.needs_probs else self._tree(one) for one in requests]

    def _tree(self, request: DraftRequest) -> Draft:
        if self._start(request).done:
            return EMPTY_DRAFT
        guesses: list[_Node] = []
        waiting, ways = [_Node(request.history.tokens)], 1
        for _ in range(request.max_depth):
            rows = self._decode([Feed(request.slot, node.path, len(node.path)) for node in waiting])
            for node, said in zip(waiting, rows, strict=True):
                node.followed = True
                guesses += self._behind(request, node, said)
            waiting, ways = self._worth_following(request, guesses, ways)
            if not waiting:
                break
        return self._chosen(request, guesses)

    def _behind(self, request: DraftRequest, node: _Node, rows: LogitRows) -> list[_Node]:
        """The best few guesses after a node, in trial order."""
        sampling, noise, count = request.asked.sampling, request.noise, self.settings.branches
        try:
            rows = masked(request, node.path, rows)
            found, shares = kernels.sample(rows, 0, sampling, node.path, noise, len(node.path), count)
        except KernelError:  # nothing left to draw
            return []
        chances = _chances(request, len(node.path), found, shares, count)
        return [
            _Node(np.append(node.path, token), node, node.depth + 1, node.reach * chance, chance)
            for token, chance in zip(found, chances, strict=True)
        ]

    def _worth_following(self, request: DraftRequest, guesses: Sequence[_Node], ways: int) -> tuple[list[_Node], int]:
        """The most promising guesses that were not followed yet, and how many ways the context's paths then go."""
        best = _best(guesses, request.max_nodes)
        if not best or not request.price.pays(_likeliest(best), len(best)):
            return [], ways
        found: list[_Node] = []
        least = _LEAST_REACH
        if len(best) == request.max_nodes:  # a guess after a less likely node would not be sent
            least = max(least, best[-1].reach)
        for node in best:
            full = node.depth >= request.max_depth or len(node.path) >= self._n_ctx
            if node.followed or full or node.reach <= least or int(node.path[-1]) in self._end_tokens:
                continue
            forks = any(other.followed or other in found for other in guesses if other.parent is node.parent)
            if len(found) == self.settings.branches or ways + forks > self._n_paths:
                break
            found.append(node)
            ways += forks
        return found, ways

    def _chosen(self, request: DraftRequest, guesses: Sequence[_Node]) -> Draft:
        best = _best(guesses, request.max_nodes)
        if not best:
            return EMPTY_DRAFT
        numbers = {id(node): number for number, node in enumerate(best)}
        return Draft(
            np.array([node.path[-1] for node in best], dtype=np.int32),
            np.array([numbers.get(id(node.parent), -1) for node in best], dtype=np.int32),
            None,
            np.array([node.confidence for node in best], dtype=np.float32),
            self.name,
        )


def _best(guesses: Sequence[_Node], count: int) -> list[_Node]:
    """The likeliest to be reached, which form a tree: none is likelier than its parent, and of equals the first is
    taken, which is the parent, or the sibling that is tried first.
    """
    return sorted(guesses, key=lambda node: -node.reach)[:count]


def _likeliest(best: Sequence[_Node]) -> list[float]:
    """Confidences along the path that goes deepest, the likeliest of those."""
    node: _Node | None = max(best, key=lambda node: node.depth)
    path: list[float] = []
    while node is not None and node.parent is not None:
        path.append(node.confidence)
        node = node.parent
    return path[::-1]


def _chances(request: DraftRequest, position: int, tokens: Tokens, shares: Float32Array, count: int) -> list[float]:
    """Probability of each guess to be the target's token, falling in trial order.

    Where a draw is noisy, the noise is the target's own (*coupled*): with p a share and g the noise at that place, what
    separates two guesses is T (log p + g), in logits. What is not among the guesses counts as much as the last of them;
    fewer of them than the `count` asked for are all there are.
    """
    temperature = request.asked.sampling.temperature
    if temperature <= 0.0:
        return [min(HIGHEST_PROBABILITY, float(share)) for share in shares]
    with np.errstate(divide="ignore"):  # a share that is too small for float32 is none
        logs = np.log(shares)
    scores = logs + kernels.gumbel(request.noise, Purpose.SAMPLE, position, tokens)
    weights = np.exp(temperature * (scores - scores[0]))
    others = weights[-1] if len(tokens) == count else 0.0
    return [min(HIGHEST_PROBABILITY, float(chance)) for chance in weights / (weights.sum() + others)]
