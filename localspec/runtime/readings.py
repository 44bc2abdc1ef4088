"""What a model makes of whole texts: vectors, log-probabilities, hidden states. Each is read in a cache of its own, a
pass at a time between the passes of answers, so that no answer is disturbed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from localspec.engine.slot import TokenLogProb
from localspec.errors import Cancelled, ContextOverflowError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.library import lib
from localspec.llama.library.settings import FINAL, NO_TAP, ContextSettings, Tap, check_tap
from localspec.llama.model import Model
from localspec.native import kernels
from localspec.runtime.loaded import Loaded
from localspec.types import Feed, Float32Array, Float64Array, LogitRows, Tokens

_Result = TypeVar("_Result")

_PASS_TOKENS = 128
"""Tokens of a pass. llama.cpp keeps logits of every row: 80 MB for a vocabulary of 150,000."""
_ROWS_A_PASS = 64  # tokens of a pass that scores; llama.cpp keeps logits of them all: 40 MB for a vocabulary of 150,000
_CACHE_STEP = 512  # a context holds a multiple of this number of tokens
_NONE, _MEAN, _FIRST, _LAST, _RANK = range(5)  # llama.cpp's numbers of how states are pooled


class _TextReader:
    """Reads one text at a time. Its cache is made for the first one, and again for longer ones or another tap."""

    def __init__(self, model: Model, longest: int, settings: ContextSettings) -> None:
        """`model` stays open as long as this; `longest`: tokens of a text; `settings` of the cache, but for its
        length."""
        self._model, self._longest, self._settings = model, longest, settings
        self._context: Context | None = None
        self._tap = NO_TAP

    def _check_length(self, tokens: Tokens, hint: str = "") -> None:
        """Raises ContextOverflowError: the text is too long."""
        if len(tokens) > self._longest:
            said = f"The text has {len(tokens)} tokens and the context holds {self._longest}."
            raise ContextOverflowError(said, hint)

    def _cache_for(self, wanted: int, tap: Tap = NO_TAP) -> Context:
        """An empty cache that holds so many tokens."""
        context = self._context
        if context is None or context.n_ctx < wanted or self._tap != tap:
            self.close()
            settings = replace(self._settings, n_ctx=-(-wanted // _CACHE_STEP) * _CACHE_STEP)
            self._context = context = Context(self._model, settings, tap=tap, keep_states=False)
            self._tap = tap
        context.forget(0)
        return context

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.close()


def _passes(context: Context, tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Reads a text as a prompt; yields after each pass from which token to which it went."""
    history = np.append(tokens, tokens[-1])  # a cache is filled up to the last token, which is left for decoding
    done = 0
    while done < len(tokens):
        start, done = done, context.prefill_chunk(0, history, len(history))
        yield start, done


