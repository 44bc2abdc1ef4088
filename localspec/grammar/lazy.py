"""A grammar that holds only from a mark on: what comes before the mark is free, and costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from localspec.engine.interfaces import Constraint
from localspec.errors import KernelError
from localspec.types import NO_TOKENS, Tokens


@dataclass(frozen=True, slots=True)
class Trigger:
    """Where a grammar begins and ends to hold."""

    opening: int
    """Token at which it begins to hold, and which is the first it takes."""
    thought: tuple[int, int] = (-1, -1)
    """Tokens around a thought, in which the opening means nothing; -1 = there is none."""
    thinking: bool = False
    """The answer begins within a thought."""
    again: bool = False
    """What comes after the grammar is complete is free until the next opening; else the answer is over there."""
    said: tuple[int, ...] = ()
    """Tokens of the prompt that the grammar takes first, the opening among them; () = the answer begins free."""


class Lazy:
    """Implements `interfaces.Constraint`."""

    def __init__(self, grammar: Constraint, trigger: Trigger, n_vocab: int) -> None:
        """
        Args:
            grammar: what must follow the mark, the mark included.
            trigger: where it holds.
            n_vocab: entries of a logits row.
        """
        self.grammar, self.trigger = grammar, trigger
        self._free = np.ones(n_vocab, dtype=np.bool_)
        self._free.flags.writeable = False
        self._thinking = trigger.thinking
        self._held: Constraint | None = None  # the grammar where it holds
        for token in trigger.said:
            self.advance(token)

    def fresh(self) -> Lazy:
        """The same at the beginning of an answer."""
        return Lazy(self.grammar, self.trigger, len(self._free))

    @property
    def complete(self) -> bool:
        return self._held is not None and self._held.complete

    def fits(self, path: Sequence[int]) -> int:
        return self._follow(path)[0]

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        _, held, rest = self._follow(path)
        return self._free if held is None else held.mask(rest)

    def forced(self) -> Tokens:
        return NO_TOKENS if self._held is None else self._held.forced()

    def advance(self, token: int) -> None:
        if self._held is None:
            self._thinking = self._thinks(token, self._thinking)
            if self._thinking or token != self.trigger.opening:
                return
            self._held = self.grammar.fresh()
        self._held.advance(token)
        if self.trigger.again and self._held.complete:
            self._held = None

    def _thinks(self, token: int, before: bool) -> bool:
        """Whether a thought is open after a token."""
        opening, closing = self.trigger.thought
        return token != closing if before else token == opening

    def _follow(self, path: Sequence[int]) -> tuple[int, Constraint | None, list[int]]:
        """How many tokens of a path fit, the grammar that holds after them, and those of them that it takes."""
        held, at, thinking = self._held, 0, self._thinking
        while True:
            if held is None:
                while at < len(path):
                    thinking = self._thinks(path[at], thinking)
                    if not thinking and path[at] == self.trigger.opening:
                        held = self.grammar.fresh()
                        break
                    at += 1
                else:
                    return at, None, []
            rest = list(path[at:])
            taken = rest[: held.fits(rest)]
            if not self.trigger.again or not _over(held, taken):
                return at + len(taken), held, taken
            at, held = at + len(taken), None


def _over(grammar: Constraint, path: list[int]) -> bool:
    """Whether a grammar is complete after a path that it takes."""
    try:
        return grammar.mask(path) is None
    except KernelError:  # asking for the mask raises it again
        return False
