"""A tree of guesses, as C hands it over."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

from localspec.native.library import FollowedStruct, GuessStruct
from localspec.types import NO_TOKENS, Float32Array, Tokens


class Guess(NamedTuple):
    """A tree of guesses, best first."""

    tokens: Tokens
    parents: Tokens
    confidence: Float32Array
    """Chance of each, given its parent."""


NO_GUESS = Guess(NO_TOKENS, NO_TOKENS, np.empty(0, dtype=np.float32))


class GuessBuffer:
    """Memory for one tree, which C writes to `address`."""

    def __init__(self, found: GuessStruct | FollowedStruct | None = None) -> None:
        """`found`: where it is written; None = in memory of its own."""
        self._struct = found = found or GuessStruct()
        self.address = ctypes.addressof(found)
        self._views = (
            np.frombuffer(found.tokens, dtype=np.int32),
            np.frombuffer(found.parents, dtype=np.int32),
            np.frombuffer(found.confidence, dtype=np.float32),
        )

    def taken(self) -> Guess:
        """A copy of what is there."""
        nodes: int = self._struct.nodes
        if not nodes:
            return NO_GUESS
        tokens, parents, confidence = self._views
        return Guess(tokens[:nodes].copy(), parents[:nodes].copy(), confidence[:nodes].copy())
