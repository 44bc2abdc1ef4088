"""An answer of at least so many tokens: until then the tokens that would end it are masked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from localspec.engine.interfaces import Constraint
from localspec.errors import KernelError
from localspec.types import NO_TOKENS, Tokens


class Minimum:
    """Implements `interfaces.Constraint`. A grammar that is complete, or allows the end alone, ends the answer
    earlier."""

    def __init__(self, least: int, ends: Iterable[int], n_vocab: int, grammar: Constraint | None) -> None:
        """
        Args:
            least: number of tokens before any of `ends` is allowed.
            ends: tokens that end an answer.
            n_vocab: entries of a logits row.
            grammar: what else the answer must follow, at its beginning.
        """
        self._least, self._ends, self._grammar = least, frozenset(ends), grammar
        self._free = np.ones(n_vocab, dtype=np.bool_)
        self._endless = np.ones(n_vocab, dtype=np.bool_)
        self._endless[[token for token in self._ends if token < n_vocab]] = False
        self._written = 0

    def fresh(self) -> Minimum:
        """The same constraint in the state before an answer's first token."""
        grammar = None if self._grammar is None else self._grammar.fresh()
        return Minimum(self._least, self._ends, len(self._free), grammar)

    @property
    def complete(self) -> bool:
        return self._grammar is not None and self._grammar.complete

    def fits(self, path: Sequence[int]) -> int:
        fitting = len(path) if self._grammar is None else self._grammar.fits(path)
        for index in range(min(fitting, self._least - self._written)):
            if path[index] in self._ends and not self._allowed(path[:index], path[index]):
                return index
        return fitting

    def _allowed(self, path: Sequence[int], token: int) -> bool:
        try:
            mask = self.mask(path)
        except KernelError:  # asking for the mask raises it again
            return False
        return mask is not None and bool(mask[token])

    def mask(self, path: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        early = self._written + len(path) < self._least
        if self._grammar is None:
            return self._endless if early else self._free
        mask = self._grammar.mask(path)
        if mask is None or not early:
            return mask
        endless = mask & self._endless
        return endless if endless.any() else mask

    def forced(self) -> Tokens:
        return NO_TOKENS if self._grammar is None else self._grammar.forced()

    def advance(self, token: int) -> None:
        self._written += 1
        if self._grammar is not None:
            self._grammar.advance(token)
