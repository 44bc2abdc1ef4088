"""Two lines of the log for each answer: that it is asked for, and how it went; never a word of prompt or answer."""

from __future__ import annotations

from time import perf_counter

from localspec.engine.request import FinishReason
from localspec.runtime.generation import Generation
from localspec.server.http.log import LOG

_WHY = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "its limit was reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "done",
    FinishReason.ERROR: "it failed",
}
"""Why an answer ended. One that its own reader cancels, having the call that was wanted, is done."""


def asked(model: str, generation: Generation) -> None:
    """An answer is asked for; it may wait for a slot."""
    LOG.info("%s reads a prompt of %d tokens", model, len(generation.request.prompt))


def ended(model: str, generation: Generation, *, left: bool, stopped: bool) -> None:
    """It is over.

    Args:
        model: its name.
        generation: the answer.
        left: the client did not wait for it.
        stopped: the server ended it.
    """
    stats, why = generation.stats, _WHY[generation.finish or FinishReason.ERROR]
    if generation.finish is FinishReason.CANCELLED and (left or stopped):
        seconds = perf_counter() - generation.started
        why = "the server ended" if stopped else f"the client left after {seconds:.1f} s"
    guesses = f"{stats.accepted} of {stats.drafted} guesses accepted"
    if stats.undrafted and not stats.drafted:
        guesses = f"nothing drafted ({stats.undrafted_reason})"
    LOG.info(
        "%s answered: %d of %d prompt tokens read, %d cached; %d tokens, %.1f tokens/s, %s; %s",
        model,
        generation.read,
        stats.prompt_tokens,
        stats.reused_tokens,
        stats.generated,
        stats.tokens_per_second,
        guesses,
        why,
    )
