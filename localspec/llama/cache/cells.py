"""What one slot's cache holds, and how much of it a new history may keep."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from localspec.types import Tokens

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
