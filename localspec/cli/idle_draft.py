"""A draft model or head that was loaded and never used in an answer: said once, with the reason that the plan knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec import paths

if TYPE_CHECKING:
    from localspec.engine.stats import RequestStats
    from localspec.planning.knowledge import Knowledge
    from localspec.runtime.engine import Engine

FEWEST_PASSES = 64
"""Passes of an answer from which on a draft that was in none of them counts as never used: it was weighed in most of
them, and probed several times (`planning.asking` waits 8 passes for the first probe, and longer after each miss)."""
SLOW_GUESS = 0.5
"""Share of a plain pass from which on a guess is too slow to pay: it must be right more often than not to break even,
before its wider pass is paid for."""
ENOUGH_TRIALS = 16.0
"""Scored guesses from which on the rate of right ones is told; a first estimate counts as 6 (`planning.acceptance`)."""


def idle_draft(engine: Engine, stats: RequestStats) -> str:
    """A sentence about each draft that was given, loaded and never used in an answer; "" where there is none.

    Nothing is said of the bundled pair, which is there to be looked at, nor where settings leave no drafts.
    """
    loaded = engine.loaded
    given = (loaded.settings.target, *filter(None, (loaded.settings.draft,)), *loaded.settings.heads)
    ours = paths.bundled("").resolve()
    if stats.passes < FEWEST_PASSES or not engine.settings.longest_draft:
        return ""
    if all(path.resolve().parent == ours for path in given):
        return ""
    length = stats.prompt_tokens + stats.generated
    return " ".join(
        f"The {'draft model' if name == 'draft' else f'{name} head'} was loaded and never used: "
        f"{reason(name, loaded.knowledge, stats, length)}."
        for name in loaded.trained
        if name in engine.drafters and not stats.drafted_by_drafter[name]
    )


def reason(name: str, knowledge: Knowledge, stats: RequestStats, length: int) -> str:
    """Why a plan did not use a drafter, without a full stop.

    Args:
        name: of the drafter.
        knowledge: what passes and guesses cost, and how often guesses are right.
        stats: of the answer.
        length: tokens in the cache.
    """
    plain = knowledge.costs.seconds(1, length)
    costs, table = knowledge.draft_costs.get(name), knowledge.acceptance.tracker(name).table
    guess = costs.level(1) if costs is not None else 0.0
    if plain and guess >= SLOW_GUESS * plain:
        return (
            f"a guess of it takes {_milliseconds(guess)} and a pass of the target {_milliseconds(plain)}, so that it "
            "can hardly pay; a larger target or a smaller draft would change that"
        )
    if table.trials >= ENOUGH_TRIALS:
        return f"its guesses are right {table.first_rate:.0%} of the time, which is too rarely to pay"
    if 2 * stats.draft_passes >= stats.passes:
        return f"drafts that cost nothing ({', '.join(stats.drafted_by_drafter)}) were in most passes in its place"
    return "the passes it could have saved would not have paid for reading the text and guessing"


def _milliseconds(seconds: float) -> str:
    return f"about {seconds * 1e3:.2g} ms"
