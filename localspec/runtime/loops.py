"""The loop that generates with loaded models."""

from __future__ import annotations

from localspec.config import EngineSettings
from localspec.engine.loop import Loop
from localspec.runtime.loaded import Loaded
from localspec.runtime.loading import make_plan


def make_loop(loaded: Loaded, settings: EngineSettings) -> Loop:
    """Of the target, with those drafters and that plan that settings ask for.

    Raises:
        UsageError: a drafter of another package cannot be made.
    """
    return Loop(loaded.context, make_plan(loaded, settings), loaded.model)
