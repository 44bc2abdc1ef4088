"""One row: against llama.cpp's own sampler chain and against what the words of the settings say."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.errors import KernelError
from localspec.native import kernels
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Purpose, SamplingParams, Tokens

from .backends import BACKENDS, Backend

FULL = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def rows_of(*logits: float) -> LogitRows:
    return LogitRows.from_matrix(np.array([logits], dtype=np.float32))


def llama_chain(row: Float32Array, s: SamplingParams, window: Tokens) -> dict[int, float]:
    """Probabilities after llama.cpp's default chain."""
    lib: Any = pytest.importorskip("llama_cpp")
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    bias = (lib.llama_logit_bias * len(s.logit_bias))(*(lib.llama_logit_bias(*pair) for pair in s.logit_bias))
    for part in (
        lib.llama_sampler_init_logit_bias(len(row), len(bias), bias),
        lib.llama_sampler_init_penalties(
            len(row), s.penalty_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        lib.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        lib.llama_sampler_init_top_k(s.top_k),
        lib.llama_sampler_init_typical(s.typical_p, 0),
        lib.llama_sampler_init_top_p(s.top_p, 0),
        lib.llama_sampler_init_min_p(s.min_p, 0),
        lib.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, 1),
        lib.llama_sampler_init_temp_ext(s.temperature, s.dynatemp_range, s.dynatemp_exponent),
        lib.llama_sampler_init_dist(1),
    ):
        lib.llama_sampler_chain_add(chain, part)
    for token in window.tolist():
        lib.llama_sampler_accept(chain, token)
    data = (lib.llama_token_data * len(row))(*((i, float(x), 0.0) for i, x in enumerate(row)))
    array = lib.llama_token_data_array(data, len(row), -1, False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    lib.llama_sampler_free(chain)
    return {array.data[i].id: array.data[i].p for i in range(array.size) if array.data[i].p > 0}


@settings(derandomize=True, max_examples=300)  # float32 there, double here: a tie at a threshold may fall either way
@given(
    st.integers(0, 2**32),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 0.8, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 5, 40]),
        top_p=st.sampled_from([0.0, 0.45, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.06, 0.4]),
        typical_p=st.sampled_from([0.25, 0.8, 1.0, 1.0]),
        top_n_sigma=st.sampled_from([-1.0, -1.0, 0.0, 0.6, 2.0]),
        xtc_probability=st.sampled_from([0.0, 0.0, 1.0]),
        xtc_threshold=st.sampled_from([0.02, 0.1, 0.3, 0.6]),
        dynatemp_range=st.sampled_from([0.0, 0.0, 0.25, 5.0]),
        dynatemp_exponent=st.sampled_from([0.5, 1.0, 2.0]),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 0.6]),
        frequency_penalty=st.sampled_from([0.0, 0.3]),
        penalty_last_n=st.sampled_from([0, 3, 64]),
        logit_bias=st.sampled_from([(), ((0, 2.0), (3, -1.5), (4, -8.0))]),
    ),
)
def test_the_support_and_its_probabilities_are_those_of_llama_cpps_chain(seed: int, sampling: SamplingParams) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 2, size=int(rng.choice([7, 60, 300]))).astype(np.float32)
    window = rng.integers(0, len(row), size=20).astype(np.int32)
    if sampling.top_n_sigma > 0:  # llama.cpp's typical sampling makes NaN of the logits that top-n-sigma excludes
        sampling = replace(sampling, typical_p=1.0)
    got = kernels.distribution(LogitRows.from_matrix(row[None].copy()), 0, sampling, window)
    wanted = llama_chain(row, sampling, window)
    assert set(got.tokens.tolist()) == set(wanted)
    np.testing.assert_allclose(got.probs, [wanted[t] for t in got.tokens.tolist()], rtol=2e-4)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
