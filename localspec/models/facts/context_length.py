"""How many tokens a conversation can hold, where nothing is asked for.

A cache may come to take memory for all of them. The answer must not change from one start to the next, because
saved caches depend on it; so it follows from the files and from all the memory there is, not from what is free.
"""

from __future__ import annotations

from localspec.models.facts.shape import ModelShape

LONGEST_DEFAULT = 32_768
"""Tokens at most: enough for a long chat with files in it."""
LEAST_DEFAULT = 8_192
"""Tokens at least, where weights and cache fit memory at all."""
FALLBACK_LENGTH = 2_048
"""Tokens where not even that fits."""
MEMORY_DIVISOR = 8
"""Caches take at most this part of memory, or what `LEAST_DEFAULT` takes."""
PROCESS_BYTES = 512 << 20
"""Bytes that Python and llama.cpp need besides weights and caches (`fit.MARGINS`)."""
_CELL_STEP = 256
"""llama.cpp makes caches of whole multiples of this."""


def default_context(
    target: ModelShape, draft: ModelShape | None = None, slots: int = 1, total_bytes: int = 0, element: float = 2.0
) -> int:
    """Tokens a slot can hold, at most as many as the target was trained for.

    Args:
        target: its shape.
        draft: that of its draft model; None = there is none.
        slots: each has a cache of its own.
        total_bytes: all memory of the machine; 0 = unknown.
        element: bytes of an element of the target's cache (the draft's have 2).
    """
    token = slots * _token_bytes(target, draft, element)
    found = LONGEST_DEFAULT
    if token and total_bytes:
        found = min(LONGEST_DEFAULT, int(total_bytes / MEMORY_DIVISOR / token))
        if found < LEAST_DEFAULT:
            weights = target.weight_bytes + (draft.weight_bytes if draft is not None else 0)
            fits = weights + LEAST_DEFAULT * token + PROCESS_BYTES <= total_bytes
            found = LEAST_DEFAULT if fits else max(FALLBACK_LENGTH, found)
    return min(found // _CELL_STEP * _CELL_STEP, target.train_context or LEAST_DEFAULT)


def is_small(
    n_ctx: int, target: ModelShape, draft: ModelShape | None, slots: int, total_bytes: int, element: float = 2.0
) -> bool:
    """Whether caches of so many slots take no more memory than `default_context` gives to caches.

    Args:
        n_ctx: tokens a slot can hold.
        target, draft, slots, total_bytes, element: as for `default_context`.
    """
    return slots * n_ctx * _token_bytes(target, draft, element) <= total_bytes / MEMORY_DIVISOR


def _token_bytes(target: ModelShape, draft: ModelShape | None, element: float) -> float:
    """Of a token in the caches of both."""
    return element * _elements(target) + (2.0 * _elements(draft) if draft is not None else 0.0)


def _elements(shape: ModelShape) -> int:
    """Of keys and values that a token leaves in the cache."""
    return sum(layer.key + layer.value for layer in shape.layers)
