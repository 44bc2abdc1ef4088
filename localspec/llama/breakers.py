"""Texts that break DRY's repetitions, as tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.types import Breakers, Tokens

_LONGEST_TAIL = 20
"""Tokens after the first one that are looked at, as in llama.cpp."""


def breakers(pieces: Sequence[bytes], texts: Sequence[str], tokenize: Callable[[str], Tokens]) -> Breakers:
    """Every way to begin one of the texts: a token that holds it, or that ends with its beginning, and then the rest.

    Args:
        pieces: what each token of the vocabulary stands for.
        texts: none of them empty.
        tokenize: a text as tokens, without special ones.
    """
    found: set[tuple[int, ...]] = set()
    for text in texts:
        data = text.encode("utf-8", "replace")
        found |= {(token,) for token, piece in enumerate(pieces) if data in piece}
        for cut in range(1, len(data)):
            heads = [token for token, piece in enumerate(pieces) if piece.endswith(data[:cut]) and data not in piece]
            tail = tokenize(data[cut:].decode("utf-8", "replace"))[:_LONGEST_TAIL].tolist() if heads else []
            found |= {(head, *tail) for head in heads}
    sequences = sorted(found)
    offsets = np.cumsum([0, *(len(one) - 1 for one in sequences)])
    tails = [token for one in sequences for token in one[1:]]
    heads_ = [one[0] for one in sequences]
    return Breakers(*(np.array(part, dtype=np.int32) for part in (heads_, offsets, tails)))
