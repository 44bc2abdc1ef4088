"""A small model guesses ahead, all slots in one batch, in the target's tokens: chains, and trees that grow best first.

Its context keeps the KV of its own guesses, so nothing is evaluated twice: after a pass only the tokens it has not
seen are fed. It draws with the target's noise (*coupled*: Daliri, Musco, Suresh 2024), so that where the two
distributions agree the two tokens agree too.

Trees grow where they are likeliest to be reached (EAGLE-2: Li et al. 2024, arXiv 2406.16858). A level costs one pass of
the draft model, however many paths it goes on: each time the most promising guesses so far are followed, wherever they
stand, and in the end the best ones are sent, which always form a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from localspec.engine.constraint import keep
from localspec.engine.interfaces import (
    EMPTY_DRAFT,
    HIGHEST_PROBABILITY,
    NEEDS_NOTHING,
    Draft,
    DraftRequest,
    History,
    Outcome,
)
from localspec.errors import DecodeError, KernelError, UsageError
from localspec.native import kernels
from localspec.types import Feed, Float32Array, LogitRows, Purpose, SparseProbs, Tokens


class DraftContext(Protocol):
    """What is asked of the draft model's cache (`llama.context.Context` with `grid_prefill=False`)."""

    n_ctx: int
    n_vocab: int

    def decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        """One pass; the row after the last token of every feed, all -inf where there is nothing to guess."""

    def prefill_chunk(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """One pass towards a cache of all tokens but the last; how many are cached then."""

    def reusable(self, slot: int, tokens: Tokens, prompt_length: int) -> int:
        """Number of leading tokens that are cached."""


_MOST_READ_ALONG = 16
"""Most tokens that are read in the pass of the first guess. More tokens are read in chunks, one before each pass of the
target, so that neither a cancel nor another slot waits for a whole prompt."""


@dataclass(frozen=True, slots=True)
class DraftModelSettings:
    """Settings of the draft model."""

    branches: int = 1
    """Guesses per position: 1 drafts a chain; 2 or more add the next best ones as leaves beside it (a tree)."""

    def __post_init__(self) -> None:
        if not 1 <= self.branches <= 8:
            raise UsageError(f"branches is {self.branches}; it must be between 1 and 8.")


@dataclass(slots=True)
class _Growing:
    """A draft while it is drawn: a main chain, with leaves beside it when `branches` > 1."""

    request: DraftRequest
    path: Tokens
    """int32[history + max_depth]; the history, then the main chain."""
    length: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probs: list[SparseProbs] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    last_node: int = -1
    certain: list[float] = field(default_factory=list)
    """Confidences of the main chain."""
    done: bool = False

    @property
    def depth(self) -> int:
        return self.length - len(self.request.history)


class DraftModel:
    """Drafts with a model that a `DraftContext` evaluates, which may be a trained head's."""

    NAME = "draft"
    needs = NEEDS_NOTHING
    free = False

    def __init__(
        self,
        context: DraftContext,
        end_tokens: frozenset[int],
        settings: DraftModelSettings | None = None,
        name: str = NAME,
        release: Callable[[], None] | None = None,
    ) -> None:
        """
        Args:
            context: the draft model's cache.
            end_tokens: after one of these nothing is guessed (the answer is over).
            settings: None = the defaults.
            name: the drafter's: of the method, for a head.
            release: frees a cache that was made for this drafter alone; None = the caller frees it.
        """
        self.name = name
        self._context: DraftContext | None = context
        self._end_tokens = end_tokens
        self.settings = settings or DraftModelSettings()
        self._release = release

    def missing(self, slot: int, history: History) -> int:
        if self._context is None:
            return 0
        return len(history) - self._context.reusable(slot, history.tokens, len(history))

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        drafts = [self._start(request) for request in requests]
        while growing := [draft for draft in drafts if not draft.done]:  # one decode of all slots
            feeds = [Feed(draft.request.slot, draft.path[: draft.length], draft.length) for draft in growing]
            for draft, rows in zip(growing, self._decode(feeds), strict=True):
                self._extend(draft, rows)
        return [self._finish(draft) for draft in drafts]

    def _start(self, request: DraftRequest) -> _Growing:
        tokens = request.history.tokens
        path = np.empty(len(tokens) + max(request.max_depth, 0), dtype=np.int32)
        path[: len(tokens)] = tokens
        growing = _Growing(request, path, len(tokens))
        if self._context is None or self._full(growing):
            growing.done = True
        else:  # the draft model's vocabulary may lack the target's last ids
            growing.done = bool((tokens >= self._context.n_vocab).any()) or self._reads(request)
        return growing

    def _reads(self, request: DraftRequest) -> bool:
        """Reads a chunk of what is missing, if that is much; True if some is still missing, so that it cannot guess."""
        assert self._context is not None
        tokens = request.history.tokens
        if self.missing(request.slot, request.history) <= 1 + _MOST_READ_ALONG:
            return False
        with _passing():
            return self._context.prefill_chunk(request.slot, tokens, len(tokens)) < len(tokens) - 1

    def _full(self, draft: _Growing) -> bool:
        request = draft.request
        return (
            self._context is None
            or len(draft.tokens) >= request.max_nodes
            or draft.depth >= request.max_depth
            or draft.length >= self._context.n_ctx
        )

    def _decode(self, feeds: Sequence[Feed]) -> list[LogitRows]:
        assert self._context is not None
        with _passing():
            return self._context.decode(feeds)

    def _extend(self, draft: _Growing, rows: LogitRows) -> None:
        request = draft.request
        history = draft.path[: draft.length]
        count = min(self.settings.branches, request.max_nodes - len(draft.tokens))
        try:
            rows = masked(request, history, rows)
            found, shares = kernels.sample(rows, 0, request.asked.sampling, history, request.noise, draft.length, count)
            shares = np.minimum(shares, HIGHEST_PROBABILITY)
        except KernelError:  # nothing left to draw: nothing to guess; the target has its own say
            draft.done = True
            return
        parent = draft.last_node
        draft.last_node = len(draft.tokens)
        draft.tokens += found.tolist()
        draft.parents += [parent] * len(found)
        draft.confidence += shares.tolist()
        draft.certain.append(float(shares[0]))
        if request.needs_probs:
            probs = kernels.distribution(rows, 0, request.asked.sampling, history, request.noise, draft.length)
            draft.probs += _drawn_from(probs, found)
        draft.path[draft.length] = found[0]
        draft.length += 1
        # A draft that was drawn for *rejection* must not end because of what was drawn.
        over = not request.needs_probs and int(found[0]) in self._end_tokens
        draft.done = over or self._full(draft) or not request.price.pays(draft.certain, len(draft.tokens))

    def _finish(self, draft: _Growing) -> Draft:
        if not draft.tokens:
            return EMPTY_DRAFT
        return Draft(
            np.array(draft.tokens, dtype=np.int32),
            np.array(draft.parents, dtype=np.int32),
            tuple(draft.probs) if draft.request.needs_probs else None,
            np.array(draft.confidence, dtype=np.float32),
            self.name,
        )

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass  # the next draft feeds what the history has grown by

    def close(self) -> None:
        self._context = None
        release, self._release = self._release, None
        if release is not None:
            release()


@contextmanager
def _passing() -> Iterator[None]:
    """Whatever fails in a pass is a `DecodeError`, for which the drafter is dropped and the chat goes on."""
    try:
        yield
    except (KernelError, UsageError) as error:
        raise DecodeError(str(error)) from error


def masked(request: DraftRequest, path: Tokens, rows: LogitRows) -> LogitRows:
    """The row after `path`, which begins with the history, with the request's grammar applied; one of nothing but -inf
    where the answer is over.
    """
    if request.constraint is None:
        return rows
    mask = request.constraint.mask(path[len(request.history) :].tolist())
    row = np.full((1, rows.n_vocab), -np.inf, dtype=np.float32)
    if mask is not None:
        keep(row[0], rows[0], mask)
    return LogitRows.from_matrix(row)


def _drawn_from(probs: SparseProbs, drawn: Tokens) -> list[SparseProbs]:
    """The distribution each of `drawn` (without replacement) came from: what its earlier siblings left.

    Temperature 0 leaves nothing after the first; the others are then the next most likely, a certain guess each.
    """
    found: list[SparseProbs] = []
    for token in drawn:
        if not len(probs.tokens):
            probs = SparseProbs(np.array([token], dtype=np.int32), np.ones(1))
        found.append(probs)
        keep = probs.tokens != token
        rest = probs.probs[keep]
        probs = SparseProbs(probs.tokens[keep], rest / rest.sum() if len(rest) else rest)
    return found


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
