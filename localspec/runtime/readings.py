"""What a model makes of whole texts: vectors, log-probabilities, hidden states; a pass at a time between the passes of
answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from localspec.engine.request import TokenLogProb
from localspec.errors import Cancelled
from localspec.llama.cache.embedder import Embedder
from localspec.llama.cache.hidden import HiddenReader, HiddenStates
from localspec.runtime.loaded import Loaded
from localspec.runtime.scorer import Scorer
from localspec.types import Float32Array, Tokens

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
