"""The tokens of a slot's cache, how a draft lies in a batch, and a llama_batch filled through numpy views: no ctypes
call per token. See docs/design.md, "Facts about llama.cpp".

Attention admits cells that carry a row's first sequence id at positions up to its own. So every leaf gets an id of its
own, inner nodes carry the ids of all leaves below them, and each row sees exactly its ancestors. Leaves are numbered
depth first, so that the ids of a node are a contiguous range. The main chain (first child of first child ...) comes
first in the batch: its cells lie in position order after the history and may be kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from localspec.errors import UsageError
from localspec.llama.library import lib
from localspec.types import Feed, Tokens

Reuse: TypeAlias = Literal["all", "chunks"]
MAX_IDS = 64  # most slots or leaves (`ContextSettings` keeps to it)


def common_prefix(left: Tokens, right: Tokens) -> int:
    count = min(len(left), len(right))
    left, right = left[:count], right[:count]
    if left.tobytes() == right.tobytes():  # the usual case, every pass: several times faster than comparing elements
        return count
    return int((left != right).argmax())


class Cells:
    """The tokens whose KV a slot's cache holds, in position order."""

    __slots__ = ("_buffer", "branch", "droppable", "grid", "length", "prompt_length", "reuse", "rollback")

    def __init__(self, capacity: int, grid: int, reuse: Reuse, rollback: int | None = None) -> None:
        """At most `capacity` tokens in chunks of `grid` (0 = none), of which the last `rollback` can be dropped (None =
        any)."""
        self._buffer = np.zeros(capacity, dtype=np.int32)
        self.length = 0
        self.prompt_length = 0  # of the history that the cells were computed for: how its prompt was cut into passes
        self.grid = grid
        self.reuse = reuse
        self.rollback = rollback
        self.droppable = 0  # cells that `rollback` can drop now: once, all of the last pass but the first
        self.branch: tuple[int, int] | None = None  # after a tree: (its first position, lowest id off the main chain)

    @property
    def tokens(self) -> Tokens:
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
        self.length, self.droppable = length, 0

    def keep(self, tokens: Tokens, prompt_length: int) -> int:
        """How many leading cells serve `tokens`, at most all but the last. With reuse "all" the longest common prefix.
        With "chunks" only cells that a fresh run would have computed in the same passes: the common prefix if the
        prompt is the same, else whole chunks that were prefilled whole."""
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

    order: list[int]  # node index of each row, in batch order: main chain, then the others in draft order
    depth: list[int]  # 1 for children of the last history token
    first_leaf: list[int]  # lowest leaf id below the node (its own, if it is a leaf)
    leaf_count: list[int]  # number of consecutive leaf ids of the node, from `first_leaf` on
    leaves: int  # leaves in all; ids are 0 .. leaves - 1 before `spread`
    main_length: int  # nodes on the main chain, the first rows of the batch

    def id_range(self, node: int, max_leaves: int) -> tuple[int, int]:
        """(lowest id, number of ids) when the main leaf also takes the ids no leaf needs. So only leaves beside the
        main chain ever need their ids repaired after a pass."""
        spare = max_leaves - self.leaves
        low, count = self.first_leaf[node], self.leaf_count[node]
        return (0, count + spare) if low == 0 else (low + spare, count)


def layout(parents: Sequence[int]) -> Layout:
    """The layout of a draft; `parents[i]` is below i, -1 for the last history token. Raises UsageError if it is not."""
    count = len(parents)
    depth, first_leaf = [0] * count, [0] * count
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise UsageError(f"node {node} of a draft has parent {parent}; parents are -1 or an earlier node.")
        depth[node] = 1 if parent < 0 else depth[parent] + 1
    leaf_count = [0] * (count + 1)  # the last entry belongs to parent -1
    for node in reversed(range(count)):
        leaf_count[node] = leaf_count[node] or 1
        leaf_count[parents[node]] += leaf_count[node]
    free = [0] * (count + 1)  # lowest id that is left for the next child
    for node, parent in enumerate(parents):
        first_leaf[node] = free[node] = free[parent]
        free[parent] += leaf_count[node]
    main = [node for node in range(count) if not first_leaf[node]]
    order = main + [node for node in range(count) if first_leaf[node]]
    return Layout(order, depth, first_leaf, leaf_count[:-1], leaf_count[-1], len(main))


def checked_layout(feed: Feed, n_ctx: int, max_leaves: int) -> Layout | None:
    """The layout of a feed's draft; None for a chain. Raises UsageError: its parents do not fit its tokens, or it does
    not fit a context of `n_ctx` tokens and `max_leaves`."""
    nodes, parents = len(feed.draft_tokens), feed.draft_parents.tolist()
    if len(parents) != nodes:
        raise UsageError(f"a draft has {nodes} tokens but {len(parents)} parents.")
    tree, depth = None, nodes
    if parents != [*range(-1, nodes - 1)]:
        tree = layout(parents)
        depth = max(tree.depth)
        if tree.leaves > max_leaves:
            raise UsageError(f"a draft has {tree.leaves} leaves, but the context was made for {max_leaves}.")
    if len(feed.tokens) + depth > n_ctx:
        raise UsageError(f"a draft {depth} deep does not fit after {len(feed.tokens)} tokens in a context of {n_ctx}.")
    return tree


