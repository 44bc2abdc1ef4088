"""Embeddings: the pooled final states, as llama.cpp pools them itself, whatever the length of the text."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import ContextOverflowError, UsageError
from localspec.llama.library import lib
from localspec.llama.model import Model
from localspec.runtime.engine import Embedder
from localspec.types import Float32Array, Tokens


@pytest.fixture(scope="module")
def model(tiny_target: Path) -> Iterator[Model]:
    with Model.load(tiny_target) as loaded:
        yield loaded


def text_of(model: Model, tokens: int) -> Tokens:
    text = "Maria bought twelve lanterns in Lisbon and three maps of Oslo. " * (1 + tokens // 8)
    return model.tokenize(text, special=False, add_bos=True)[:tokens]


def embed(embedder: Embedder, tokens: Tokens) -> Float32Array:
    """All passes, none of which but the last brings anything."""
    *before, found = embedder.embed(tokens)
    assert before == [None] * len(before)
    assert found is not None
    return found


def by_llama(model: Model, tokens: Tokens, pooling: int) -> Float32Array:
    """What llama.cpp's own pooling makes of a text in one pass."""
    api = lib.api()
    params = api.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = 1024
    params.embeddings, params.pooling_type = True, pooling
    params.n_threads = params.n_threads_batch = 2
    handle = api.llama_init_from_model(model.handle, params)
    array = (ctypes.c_int32 * len(tokens))(*tokens.tolist())
    assert api.llama_decode(handle, api.llama_batch_get_one(array, len(tokens))) == 0
    pointer = api.llama_get_embeddings_seq(handle, 0)
    width = api.llama_model_n_embd_out(model.handle)
    found: Float32Array = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (width,)).copy()
    api.llama_free(handle)
    return found


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 400])
@pytest.mark.parametrize(("kind", "number"), [("mean", 1), ("first", 2), ("last", 3)])
def test_states_are_pooled_as_llama_cpp_does(
    kind: str, number: int, length: int, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(model.header.metadata, f"{model.header.architecture}.pooling_type", number)
    embedder = Embedder(model, 512, 2)
    tokens = text_of(model, length)
    found = embed(embedder, tokens)
    expected = by_llama(model, tokens, number)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 0.02 * np.abs(expected).max()
    assert (embed(embedder, tokens) == found).all()
    embedder.close()
    embedder.close()


def test_a_file_that_says_nothing_means_the_mean(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, tokens = Embedder(model, 512, 2), text_of(model, 40)
    found = embed(embedder, tokens)
    assert np.abs(found - by_llama(model, tokens, 1)).max() <= 0.02 * np.abs(found).max()
    other = embed(embedder, text_of(model, 41)[1:])
    assert not np.allclose(found, other)
    embedder.close()


def test_the_cache_grows_with_the_texts(model: Model) -> None:
    embedder = Embedder(model, 2000, 2)
    short = embed(embedder, text_of(model, 100))
    assert embedder._context is not None
    assert embedder._context.n_ctx == 512
    embed(embedder, text_of(model, 1500))
    assert embedder._context.n_ctx == 1536
    assert (embed(embedder, text_of(model, 100)) == short).all()
    embedder.close()


def test_what_cannot_be_embedded_is_said(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder(model, 64, 2)
    with pytest.raises(UsageError, match="nothing to embed"):
        embed(embedder, text_of(model, 0))
    with pytest.raises(ContextOverflowError, match="has 65 tokens and the context holds 64"):
        embed(embedder, text_of(model, 65))
    monkeypatch.setitem(model.header.metadata, f"{model.header.architecture}.pooling_type", 4)
    with pytest.raises(UsageError, match="ranks texts"):
        embed(embedder, text_of(model, 5))
