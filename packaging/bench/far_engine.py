"""Engines in processes of their own as contenders: other kernels, another draft model, or llama.cpp's bare loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from localspec import Engine
from localspec.bench.contenders import EngineContender
from localspec.bench.run import Answer, Turn
from localspec.checks.apart import Apart


class FarEngine:
    """In the other process: one engine that answers plain, or as it comes."""

    def __init__(
        self,
        target: Path,
        draft: Path | None,
        settings: Mapping[str, Any],
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        self._engine = Engine.load(target, draft, tuned=False, progress=progress, **settings)
        self._by_plain = {
            True: EngineContender(self._engine, "plain", length=0),
            False: EngineContender(self._engine, "localspec"),
        }

    def about(self) -> dict[str, Any]:
        """Facts of its contenders, and its configuration in words."""
        settings = self._engine.settings
        draft = "" if settings.draft is None else settings.draft.name
        return {**self._by_plain[False].facts, "draft": draft, "exactness": self._engine.loaded.exactness}

    def begin(self, plain: bool) -> None:
        self._by_plain[plain].begin()

    def answer(self, plain: bool, turn: Turn) -> Answer:
        return self._by_plain[plain].answer(turn)

    def close(self) -> None:
        self._engine.close()


class FarContender:
    """Here: a contender whose object is elsewhere (`checks.apart`)."""

    def __init__(self, name: str, apart: Apart, *first: Any) -> None:
        """`first`: what its methods take before the turn."""
        self.name, self._apart, self._first = name, apart, first
        self.facts: Mapping[str, Any] = apart.call("about")

    def begin(self) -> None:
        self._apart.call("begin", *self._first)

    def answer(self, turn: Turn) -> Answer:
        answer: Answer = self._apart.call("answer", *self._first, turn)
        return answer

    def close(self) -> None:
        """The process is its maker's."""
