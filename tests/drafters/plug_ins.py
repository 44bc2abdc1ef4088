"""Drafters from outside: what goes wrong with them, and what does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.config import EngineSettings
from localspec.drafters.setup import Setup
from localspec.engine.interfaces import EMPTY_DRAFT, NEEDS_NOTHING, Draft, DraftRequest, History, Needs, Outcome
from localspec.types import NO_TOKENS

EXAMPLE = Path(__file__).parents[2] / "packaging" / "plugin"
"""The plug-in of the documentation."""


def setup(n_vocab: int = 6, max_leaves: int = 1, settings: EngineSettings | None = None) -> Setup:
    settings = settings or EngineSettings(Path("t.gguf"))
    ends: frozenset[int] = frozenset()
    return Setup(settings.target, n_vocab, 48, 1, 12, max_leaves, ends, lambda _: NO_TOKENS, lambda _: b"", settings)


def offer(folder: Path, patch: pytest.MonkeyPatch, **places: str) -> None:
    """Makes an installed package of a folder, which offers the drafter `name` at `module:Class` for each argument."""
    facts = folder / "offered-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n", "utf-8")
    lines = [f"{name} = {place}" for name, place in places.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[localspec.drafters]", *lines, ""]), "utf-8")
    patch.syspath_prepend(str(folder))


class Silent:
    """Guesses nothing."""

    name: Any = "silent"
    needs: Any = NEEDS_NOTHING
    free: Any = True

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.asked = self.closed = 0

    def missing(self, slot: int, history: History) -> Any:
        return 0

    def draft(self, requests: Sequence[DraftRequest]) -> Any:
        self.asked += 1
        return [EMPTY_DRAFT for _ in requests]

    def observe(self, outcomes: Sequence[Outcome]) -> Any:
        pass

    def close(self) -> Any:
        self.closed += 1


class Tiring(Silent):
    """Says the last token again, and fails when it is asked the fourth time."""

    name = "tiring"

    def draft(self, requests: Sequence[DraftRequest]) -> Any:
        self.asked += 1
        if self.asked == 4:
            raise RuntimeError("no more ideas")
        return [Draft.chain(request.history.tokens[-1:][: request.max_nodes]) for request in requests]


class Slow(Tiring):
    """The same, at a price."""

    name = "slow"
    free = False


class Leaving(Silent):
    """Ends the program instead of closing."""

    name = "leaving"

    def close(self) -> Any:
        raise SystemExit(3)


class Meddling(Silent):
    """Guesses by trying: says things, and takes back too much."""

    name = "meddling"

    def draft(self, requests: Sequence[DraftRequest]) -> Any:
        for request in requests:
            request.history.append([1, 2, 3])
            request.history.truncate(1)
        return super().draft(requests)


class Reusing(Silent):
    """Guesses 2 1, and keeps working in the same array."""

    name = "reusing"

    def draft(self, requests: Sequence[DraftRequest]) -> Any:
        self.guess = np.array([2, 9, 1, 9], dtype=np.int32)[::2]
        counts = [min(2, max(0, request.max_nodes)) for request in requests]
        return [replace(Draft.chain([0] * count), tokens=self.guess[:count], origin="draft") for count in counts]

    def observe(self, outcomes: Sequence[Outcome]) -> Any:
        self.guess[:] = 0


class Unborn(Silent):
    def __init__(self, setup: Setup) -> None:
        raise OSError("its weights are not there")


class Nameless(Silent):
    name = None


class Shouting(Silent):
    name = "LOUD one"


class Impostor(Silent):
    name = "draft"


class Priceless(Silent):
    free = 1


class Deep(Silent):
    needs = Needs((2, 5))


class Deaf(Silent):
    observe = None  # type: ignore[assignment]


class Curt(Silent):
    def draft(self) -> Any:  # type: ignore[override]
        return []


SOMETHING = "no class at all"
