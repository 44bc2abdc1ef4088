"""Guesses nothing: the loop with this drafter is plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Outcome


class NoDrafter:
    """Plain decoding."""

    name = "none"
    needs = NEEDS_NOTHING
    free = True

    def missing(self, slot: int, history: History) -> int:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [EMPTY_DRAFT] * len(requests)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def close(self) -> None:
        pass
