"""How likely each token of a given text is to the model. In a cache of its own, so that no answer is disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from localspec.engine.request import TokenLogProb
from localspec.errors import ContextOverflowError
from localspec.llama.cache.context import Context
from localspec.native import kernels
from localspec.types import Feed, LogitRows, Tokens

_ROWS = 64
"""Tokens a pass; llama.cpp keeps logits of them all: 40 MB for a vocabulary of 150,000."""
_STEP = 512


class Scorer:
    """Scores with one model. Its cache is made for the first text, and again for longer ones."""

    def __init__(self, like: Context) -> None:
        """
        Args:
            like: the context that answers: model, number formats and threads are taken from it, and how long a text
                may be.
        """
        self._like = like
        self._context: Context | None = None

    def score(self, tokens: Tokens, top: int) -> Iterator[list[TokenLogProb] | None]:
        """Log-probabilities of all tokens but the first, before which there is nothing.

        Each step is a pass; all but the last yield None. One text at a time.

        Args:
            tokens: int32[n], n >= 1.
            top: how many of the most likely tokens of each position are told, too.

        Raises:
            ContextOverflowError: too many tokens.
            DecodeError: llama.cpp failed.
        """
        if len(tokens) > self._like.n_ctx:
            raise ContextOverflowError(f"The text has {len(tokens)} tokens and the context holds {self._like.n_ctx}.")
        context = self._room_for(len(tokens))
        context.forget(0)
        found: list[TokenLogProb] = []
        last, rows_a_pass = len(tokens) - 1, _ROWS if context.can_trim else 1
        for start in range(0, last, rows_a_pass):
            end = min(start + rows_a_pass, last)
            known = tokens[start + 1 : end]  # given, as a draft is: so that a pass has logits of every row
            parents = np.arange(-1, len(known) - 1, dtype=np.int32)
            (rows,) = context.decode([Feed(0, tokens[: start + 1], start + 1, known, parents)])
            found += [_scored(rows, row, int(tokens[start + 1 + row]), top) for row in range(end - start)]
            if end < last:
                yield None
        yield found

    def _room_for(self, tokens: int) -> Context:
        if self._context is None or self._context.n_ctx < tokens:
            self.close()
            n_ctx = -(-tokens // _STEP) * _STEP
            settings = replace(
                self._like.settings, n_ctx=n_ctx, n_slots=1, max_leaves=1, max_rows=_ROWS, grid=_ROWS, reuse="all"
            )
            self._context = Context(self._like.model, settings)
        return self._context

    def close(self) -> None:
        """Frees the cache; a second call does nothing."""
        context, self._context = self._context, None
        if context is not None:
            context.close()


def _scored(rows: LogitRows, row: int, token: int, top: int) -> TokenLogProb:
    value = float(kernels.log_probs(rows, row, [token])[0])
    likely: tuple[tuple[int, float], ...] = ()
    if top:
        ids, values = kernels.top_log_probs(rows, row, top)
        likely = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogProb(token, value, float(rows[row][token]), likely)
