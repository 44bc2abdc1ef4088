"""Conversations that are searched: one index for all drafters of text."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.interfaces import DraftRequest, History
from localspec.native.indexes import ContextCounts, SuffixIndex


@dataclass(slots=True)
class Indexed:
    """A conversation, as far as it was searched."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    counts: ContextCounts = field(default_factory=ContextCounts)
    history: History | None = None
    epoch: int = 0
    length: int = 0
    """Tokens that the index holds of it."""
    counted: int = 0
    """Tokens that the counts hold of it."""


class Conversations:
    """By slot, the conversation that drafters search: one index and its counts for all of them."""

    def __init__(self) -> None:
        self._slots: dict[int, Indexed] = {}

    def of(self, request: DraftRequest) -> Indexed:
        """The conversation, whose index and counts may be shorter than the history."""
        history, seen = request.history, self._slots.get(request.slot)
        if seen is None:
            seen = self._slots[request.slot] = Indexed()
        if seen.history is not history or seen.epoch != history.epoch:
            seen.history, seen.epoch, seen.length, seen.counted = history, history.epoch, 0, 0
        return seen

    def close(self) -> None:
        """Frees the memory; a second call does nothing."""
        for seen in self._slots.values():
            seen.index.close()
            seen.counts.close()
        self._slots.clear()