class TestMeaning:
    """Small rows whose answers can be read off."""

    def support(self, backend: Backend, rows: LogitRows, **settings: Any) -> list[int]:
        window = settings.pop("window", NO_TOKENS)
        tokens: Tokens = backend.kernels.distribution(rows, 0, replace(FULL, **settings), window).tokens
        return [int(token) for token in tokens]

    def test_order_is_by_logit_then_by_lower_id(self, backend: Backend) -> None:
        assert self.support(backend, rows_of(1, 3, 3, -np.inf, 0.0, -0.0)) == [1, 2, 0, 4, 5]

    def test_top_k_takes_the_lower_id_of_a_tie(self, backend: Backend) -> None:
        assert self.support(backend, rows_of(1, 3, 3, 3), top_k=2) == [1, 2]

    def test_top_p_includes_the_token_that_crosses(self, backend: Backend) -> None:
        row = rows_of(*np.log([0.5, 0.3, 0.15, 0.05]))
        assert self.support(backend, row, top_p=0.6) == [0, 1]
        assert self.support(backend, row, top_p=0.0) == [0]

    def test_filters_see_probabilities_before_temperature(self, backend: Backend) -> None:
        row = rows_of(*np.log([0.5, 0.3, 0.15, 0.05]))
        for temperature in (0.1, 1.0, 50.0):
            assert self.support(backend, row, min_p=0.25, temperature=temperature) == [0, 1, 2]

    def test_typical_may_drop_the_most_likely_token(self, backend: Backend) -> None:
        row = rows_of(*np.log([0.4, *[0.06] * 10]))
        assert 0 not in self.support(backend, row, typical_p=0.3)

    def test_top_n_sigma_counts_deviations_of_what_is_not_excluded(self, backend: Backend) -> None:
        row = rows_of(3, 1, -1, -3, -np.inf)  # mean 0, deviation sqrt(5)
        assert self.support(backend, row, top_n_sigma=0.8) == [0]
        assert self.support(backend, row, top_n_sigma=1.8) == [0, 1, 2]
        assert self.support(backend, row, top_n_sigma=1.8, top_k=2) == [0, 1]
        assert (
            self.support(backend, row, top_n_sigma=0.0) == self.support(backend, row, top_n_sigma=-1.0) == [0, 1, 2, 3]
        )

    def test_xtc_leaves_the_least_of_the_likely_tokens(self, backend: Backend) -> None:
        row = rows_of(*np.log([0.4, 0.3, 0.2, 0.1]), -np.inf)
        assert self.support(backend, row, xtc_probability=1.0, xtc_threshold=0.15) == [2, 3]
        assert self.support(backend, row, xtc_probability=1.0, xtc_threshold=0.35) == [0, 1, 2, 3]
        assert self.support(backend, row, xtc_probability=1.0, xtc_threshold=0.0) == [3]
        assert self.support(backend, row, xtc_probability=1.0, xtc_threshold=0.51) == [0, 1, 2, 3]
        assert self.support(backend, row, xtc_probability=1.0, xtc_threshold=0.15, temperature=0.0) == [0]

    def test_xtc_falls_as_often_as_it_should_and_for_each_position_anew(self, backend: Backend) -> None:
        row, often = rows_of(*np.log([0.6, 0.4])), replace(FULL, xtc_probability=0.3)
        falls = [
            len(backend.kernels.distribution(row, 0, often, NO_TOKENS, Noise(seed, 1, round_), position).tokens) == 1
            for seed in range(10)
            for round_ in (0, 7)
            for position in range(100)
        ]
        assert 0.25 < np.mean(falls) < 0.35
        assert falls[:100] == falls[100:200] != falls[200:300]

    def test_dynamic_temperature_follows_the_entropy(self, backend: Backend) -> None:
        def probs(*logits: float, **settings: Any) -> list[float]:
            dynamic = replace(FULL, dynatemp_range=0.5, **settings)
            return list(backend.kernels.distribution(rows_of(*logits), 0, dynamic, NO_TOKENS).probs)

        np.testing.assert_allclose(probs(0, 0, 0), [1 / 3] * 3)  # the hottest: 1.5
        np.testing.assert_allclose(probs(60, 0), [1.0, np.exp(-120)])  # the coldest: 0.5
        p = np.array([0.9, 0.1])
        share = -(p * np.log(p)).sum() / np.log(2)
        for exponent in (0.0, 0.5, 1.0, 3.0):
            raised = p ** (1 / (0.5 + share**exponent))
            np.testing.assert_allclose(probs(*np.log(p), dynatemp_exponent=exponent), raised / raised.sum(), rtol=1e-6)
        assert probs(2, 1, temperature=0.5, dynatemp_exponent=100.0) == [1.0]  # 0 or next to it

    def test_penalties_look_at_the_last_tokens_only(self, backend: Backend) -> None:
        window = np.array([0, 0, 1, 9, -1], dtype=np.int32)  # 9 and -1 are in no vocabulary: ignored
        row = rows_of(2.0, 2.0, -2.0)
        assert self.support(backend, row, window=window, frequency_penalty=1.0, penalty_last_n=-1) == [1, 0, 2]
        assert self.support(backend, row, window=window, frequency_penalty=1.0, penalty_last_n=3) == [0, 1, 2]
        assert self.support(backend, row, window=window, repeat_penalty=2.0, penalty_last_n=0) == [0, 1, 2]
        probs = backend.kernels.distribution(row, 0, replace(FULL, repeat_penalty=2.0), np.array([2], np.int32)).probs
        np.testing.assert_allclose(probs, np.exp([2, 2, -4]) / np.exp([2, 2, -4]).sum())

    def test_temperature_0_is_the_most_likely_token(self, backend: Backend) -> None:
        greedy = replace(FULL, temperature=0.0, typical_p=0.1)
        row = rows_of(1, 4, 4, 2)
        tokens, probs = backend.kernels.sample(row, 0, greedy, NO_TOKENS, Noise(1), 0, 3)
        assert tokens.tolist() == [1, 2, 3]
        np.testing.assert_allclose(probs, np.exp([4, 4, 2]) / np.exp([1, 4, 4, 2]).sum(), rtol=1e-6)
        assert backend.kernels.distribution(row, 0, greedy, NO_TOKENS).probs.tolist() == [1.0]

    def test_sample_is_the_best_of_log_prob_plus_gumbel(self, backend: Backend) -> None:
        rng = np.random.default_rng(0)
        row = rng.normal(0, 2, 500).astype(np.float32)
        rows = LogitRows.from_matrix(row[None].copy())
        for seed in range(50):
            noise = Noise(seed, 1, 2)
            scores = row / 0.7 + backend.kernels.gumbel(noise, Purpose.SAMPLE, 33, np.arange(500, dtype=np.int32))
            tokens, probs = backend.kernels.sample(rows, 0, replace(FULL, temperature=0.7), NO_TOKENS, noise, 33, 4)
            assert tokens.tolist() == np.argsort(-scores)[:4].tolist()
            np.testing.assert_allclose(probs, (np.exp(row / 0.7) / np.exp(row / 0.7).sum())[tokens], rtol=1e-4)

    def test_fewer_than_asked_for_if_the_support_is_smaller(self, backend: Backend) -> None:
        for sampling in (FULL, SamplingParams()):
            tokens, probs = backend.kernels.sample(rows_of(5, -np.inf, 5), 0, sampling, NO_TOKENS, Noise(1), 0, 9)
            assert sorted(tokens.tolist()) == [0, 2]
            assert probs.tolist() == [0.5, 0.5]

    def test_log_probs_are_those_of_the_raw_row(self, backend: Backend) -> None:
        row = rows_of(1.0, 2.0, -np.inf, 0.0)
        wanted = np.array([1.0, 2.0, -np.inf, 0.0]) - np.log(np.exp([1.0, 2.0, 0.0]).sum())
        np.testing.assert_allclose(backend.kernels.log_probs(row, 0, np.arange(4, dtype=np.int32)), wanted)
        tokens, values = backend.kernels.top_log_probs(row, 0, 9)
        assert tokens.tolist() == [1, 0, 3]
        np.testing.assert_allclose(values, wanted[[1, 0, 3]])

    @pytest.mark.parametrize(
        "row", [(1, np.nan, 2), (np.nan, np.nan, np.nan), (1, np.inf, 2), (-np.inf, -np.inf, np.nan)]
    )
    def test_nan_and_infinity_are_refused(self, backend: Backend, row: tuple[float, ...]) -> None:
        with pytest.raises(KernelError, match=r"holds NaN or \+inf for token"):
            backend.kernels.sample(rows_of(*row), 0, SamplingParams(), NO_TOKENS, Noise(1), 0)

    def test_a_row_with_nothing_left_is_refused(self, backend: Backend) -> None:
        banned = replace(FULL, logit_bias=((0, -np.inf), (1, -np.inf)))
        for rows, sampling in ((rows_of(-np.inf, -np.inf), FULL), (rows_of(1, 2), banned)):
            with pytest.raises(KernelError, match="nothing is left to sample"):
                backend.kernels.sample(rows, 0, sampling, NO_TOKENS, Noise(1), 0)
            with pytest.raises(KernelError, match="nothing is left to sample"):
                backend.kernels.distribution(rows, 0, sampling, NO_TOKENS)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_a_call_that_needs_larger_buffers_still_sees_its_window(backend: Backend) -> None:
    """The first call grows the scratch buffers, the second finds them large: both must punish the same tokens."""
    count = 3000  # more than any other test asks for
    logits = np.random.default_rng(5).normal(size=(1, 4096)).astype(np.float32)
    sampling = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=5.0)
    window = np.arange(64, dtype=np.int32)
    calls = [
        backend.kernels.sample(LogitRows.from_matrix(logits.copy()), 0, sampling, window, Noise(1), 7, count)[0]
        for _ in range(2)
    ]
    assert np.array_equal(calls[0], calls[1])


class Unhashable(SamplingParams):
    __slots__ = ()

    def __hash__(self) -> int:
        raise AssertionError("a hash of all settings takes longer than a small verdict")


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_settings_are_known_again_without_a_hash(backend: Backend) -> None:
    """Every pass asks with the same object, which many answers' settings equal."""
    given = [Unhashable(temperature=0.0), Unhashable(temperature=0.0, logit_bias=((1, 9.0),)), Unhashable()]
    best = [backend.kernels.sample(rows_of(2, 1), 0, one, NO_TOKENS, Noise(1), 0)[0].tolist() for one in given * 2]
    assert best[:2] == best[3:5] == [[0], [1]]
