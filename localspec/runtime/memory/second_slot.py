"""Whether a second conversation can be answered beside the first at no cost to it: a context of two slots has to be as
good for one conversation as a context of one slot."""

from __future__ import annotations

from localspec.config import EngineSettings
from localspec.gguf import Header
from localspec.models.facts.context_length import MEMORY_DIVISOR
from localspec.models.facts.heads import keeps_state

CHUNKS = "of a prompt that it knows the model would reuse whole chunks only"


def objection(settings: EngineSettings, header: Header, *, heads: bool, ours: bool, small: bool) -> str:
    """Why there is no second slot, in words; "" = nothing is known that speaks against it.

    It follows from files, settings and all the memory there is, not from what is free: a saved cache of a chat serves
    contexts of the same number of slots only.

    Args:
        settings: with one slot.
        header: the target's.
        heads: whether there are heads for the target.
        ours: whether our kernels compute all layers of the target.
        small: whether two caches take no more memory than one may (`context_length.is_small`).
    """
    if settings.branches > 1:
        return "drafts are trees"
    if keeps_state(header):
        return "it could not draft, since some layers are recurrent"
    if heads:
        return "its heads would need a second cache, too"
    if not ours:
        return CHUNKS
    return "" if small else f"a second cache would take more than 1/{MEMORY_DIVISOR} of the memory with the first"
