"""What one slot's cache holds, and how much of it a new history may keep.

Where the nodes of a draft go in a batch: row order and sequence ids (docs/design.md, "Facts about llama.cpp").

Attention admits cells that carry a row's first sequence id at positions up to its own. So every leaf gets an id of
its own, inner nodes carry the ids of all leaves below them, and each row sees exactly its ancestors. Leaves are
numbered depth first, so that the ids of a node are a contiguous range. The main chain (first child of first child
...) comes first in the batch: its cells lie in position order after the history and may be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from localspec.errors import UsageError
from localspec.types import Feed, Tokens

Reuse: TypeAlias = Literal["all", "chunks"]


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that two int32 arrays share."""
    count = min(len(left), len(right))
    left, right = left[:count], right[:count]
    if left.tobytes() == right.tobytes():  # the usual case, every pass: several times faster than comparing elements
        return count
    return int((left != right).argmax())


class Cells:
    """The tokens whose KV a slot's cache holds, in position order."""

    __slots__ = ("_buffer", "branch", "droppable", "grid", "length", "prompt_length", "reuse", "rollback")

    def __init__(self, capacity: int, grid: int, reuse: Reuse, rollback: int | None = None) -> None:
        """
        Args:
            capacity: most tokens it can hold.
            grid: tokens per prefill chunk, 0 if there is no grid.
            rollback: how many tokens can be dropped from the end at most; None = any number.
        """
        self._buffer = np.zeros(capacity, dtype=np.int32)
        self.length = 0
        self.prompt_length = 0
        """Prompt length of the history that the cells were computed for: tells how the prompt was cut into passes."""
        self.grid = grid
        self.reuse = reuse
        self.rollback = rollback
        self.droppable = 0
        """Number of cells that can be dropped now with `rollback`: once, all cells of the last pass but the first."""
        self.branch: tuple[int, int] | None = None
        """After a tree: (first position of its nodes, lowest sequence id beside the main chain)."""

    @property
    def tokens(self) -> Tokens:
        """int32[length] view."""
        return self._buffer[: self.length]

    def put(self, start: int, tokens: Tokens) -> None:
        """The cache now holds `tokens` from position `start` on, and nothing after them."""
        end = start + len(tokens)
        self._buffer[start:end] = tokens
        self.length, self.droppable = end, max(0, min(self.rollback or 0, len(tokens) - 1))

    def may_keep(self, keep: int) -> bool:
        """Whether what is after `keep` cells can be dropped."""
        return self.rollback is None or self.length - keep <= self.droppable

    def cut(self, length: int) -> None:
        """The cache now ends after `length` cells."""
        self.length, self.droppable = length, 0

    def keep(self, tokens: Tokens, prompt_length: int) -> int:
        """How many leading cells serve `tokens`, at most all but the last.

        With reuse "all" the longest common prefix. With "chunks" only cells that a fresh run would have computed in
        the same passes: the common prefix if the prompt is the same, else whole chunks that were prefilled whole.
        """
        shared = min(common_prefix(self.tokens, tokens), len(tokens) - 1)
        if self.reuse == "all" or not self.grid:
            return shared
        if prompt_length == self.prompt_length and shared >= prompt_length - 1:
            return shared
        whole = min(shared, prompt_length - 1, self.prompt_length - 1)
        return max(0, whole // self.grid * self.grid)


@dataclass(frozen=True, slots=True)
class Layout:
    """A tree ready for a batch. Lists are per node in draft order unless said otherwise."""

    order: list[int]
    """Node index of each row, in batch order: main chain, then the others in draft order."""
    depth: list[int]
    """1 for children of the last history token."""
    first_leaf: list[int]
    """Lowest leaf id below the node (its own, if it is a leaf)."""
    leaf_count: list[int]
    """Number of consecutive leaf ids of the node, from `first_leaf` on."""
    leaves: int
    """Leaves in all; ids are 0 .. leaves - 1 before `spread`."""
    main_length: int
    """Nodes on the main chain, the first rows of the batch."""

    def id_range(self, node: int, max_leaves: int) -> tuple[int, int]:
        """(lowest id, number of ids) when the main leaf also takes the ids no leaf needs.

        So only leaves beside the main chain ever need their ids repaired after a pass.
        """
        spare = max_leaves - self.leaves
        low, count = self.first_leaf[node], self.leaf_count[node]
        return (0, count + spare) if low == 0 else (low + spare, count)


def is_chain(parents: Sequence[int]) -> bool:
    """Whether every node follows the one before it."""
    return all(parent == index - 1 for index, parent in enumerate(parents))


def layout(parents: Sequence[int]) -> Layout:
    """The layout of a draft; `parents[i]` is below i, -1 for the last history token.

    Raises:
        UsageError: a parent is not before its child.
    """
    count = len(parents)
    children: list[list[int]] = [[] for _ in range(count + 1)]  # the last entry belongs to parent -1
    depth = [0] * count
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise UsageError(f"node {node} of a draft has parent {parent}; parents are -1 or an earlier node.")
        children[parent].append(node)
        depth[node] = 1 if parent < 0 else depth[parent] + 1
    first_leaf, leaf_count, leaves = [0] * count, [0] * count, 0
    stack = [(node, False) for node in reversed(children[count])]
    while stack:
        node, done = stack.pop()
        if done:
            leaf_count[node] = leaves - first_leaf[node]
            continue
        first_leaf[node] = leaves
        if not children[node]:
            leaves += 1
        stack.append((node, True))
        stack.extend((child, False) for child in reversed(children[node]))
    main: list[int] = []
    below = children[count]
    while below:
        main.append(below[0])
        below = children[below[0]]
    chosen = set(main)
    order = main + [node for node in range(count) if node not in chosen]
    return Layout(order, depth, first_leaf, leaf_count, leaves, len(main))


def checked_layout(feed: Feed, n_ctx: int, max_leaves: int) -> Layout | None:
    """The layout of a feed's draft; None for a chain.

    Raises:
        UsageError: its parents do not fit its tokens, or it does not fit a context of `n_ctx` tokens and `max_leaves`.
    """
    nodes, parents = len(feed.draft_tokens), feed.draft_parents.tolist()
    if len(parents) != nodes:
        raise UsageError(f"a draft has {nodes} tokens but {len(parents)} parents.")
    tree, depth = None, nodes
    if not is_chain(parents):
        tree = layout(parents)
        depth = max(tree.depth)
        if tree.leaves > max_leaves:
            raise UsageError(f"a draft has {tree.leaves} leaves, but the context was made for {max_leaves}.")
    if len(feed.tokens) + depth > n_ctx:
        raise UsageError(f"a draft {depth} deep does not fit after {len(feed.tokens)} tokens in a context of {n_ctx}.")
    return tree
