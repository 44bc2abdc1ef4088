"""A GPU that fails while answers are written: they go on on the CPU, from what they have said."""

from __future__ import annotations

import logging
from dataclasses import replace

from localspec.engine.loop import Loop
from localspec.errors import DeviceError, LocalspecError
from localspec.runtime.loaded import Loaded
from localspec.runtime.loading import load_apart, make_loop
from localspec.runtime.memory.placement import Placement, number, on_cpu

_LOG = logging.getLogger("localspec")


def can_move(loaded: Loaded) -> bool:
    """Whether the target has layers on a GPU."""
    return bool(number(loaded.settings.gpu_layers))


def move_to_cpu(loaded: Loaded, loop: Loop, error: DeviceError) -> Loop:
    """Loads the models again on the CPU, and says so. For the thread that owns the models.

    What the requests have cached is computed again there, so the bits of what follows are other ones.

    Args:
        loaded: has layers on a GPU; afterwards it holds what was loaded on the CPU.
        loop: of these models; it is not to be used afterwards.
        error: what the GPU failed with.

    Returns:
        The loop that goes on with the requests.

    Raises:
        DeviceError: `exact` is strict, which the bits of another device would break; or the CPU cannot serve.
    """
    settings = loaded.settings
    name = f"The GPU ({settings.device})" if settings.device else "The GPU"
    if settings.exact == "strict":
        raise DeviceError(
            f"{name} failed: {error.message}",
            "Under --exact strict an answer does not go on on another device; ask again.",
        ) from error
    _LOG.warning("%s failed: %s The CPU goes on with the answers, marked exact: no.", name, error.message)
    draft = settings.draft if loaded.draft_context is not None else None
    wanted = replace(settings, context=loaded.context.n_ctx, draft=draft, second_slot=False, corpus="off")  # it stays
    try:
        fresh = load_apart(on_cpu(Placement(wanted), error.message).settings)
    except LocalspecError as fault:
        raise DeviceError(f"{name} failed: {error.message}", f"The CPU cannot serve: {fault.message}") from fault
    fresh.settings = replace(fresh.settings, corpus=settings.corpus)
    for drafter in loop.plan.drafters:
        drafter.close()
    loaded.move(fresh)
    loaded.gpu_fault = error.message
    moved = make_loop(loaded, loaded.settings)
    moved.take_over(loop)
    return moved
