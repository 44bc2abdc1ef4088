"""Texts as vectors: the model's final states, pooled. In a cache of its own, so that no answer is disturbed.

Hidden states: what goes into layers, and what comes out of the final norm. In a cache of its own, so that no answer
is disturbed; with the target's kernels and cache formats, and cut into passes as its prompts are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.errors import ContextOverflowError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import FINAL, Tap, check_tap
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Float32Array, Float64Array, Tokens

_PASS_TOKENS = 128
"""Tokens of a pass. llama.cpp keeps logits of every row: 80 MB for a vocabulary of 150,000."""
_CACHE_STEP = 512
"""The context holds a multiple of this number of tokens."""
_NONE, _MEAN, _FIRST, _LAST, _RANK = range(5)
"""llama.cpp's numbers of how states are pooled."""


class Embedder:
    """Embeds with one model. Its cache is made for the first text, and again for longer ones."""

    def __init__(self, model: Model, longest: int, threads: int) -> None:
        """
        Args:
            model: must stay open as long as this is used.
            longest: tokens a text may have.
            threads: CPU threads.
        """
        self._model, self._longest, self._threads = model, longest, threads
        self._context: Context | None = None
        self._width = int(lib.api().llama_model_n_embd_out(model.handle))

    def embed(self, tokens: Tokens) -> Iterator[Float32Array | None]:
        """float32[n_embd], not normalised: pooled as the file says, the mean over all tokens if it does not say.

        Each step is a pass; all but the last yield None. One text at a time.

        Args:
            tokens: int32[n], n >= 1.

        Raises:
            UsageError: no tokens, or a model that ranks texts.
            ContextOverflowError: too many tokens.
        """
        if not len(tokens):
            raise UsageError("There is nothing to embed.", "Give it at least one token of text.")
        if len(tokens) > self._longest:
            raise ContextOverflowError(
                f"The text has {len(tokens)} tokens and the context holds {self._longest}.", "Embed it in parts."
            )
        pooling = self._pooling()
        context = self._room_for(len(tokens) + 1)
        context.forget(0)
        history = np.append(tokens, tokens[-1])  # a cache is filled up to the last token, which is left for decoding
        total: Float64Array = np.zeros(self._width)
        done = 0
        while done < len(tokens):
            start, done = done, context.prefill_chunk(0, history, len(history))
            assert context.outputs is not None
            states = context.outputs.rows(FINAL, done - start)
            if pooling == _MEAN:
                total += states.sum(axis=0, dtype=np.float64) / len(tokens)
            elif pooling == _LAST or start == 0:
                total[:] = states[-1 if pooling == _LAST else 0]
            yield None if done < len(tokens) else total.astype(np.float32)

    def _pooling(self) -> int:
        kind = self._model.header.number("pooling_type")
        if kind == _RANK:
            raise UsageError(f"{self._model.path.name} ranks texts; it does not embed them.")
        return _MEAN if kind not in (_FIRST, _LAST) else kind

    def _room_for(self, tokens: int) -> Context:
        if self._context is None or self._context.n_ctx < tokens:
            self.close()
            n_ctx = -(-tokens // _CACHE_STEP) * _CACHE_STEP
            settings = ContextSettings(n_ctx=n_ctx, grid=_PASS_TOKENS, max_rows=_PASS_TOKENS, threads=self._threads)
            self._context = Context(self._model, settings, tap=Tap(final="all"), keep_states=False)
        return self._context

    def close(self) -> None:
        """Frees the cache; a second call does nothing."""
        context, self._context = self._context, None
        if context is not None:
            context.close()


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states of a text of n tokens."""

    layers: dict[int, Float32Array]
    """{layer: float32[n, n_embd]}, inputs of the layer: the residual stream before the layer's norm. Inputs of layer 0
    are the token embeddings; those of layer i are the outputs of layer i - 1."""
    final: Float32Array
    """float32[n, n_embd], after the final norm: what the output matrix turns into logits."""


def check_layers(model: Model, layers: Sequence[int]) -> tuple[int, ...]:
    """The layers, each once, in order."""
    count = int(lib.api().llama_model_n_layer(model.handle))
    return check_tap(model.header, count, Tap(tuple(layers))).layers


class HiddenReader:
    """Reads texts for one model. Its cache is made for the first text, and again for longer ones or other layers."""

    def __init__(self, like: Context) -> None:
        """
        Args:
            like: the context that answers: model, number formats, threads and grid are taken from it, and how long a
                text may be.
        """
        self._like = like
        self._context: Context | None = None

    def read(self, tokens: Tokens, layers: Sequence[int]) -> Iterator[HiddenStates | None]:
        """Hidden states of every token. Each step is a pass; all but the last yield None. One text at a time.

        Args:
            tokens: int32[n], n >= 1.
            layers: whose inputs are wanted, counted from 0; the final states come anyway.

        Raises:
            UsageError: no tokens, no such layer, or an architecture that does not show layers.
            ContextOverflowError: too many tokens.
        """
        if not len(tokens):
            raise UsageError("There is nothing to read.", "Give it at least one token of text.")
        if len(tokens) > self._like.n_ctx:
            raise ContextOverflowError(
                f"The text has {len(tokens)} tokens and the context holds {self._like.n_ctx}.", "Read it in parts."
            )
        context = self._room_for(len(tokens) + 1, check_layers(self._like.model, layers))
        context.forget(0)
        history = np.append(tokens, tokens[-1])  # a cache is filled up to the last token, which is left for decoding
        outputs, done = context.outputs, 0
        assert outputs is not None
        parts: dict[int, list[Float32Array]] = {what: [] for what in outputs.tap.everything}
        while done < len(tokens):
            start, done = done, context.prefill_chunk(0, history, len(history))
            for what, found in parts.items():
                found.append(outputs.rows(what, done - start).copy())
            if done < len(tokens):
                yield None
        final = np.concatenate(parts.pop(FINAL))
        yield HiddenStates({layer: np.concatenate(found) for layer, found in parts.items()}, final)

    def _room_for(self, tokens: int, layers: tuple[int, ...]) -> Context:
        held, tap = self._context, Tap(layers, "all")
        if held is None or held.n_ctx < tokens or held.outputs is None or held.outputs.tap != tap:
            self.close()
            n_ctx = -(-tokens // _CACHE_STEP) * _CACHE_STEP
            like = self._like.settings
            rollback = like.rollback if self._like.most_nodes else 0  # with snapshots passes are built differently
            settings = replace(
                like, n_ctx=n_ctx, n_slots=1, max_leaves=1, rollback=rollback, reuse="all", grid_prefill=True
            )
            self._context = held = Context(self._like.model, settings, tap=tap, keep_states=False)
        return held

    def close(self) -> None:
        """Frees the cache; a second call does nothing."""
        context, self._context = self._context, None
        if context is not None:
            context.close()