@dataclass(slots=True)
class PassPart:
    feed: Feed
    start: int  # first position that is computed
    tree: Layout | None  # None for a chain
    outputs: int  # its rows with logits: the last history token's and each node's
    wanted: int  # how many of these are read, from the first on
    first_row: int = 0  # its first row in the pass
    first_output: int = 0  # index of its first row with logits

    @property
    def rows(self) -> int:
        return len(self.feed.tokens) - self.start + len(self.feed.draft_tokens)


class BatchArrays:
    """A llama_batch and the arrays that it reads: fill them from row 0 on, then hand over `of(rows)`."""

    def __init__(self, capacity: int, ids: int = MAX_IDS, positions: int = 1) -> None:
        """At most `capacity` rows, with `positions` numbers each; sequence ids are below `ids`."""
        self.token = np.zeros(capacity, dtype=np.int32)
        self.position = np.zeros(capacity * positions, dtype=np.int32)
        self.id_count = np.ones(capacity, dtype=np.int32)
        self.id_pointer = np.zeros(capacity + 1, dtype=np.uintp)
        self.output = np.zeros(capacity, dtype=np.int8)
        self._ids = np.arange(ids, dtype=np.int32)  # of slots or leaves
        self._first_id = int(self._ids.ctypes.data)
        self._struct: Any = lib.api().llama_batch(n_tokens=0)
        self._kinds = dict(self._struct._fields_)
        self._point(token=self.token, pos=self.position, n_seq_id=self.id_count)
        self._point(seq_id=self.id_pointer, logits=self.output)

    def _point(self, **arrays: npt.NDArray[Any] | None) -> None:
        for name, array in arrays.items():
            setattr(self._struct, name, ctypes.cast(0 if array is None else array.ctypes.data, self._kinds[name]))

    def of(self, count: int) -> Any:
        self._struct.n_tokens = count
        return self._struct


class Batch(BatchArrays):
    """One pass's rows of tokens."""

    def __init__(self, capacity: int, positions: int, n_vocab: int, max_leaves: int) -> None:
        """At most `capacity` rows; positions are below `positions`."""
        super().__init__(capacity)
        self._n_vocab, self._max_leaves = n_vocab, max_leaves
        self._positions = np.arange(positions, dtype=np.int32)

    def add(self, part: PassPart, row: int) -> int:
        """Writes a part's missing tokens and draft from `row` on; returns the row after them."""
        feed, tree = part.feed, part.tree
        count, nodes = len(feed.tokens), len(feed.draft_tokens)
        row = self.add_history(feed.slot, feed.tokens[part.start :], part.start, row)
        self.output[row - 1] = 1
        if not nodes:
            return row
        if tree is None:
            positions = self._positions[count : count + nodes]
            return self._put(row, feed.draft_tokens, positions, self.id_pointer[row - 1], self._max_leaves, 1)
        depths = [count - 1 + tree.depth[node] for node in tree.order]
        ranges = [tree.id_range(node, self._max_leaves) for node in tree.order]
        pointers, counts = [self._first_id + 4 * low for low, _ in ranges], [many for _, many in ranges]
        return self._put(row, feed.draft_tokens[tree.order], depths, pointers, counts, 1)

    def add_history(self, slot: int, tokens: Tokens, start: int, row: int) -> int:
        """Writes tokens of one slot at positions from `start` on, without logits; returns the row after them. A slot's
        sequence id is its number; where trees are possible there is one slot, and its cells carry all ids."""
        positions = self._positions[start : start + len(tokens)]
        return self._put(row, tokens, positions, self._first_id + 4 * slot, self._max_leaves, 0)

    def _put(self, row: int, tokens: Tokens, positions: Any, pointers: Any, counts: Any, output: int) -> int:
        end = row + len(tokens)
        self.token[row:end] = tokens
        self.position[row:end] = positions
        self.id_pointer[row:end] = pointers
        self.id_count[row:end] = counts
        self.output[row:end] = output
        ids = self.token[row:end]
        if end > row and (ids.min() < 0 or ids.max() >= self._n_vocab):
            raise UsageError(f"token ids must be 0 to {self._n_vocab - 1}; got {ids.min()} to {ids.max()}.")
        return end


def split_equal(rows: Mapping[int, int], limit: int) -> list[int]:
    """Widths of the passes llama.cpp makes of a batch of several streams, of {slot: rows} and its n_ubatch (its
    `split_equal`): equally many rows of each slot in the first run of consecutive slot numbers that still have some."""
    left = {slot: rows[slot] for slot in sorted(rows)}
    widths = []
    while left:
        run = [min(left)]
        while run[-1] + 1 in left:
            run.append(run[-1] + 1)
        each = max(1, min(min(left[slot] for slot in run), limit // len(run)))
        widths.append(each * len(run))
        left = {slot: count - (each if slot in run else 0) for slot, count in left.items()}
        left = {slot: count for slot, count in left.items() if count}
    return widths
