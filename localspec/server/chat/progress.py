"""How far a prompt is read, told in a stream before the answer, as llama-server has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from time import perf_counter
from typing import TypeVar

from pydantic import BaseModel

from localspec.runtime.generation import Generation

_LOOK_SECONDS = 0.25
"""Between two looks."""
_Event = TypeVar("_Event")


class PromptProgress(BaseModel):
    """How far it is."""

    total: int
    """Tokens of the prompt."""
    cache: int
    """Of them found in the cache."""
    processed: int
    """Of them there now, those found included."""
    time_ms: int
    """Since it began."""


class Reading:
    """Of one answer's prompt."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._begun = perf_counter()
        self._told = -1

    async def followed(
        self, events: Callable[[float], AsyncIterator[_Event | None]], silence: float
    ) -> AsyncIterator[_Event | PromptProgress | None]:
        """Events, before the first of them how far the prompt is, and None whenever `silence` seconds brought nothing.

        Args:
            events: those of the answer, and None whenever so many seconds brought nothing.
            silence: seconds.
        """
        said, begun = perf_counter(), False
        async for event in events(min(silence, _LOOK_SECONDS)):
            news = None if begun else self._news(whole=event is not None)
            begun = begun or event is not None
            if news is not None:
                yield news
            if event is not None or perf_counter() - said >= silence:
                yield event
            if event is not None or news is not None or perf_counter() - said >= silence:
                said = perf_counter()

    def _news(self, whole: bool) -> PromptProgress | None:
        """How far it is, unless that was said."""
        total, cache = len(self._generation.request.prompt), self._generation.stats.reused_tokens
        processed = total if whole else min(total, cache + self._generation.read)
        if processed == self._told:
            return None
        self._told = processed
        spent = int((perf_counter() - self._begun) * 1e3)
        return PromptProgress(total=total, cache=cache, processed=processed, time_ms=spent)
