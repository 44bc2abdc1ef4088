"""How many tokens the cache of a model with recurrent layers can drop again, which is the longest draft for it.

llama.cpp keeps a whole state for each such token besides the last one, whatever is drafted: 19 MB of a 0.8 B, 151 MB of
a 27 B. One to four tokens are what drafting gains most from there.
"""

from __future__ import annotations

from localspec.gguf.formats import ROLLS_BACK
from localspec.models.facts.shape import ModelShape

_MOST_STATES = 4
_MEMORY_DIVISOR = 32
"""States may take this part of memory."""


def rollback(shape: ModelShape, total_bytes: int, wanted: int | None = None) -> int:
    """Tokens that can be dropped.

    Args:
        shape: of the target.
        wanted: what the user asks for; None = nothing.
        total_bytes: all the memory there is, so that the answer is the same at every start; 0 = unknown.

    Returns:
        What is wanted, else 1 to 4; 0 if the model keeps no state, or one of which llama.cpp keeps no snapshots.
    """
    if shape.architecture not in ROLLS_BACK:
        return 0
    if wanted is not None:
        return wanted
    state = 4 * sum(layer.state for layer in shape.layers)
    if not (state and total_bytes):
        return _MOST_STATES
    return max(1, min(_MOST_STATES, total_bytes // _MEMORY_DIVISOR // state))
