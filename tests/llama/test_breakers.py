"""DRY with its breakers: against llama.cpp's own sampler, with the bundled vocabulary."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from localspec.llama.model import Model
from localspec.native import kernels
from localspec.types import Float32Array, LogitRows, ModelSampling, SamplingParams, Tokens

TEXTS = ("\n", ":", '"', "*")


def sequences(sampling: SamplingParams) -> set[tuple[int, ...]]:
    """The breakers of a model's settings, one by one."""
    assert isinstance(sampling, ModelSampling)
    known = sampling.breakers
    bounds = zip(known.offsets[:-1].tolist(), known.offsets[1:].tolist(), strict=True)
    return {
        (head, *known.tails[start:stop].tolist())
        for head, (start, stop) in zip(known.heads.tolist(), bounds, strict=True)
    }


def llama_dry(model: Model, row: Float32Array, s: SamplingParams, window: Tokens) -> dict[int, float]:
    """Probabilities after llama.cpp's DRY."""
    lib: Any = pytest.importorskip("llama_cpp")
    texts = [text.encode() for text in s.dry_sequence_breakers]
    dry = lib.llama_sampler_init_dry(
        model.vocab,
        s.dry_multiplier,
        s.dry_base,
        s.dry_allowed_length,
        s.dry_penalty_last_n,
        (ctypes.c_char_p * len(texts))(*texts),
        len(texts),
    )
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for part in (dry, lib.llama_sampler_init_dist(1)):
        lib.llama_sampler_chain_add(chain, part)
    for token in window.tolist():
        lib.llama_sampler_accept(chain, token)
    data = (lib.llama_token_data * len(row))(*((i, float(x), 0.0) for i, x in enumerate(row)))
    array = lib.llama_token_data_array(data, len(row), -1, False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    lib.llama_sampler_free(chain)
    return {array.data[i].id: array.data[i].p for i in range(array.size)}


@pytest.mark.parametrize("texts", [TEXTS, (), ("\n",), ("she said", "the"), ("ee", "\u00e9\u00e9!")])
def test_penalties_are_those_of_llama_cpp(model: Model, texts: tuple[str, ...]) -> None:
    rng = np.random.default_rng(len(texts))
    words = model.tokenize('One: two\nthree "four" she said the seed * \u00e9\u00e9!', special=False, add_bos=False)
    changed = 0
    for _ in range(60):
        row = rng.normal(0, 2, size=model.n_vocab).astype(np.float32)
        some = rng.choice(words, size=int(rng.integers(1, 6)))
        window = rng.choice(some, size=int(rng.integers(0, 60))).astype(np.int32)
        given = SamplingParams(
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            dry_multiplier=float(rng.choice([0.3, 2.0])),
            dry_base=float(rng.choice([1.0, 1.75, 3.0])),
            dry_allowed_length=int(rng.choice([0, 1, 2, 4])),
            dry_penalty_last_n=int(rng.choice([1, 8, 25, 100])),
            dry_sequence_breakers=texts,
        )
        got = kernels.distribution(LogitRows.from_matrix(row[None].copy()), 0, model.sampling(given), window)
        wanted = llama_dry(model, row, given, window)
        np.testing.assert_allclose(got.probs, [wanted[token] for token in got.tokens.tolist()], rtol=2e-4, atol=1e-35)
        changed += not np.isclose(got.probs[0], np.exp(row.max()) / np.exp(row.astype(float)).sum(), rtol=1e-6)
    assert changed > 10


def test_a_breaker_is_found_in_tokens_that_hold_it_or_end_with_its_beginning(model: Model) -> None:
    (newline,) = model.tokenize("\n", special=False, add_bos=False).tolist()
    found = sequences(model.sampling(SamplingParams(dry_multiplier=1.0)))
    assert (newline,) in found
    assert all(any(text in model.detokenize(one, special=True) for text in TEXTS) for one in found)
    halves = sequences(model.sampling(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("\n\n",))))
    assert (newline, newline) in halves


def test_settings_without_dry_stay_as_they_are_and_texts_are_looked_up_once(model: Model) -> None:
    plain, dry = SamplingParams(), SamplingParams(dry_multiplier=0.8)
    assert model.sampling(plain) is plain
    bound = model.sampling(dry)
    assert model.sampling(bound) is bound
    assert bound == model.sampling(dry)
