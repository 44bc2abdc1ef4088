"""What a model makes of whole texts: vectors, log-probabilities, hidden states; a pass at a time between the passes of
answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from localspec.engine.slot import TokenLogProb
from localspec.errors import Cancelled, ContextOverflowError
from localspec.llama.cache.context import Context
from localspec.llama.cache.embedder import Embedder, HiddenReader, HiddenStates
from localspec.native import kernels
from localspec.runtime.loaded import Loaded
from localspec.types import Feed, Float32Array, LogitRows, Tokens

_Result = TypeVar("_Result")


class _Run(Protocol):
    """Runs a function on the thread that owns the models."""

    def __call__(self, job: Callable[[], _Result], /) -> _Result: ...


class Readings:
    """Belongs to an engine. Thread-safe: one text is read at a time, callers wait for each other."""

    def __init__(self, loaded: Loaded, run: _Run) -> None:
        """
        Args:
            loaded: the models; the cache of the context that answers is not touched.
            run: runs a function between two passes.
        """
        self._loaded, self._run = loaded, run
        self._one = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._like = self._loaded.context
        self._embedder: Embedder | None = None
        self._scorer = Scorer(self._like)
        self._hidden = HiddenReader(self._like)

    def _follow(self) -> None:
        """The models may have moved to another device since the last text."""
        with self._one:
            if self._like is not self._loaded.context:
                self.close()
                self._open()

    def embed(self, tokens: Tokens, cancel: Callable[[], bool] | None = None) -> Float32Array:
        """See `Engine.embed`."""
        self._follow()
        return self._read(self._embed(tokens), cancel)

    def _embed(self, tokens: Tokens) -> Iterator[Float32Array | None]:
        if self._embedder is None:
            self._embedder = Embedder(self._like.model, self._like.n_ctx, self._like.threads)
        yield from self._embedder.embed(np.asarray(tokens, dtype=np.int32))

    def score(self, tokens: Tokens, top: int, cancel: Callable[[], bool] | None = None) -> list[TokenLogProb]:
        """See `Engine.score`."""
        self._follow()
        return self._read(self._scorer.score(np.asarray(tokens, dtype=np.int32), top), cancel)

    def hidden_states(
        self, tokens: Tokens, layers: Sequence[int], cancel: Callable[[], bool] | None = None
    ) -> HiddenStates:
        """See `Engine.hidden_states`."""
        self._follow()
        return self._read(self._hidden.read(tokens, layers), cancel)

    def _read(self, passes: Iterator[_Result | None], cancel: Callable[[], bool] | None) -> _Result:
        with self._one:
            while True:
                if cancel is not None and cancel():
                    raise Cancelled("Stopped while reading a text.")
                found = self._run(lambda: next(passes))
                if found is not None:
                    return found

    def close(self) -> None:
        """Frees the caches; no text is being read."""
        if self._embedder is not None:
            self._embedder.close()
        self._scorer.close()
        self._hidden.close()


# How likely each token of a given text is to the model. In a cache of its own, so that no answer is disturbed.

_ROWS_A_PASS = 64
"""Tokens a pass; llama.cpp keeps logits of them all: 40 MB for a vocabulary of 150,000."""
_CONTEXT_STEP = 512


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
        """
        if len(tokens) > self._like.n_ctx:
            raise ContextOverflowError(f"The text has {len(tokens)} tokens and the context holds {self._like.n_ctx}.")
        context = self._room_for(len(tokens))
        context.forget(0)
        found: list[TokenLogProb] = []
        last, rows_a_pass = len(tokens) - 1, _ROWS_A_PASS if context.can_trim else 1
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
            n_ctx = -(-tokens // _CONTEXT_STEP) * _CONTEXT_STEP
            settings = replace(
                self._like.settings,
                n_ctx=n_ctx,
                n_slots=1,
                max_leaves=1,
                max_rows=_ROWS_A_PASS,
                grid=_ROWS_A_PASS,
                reuse="all",
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
