"""Conversations that are searched: one index for all drafters of text."""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.interfaces import DraftRequest, History
from localspec.native.suffix import SuffixIndex


@dataclass(slots=True)
class Indexed:
    """A conversation, as far as it was searched."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    history: History | None = None
    epoch: int = 0
    length: int = 0


class Conversations:
    """By slot, the conversation that drafters search: one index for all of them, a cache of the history."""

    def __init__(self) -> None:
        self._slots: dict[int, Indexed] = {}

    def of(self, request: DraftRequest) -> Indexed:
        """The conversation, whose index may be shorter than the history."""
        history, seen = request.history, self._slots.setdefault(request.slot, Indexed())
        if seen.history is not history or seen.epoch != history.epoch:
            seen.history, seen.epoch, seen.length = history, history.epoch, 0
        return seen

    def close(self) -> None:
        """Frees the memory; a second call does nothing."""
        for seen in self._slots.values():
            seen.index.close()
        self._slots.clear()