class Embedder(_TextReader):
    """Texts as vectors: the model's final states, pooled."""

    def __init__(self, model: Model, longest: int, threads: int) -> None:
        super().__init__(model, longest, ContextSettings(grid=_PASS_TOKENS, max_rows=_PASS_TOKENS, threads=threads))
        self._width = int(lib.api().llama_model_n_embd_out(model.handle))

    def embed(self, tokens: Tokens) -> Iterator[Float32Array | None]:
        """See `Engine.embed`. Each step is a pass; all but the last yield None."""
        if not len(tokens):
            raise UsageError("There is nothing to embed.", "Give it at least one token of text.")
        self._check_length(tokens, "Embed it in parts.")
        pooling = self._model.header.number("pooling_type")
        if pooling == _RANK:
            raise UsageError(f"{self._model.path.name} ranks texts; it does not embed them.")
        context = self._cache_for(len(tokens) + 1, Tap(final="all"))
        assert context.outputs is not None
        total: Float64Array = np.zeros(self._width)
        for start, done in _passes(context, tokens):
            states = context.outputs.rows(FINAL, done - start)
            if pooling not in (_FIRST, _LAST):
                total += states.sum(axis=0, dtype=np.float64) / len(tokens)
            elif pooling == _LAST or not start:
                total[:] = states[-1 if pooling == _LAST else 0]
            yield None if done < len(tokens) else total.astype(np.float32)


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states of a text of n tokens."""

    layers: dict[int, Float32Array]
    """{layer: float32[n, n_embd]}, inputs of the layer: the residual stream before the layer's norm. Inputs of layer 0
    are the token embeddings; those of layer i are the outputs of layer i - 1."""
    final: Float32Array  # float32[n, n_embd], after the final norm: what the output matrix turns into logits


def check_layers(model: Model, layers: Sequence[int]) -> tuple[int, ...]:
    count = int(lib.api().llama_model_n_layer(model.handle))
    return check_tap(model.header, count, Tap(tuple(layers))).layers


class HiddenReader(_TextReader):
    """Hidden states, with the kernels, cache formats and passes of the context that answers."""

    def __init__(self, like: Context) -> None:
        rollback = like.settings.rollback if like.most_nodes else 0  # with snapshots passes are built differently
        settings = replace(like.settings, n_slots=1, max_leaves=1, rollback=rollback, reuse="all", grid_prefill=True)
        super().__init__(like.model, like.n_ctx, settings)

    def read(self, tokens: Tokens, layers: Sequence[int]) -> Iterator[HiddenStates | None]:
        """See `Engine.hidden_states`. Each step is a pass; all but the last yield None."""
        if not len(tokens):
            raise UsageError("There is nothing to read.", "Give it at least one token of text.")
        self._check_length(tokens, "Read it in parts.")
        tap = Tap(check_layers(self._model, layers), "all")
        context = self._cache_for(len(tokens) + 1, tap)
        assert context.outputs is not None
        parts: dict[int, list[Float32Array]] = {what: [] for what in tap.everything}
        for start, done in _passes(context, tokens):
            for what, found in parts.items():
                found.append(context.outputs.rows(what, done - start).copy())
            if done < len(tokens):
                yield None
        final = np.concatenate(parts.pop(FINAL))
        yield HiddenStates({layer: np.concatenate(found) for layer, found in parts.items()}, final)


class Scorer(_TextReader):
    """How likely each token of a given text is, by a context like the one that answers."""

    def __init__(self, like: Context) -> None:
        rows = _ROWS_A_PASS
        settings = replace(like.settings, n_slots=1, max_leaves=1, max_rows=rows, grid=rows, reuse="all")
        super().__init__(like.model, like.n_ctx, settings)

    def score(self, tokens: Tokens, top: int) -> Iterator[list[TokenLogProb] | None]:
        """See `Engine.score`. Each step is a pass; all but the last yield None."""
        self._check_length(tokens)
        context, found = self._cache_for(len(tokens)), list[TokenLogProb]()
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


def _scored(rows: LogitRows, row: int, token: int, top: int) -> TokenLogProb:
    value = float(kernels.log_probs(rows, row, [token])[0])
    likely: tuple[tuple[int, float], ...] = ()
    if top:
        ids, values = kernels.top_log_probs(rows, row, top)
        likely = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogProb(token, value, float(rows[row][token]), likely)


class Readings:
    """The readers of one engine. Thread-safe: one text is read at a time, callers wait for each other."""

    def __init__(self, loaded: Loaded, run: Callable[[Callable[[], Any]], Any]) -> None:
        """`run` runs a function on the thread that owns the models."""
        self._loaded, self._run = loaded, run
        self._one = threading.Lock()
        self._like: Context | None = None  # whose model reads

    def read(
        self, passes: Callable[[Readings], Iterator[_Result | None]], cancel: Callable[[], bool] | None
    ) -> _Result:
        """What the last pass brings of `passes`, which begins to read with one of the readers; `cancel` is asked
        between passes. Raises Cancelled: it said so."""
        with self._one:
            like = self._loaded.context
            if self._like is not like:  # none has read yet, or the models have moved to another device
                self.close()
                self._like, self.embedder = like, Embedder(like.model, like.n_ctx, like.threads)
                self.scorer, self.hidden = Scorer(like), HiddenReader(like)
            steps = passes(self)
            while True:
                if cancel is not None and cancel():
                    raise Cancelled("Stopped while reading a text.")
                found: _Result | None = self._run(lambda: next(steps))
                if found is not None:
                    return found

    def close(self) -> None:
        """Frees the caches; no text is being read."""
        for reader in () if self._like is None else (self.embedder, self.scorer, self.hidden):
            reader.close()
