"""Hidden states: what goes into layers, and what comes out of the final norm. In a cache of its own, so that no answer
is disturbed; with the target's kernels and cache formats, and cut into passes as its prompts are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from localspec.errors import ContextOverflowError, UsageError
from localspec.llama import lib
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.settings import ContextSettings
from localspec.types import Float32Array, Tokens

SHOWS_LAYERS = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2", "lfm2moe", "llama",
        "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "qwen3",
        "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    }
)  # fmt: skip
"""Architectures whose layer inputs this llama.cpp hands out; asked for those of another it ends the process."""
_SET_LAYER = "_Z30llama_set_embeddings_layer_inpP13llama_contextjb"
_GET_LAYER = "_Z30llama_get_embeddings_layer_inpP13llama_contextj"
"""C++ names: llama.cpp declares these outside its C interface."""
_STEP = 512


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Of a text of n tokens."""

    layers: dict[int, Float32Array]
    """Layer -> float32[n, n_embd], what goes into it: the residual stream before its own norm. Layer 0's are the token
    embeddings; those of layer i come out of layer i - 1."""
    final: Float32Array
    """float32[n, n_embd], behind the final norm: what the output matrix turns into logits."""


def check_layers(model: Model, layers: Sequence[int]) -> tuple[int, ...]:
    """The layers, each once, in order.

    Raises:
        UsageError: the model has no such layer, or its architecture does not show layers.
    """
    architecture, count = model.header.architecture, int(lib.api().llama_model_n_layer(model.handle))
    for layer in layers:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 0 <= layer < count:
            raise UsageError(f"There is no layer {layer!r}; {model.path.name} has layers 0 to {count - 1}.")
    if layers and architecture not in SHOWS_LAYERS:
        raise UsageError(
            f"llama.cpp does not show what goes into layers of the architecture {architecture}.",
            "Ask for no layers: the final states are there for every model.",
        )
    return tuple(sorted({int(layer) for layer in layers}))


def sizes(model: Model) -> tuple[int, int]:
    """How many numbers go into a layer for each token, and how many a final state has."""
    api = lib.api()
    return int(api.llama_model_n_embd(model.handle)), int(api.llama_model_n_embd_out(model.handle))


class _Tapped(Context):
    """A context that keeps the inputs of layers, and the final state of every row."""

    def __init__(self, model: Model, settings: ContextSettings, layers: tuple[int, ...]) -> None:
        super().__init__(model, settings, embeddings=True)
        self.layers = layers
        self._n_embd, self._n_final = sizes(model)
        if layers:
            switch = lib.c_function(_SET_LAYER, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool)
            for layer in layers:
                switch(self._handle, layer, True)

    def layer(self, layer: int, rows: int) -> Float32Array:
        """float32[rows, n_embd], of the last pass; a view that is valid until the next one."""
        get = lib.c_function(_GET_LAYER, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
        return _view(get(self._handle, layer), rows, self._n_embd)

    def final(self, rows: int) -> Float32Array:
        """float32[rows, n_embd], of the last pass; a view that is valid until the next one."""
        return _view(self.hidden_states(), rows, self._n_final)


def _view(address: int, rows: int, width: int) -> Float32Array:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    found: Float32Array = np.ctypeslib.as_array(pointer, shape=(rows, width))
    return found


class HiddenReader:
    """Reads texts for one model. Its cache is made for the first text, and again for longer ones or other layers."""

    def __init__(self, like: Context) -> None:
        """
        Args:
            like: the context that answers: model, number formats, threads and grid are taken from it, and how long a
                text may be.
        """
        self._like = like
        self._context: _Tapped | None = None

    def read(self, tokens: Tokens, layers: Sequence[int]) -> Iterator[HiddenStates | None]:
        """Hidden states of every token. Each step is a pass; all but the last yield None. One text at a time.

        Args:
            tokens: int32[n], n >= 1.
            layers: whose inputs are wanted, counted from 0; the final states come anyway.

        Raises:
            UsageError: no tokens, no such layer, or an architecture that does not show layers.
            ContextOverflowError: too many tokens.
            DecodeError: llama.cpp failed.
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
        parts: dict[int, list[Float32Array]] = {layer: [] for layer in context.layers}
        final: list[Float32Array] = []
        done = 0
        while done < len(tokens):
            start, done = done, context.prefill_chunk(0, history, len(history))
            for layer, found in parts.items():
                found.append(context.layer(layer, done - start).copy())
            final.append(context.final(done - start).copy())
            if done < len(tokens):
                yield None
        yield HiddenStates({layer: np.concatenate(found) for layer, found in parts.items()}, np.concatenate(final))

    def _room_for(self, tokens: int, layers: tuple[int, ...]) -> _Tapped:
        held, grid = self._context, self._like.grid
        if held is None or held.n_ctx < tokens or held.layers != layers:
            self.close()
            n_ctx = -(-tokens // _STEP) * _STEP
            settings = replace(
                self._like.settings, n_ctx=n_ctx, n_slots=1, max_leaves=1, max_rows=grid, reuse="all", grid_prefill=True
            )
            self._context = held = _Tapped(self._like.model, settings, layers)
        return held

    def close(self) -> None:
        """Frees the cache; a second call does nothing."""
        context, self._context = self._context, None
        if context is not None:
            context.close()
