"""A llama_batch filled through numpy views: no ctypes call per token."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from localspec.errors import UsageError
from localspec.llama.cache.cells import Layout
from localspec.llama.library import lib
from localspec.types import Feed, Tokens

MAX_IDS = 64
"""Most slots or leaves (`ContextSettings` keeps to it)."""


@dataclass(slots=True)
class Part:
    """What one feed puts into a pass."""

    feed: Feed
    start: int
    """First position that is computed."""
    tree: Layout | None
    """None for a chain."""
    first_row: int = 0
    """Its first row in the pass."""
    first_output: int = 0
    """Index of its first row with logits."""
    wanted: int = field(init=False)
    """How many of its rows with logits are read, from the first on."""

    def __post_init__(self) -> None:
        self.wanted = self.outputs

    @property
    def rows(self) -> int:
        return len(self.feed.tokens) - self.start + len(self.feed.draft_tokens)

    @property
    def outputs(self) -> int:
        """Rows with logits: the last history token's and each node's."""
        return 1 + len(self.feed.draft_tokens)


def check_pass(parts: Sequence[Part], max_outputs: int, max_rows: int) -> None:
    """Refuses a pass that does not fit.

    Args:
        parts: in the order of their slots.
        max_outputs: most rows with logits.
        max_rows: most rows.

    Raises:
        UsageError: too many rows, or a slot is fed twice.
    """
    outputs = sum(part.outputs for part in parts)
    if outputs > max_outputs:
        raise UsageError(f"a pass asks for {outputs} rows of logits; max_rows is {max_outputs}.")
    for left, right in itertools.pairwise(parts):
        if left.feed.slot == right.feed.slot:
            raise UsageError(f"slot {left.feed.slot} is fed twice in one pass.")
    rows = sum(part.rows for part in parts)
    if rows > max_rows:
        raise UsageError(f"a pass has {rows} rows; at most {max_rows} fit.")


class Batch:
    """One pass's rows, in arrays that llama.cpp reads. Fill it from row 0 on, then hand over `of(rows)`."""

    def __init__(self, capacity: int, positions: int, n_vocab: int, max_leaves: int) -> None:
        """At most `capacity` rows; positions are below `positions`, sequence ids below 64."""
        self.token = np.zeros(capacity, dtype=np.int32)
        self.position = np.zeros(capacity, dtype=np.int32)
        self.id_count = np.ones(capacity, dtype=np.int32)
        self.id_pointer = np.zeros(capacity + 1, dtype=np.uintp)
        self.output = np.zeros(capacity, dtype=np.int8)
        self._n_vocab, self._max_leaves = n_vocab, max_leaves
        self._positions = np.arange(positions, dtype=np.int32)
        self._ids = np.arange(MAX_IDS, dtype=np.int32)
        self._first_id = int(self._ids.ctypes.data)
        self._struct: Any = lib.api().llama_batch(n_tokens=0)
        for name, array in (
            ("token", self.token),
            ("pos", self.position),
            ("n_seq_id", self.id_count),
            ("seq_id", self.id_pointer),
            ("logits", self.output),
        ):
            kind = dict(self._struct._fields_)[name]
            setattr(self._struct, name, ctypes.cast(array.ctypes.data, kind))

    def of(self, count: int) -> Any:
        """The llama_batch of the first `count` rows."""
        self._struct.n_tokens = count
        return self._struct

    def add(self, part: Part, row: int) -> int:
        """Writes a part's missing tokens and draft from `row` on; returns the row after them."""
        feed = part.feed
        count, nodes = len(feed.tokens), len(feed.draft_tokens)
        row = self.add_history(feed.slot, feed.tokens[part.start :], part.start, row)
        self.output[row - 1] = 1
        if not nodes:
            return row
        end = row + nodes
        if part.tree is None:
            self.token[row:end] = feed.draft_tokens
            self.position[row:end] = self._positions[count : count + nodes]
            self.id_pointer[row:end] = self.id_pointer[row - 1]
            self.id_count[row:end] = self._max_leaves
        else:
            self._add_nodes(part.tree, feed.draft_tokens, count, row, end)
        self.output[row:end] = 1
        self._check_tokens(row, end)
        return end

    def _add_nodes(self, tree: Layout, tokens: Tokens, count: int, row: int, end: int) -> None:
        self.token[row:end] = tokens[tree.order]
        self.position[row:end] = [count - 1 + tree.depth[node] for node in tree.order]
        ranges = [tree.id_range(node, self._max_leaves) for node in tree.order]
        self.id_pointer[row:end] = [self._first_id + 4 * low for low, _ in ranges]
        self.id_count[row:end] = [many for _, many in ranges]

    def add_history(self, slot: int, tokens: Tokens, start: int, row: int) -> int:
        """Writes tokens of one slot at positions from `start` on, without logits; returns the row after them.

        A slot's sequence id is its number; where trees are possible there is one slot, and its cells carry all ids.
        """
        end = row + len(tokens)
        self.token[row:end] = tokens
        self.position[row:end] = self._positions[start : start + len(tokens)]
        self.id_pointer[row:end] = self._first_id + 4 * slot
        self.id_count[row:end] = self._max_leaves
        self.output[row:end] = 0
        self._check_tokens(row, end)
        return end

    def _check_tokens(self, start: int, end: int) -> None:
        ids = self.token[start:end]
        if end > start and (ids.min() < 0 or ids.max() >= self._n_vocab):
            raise UsageError(f"token ids must be 0 to {self._n_vocab - 1}; got {ids.min()} to {ids.max()}.")


def split_equal(rows: Mapping[int, int], limit: int) -> list[int]:
    """Widths of the passes llama.cpp makes of a batch of several streams (its `split_equal`).

    A pass takes equally many rows of each slot in the first run of consecutive slot numbers that still have some.

    Args:
        rows: slot -> rows, each at least 1.
        limit: llama.cpp's n_ubatch.
    """
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
