"""Philox, uniform, Gumbel, log and exp: against published vectors and the standard library, and C against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.native.kernels import KERNELS
from localspec.types import Float64Array, Noise, Purpose
from tests import reference

from .backends import BACKENDS, NATIVE, Backend, NumberKernels

# Random123, tests/kat_vectors, philox4x32 10 (Salmon et al. 2011): counter, key, result.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]

NOISES = st.builds(Noise, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**30 - 1))
ARGUMENTS = np.concatenate(
    [
        np.random.default_rng(1).uniform(-700, 0, 3000),
        np.random.default_rng(2).uniform(0, 700, 300),
        np.random.default_rng(3).normal(0, 1e-6, 300),
        [0.0, -0.0, 1.0, -1.0, -690.0, np.nextafter(-690.0, -1e9), -1e308, -np.inf, math.log(2) / 2, 700.0],
    ]
)


def words(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array([int(word, 16) for word in text.split()], dtype=np.uint32)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
@pytest.mark.parametrize(("counter", "key", "result"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(backend: Backend, counter: str, key: str, result: str) -> None:
    np.testing.assert_array_equal(backend.kernels.philox4x32_10(words(counter), words(key)), words(result))


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_uniform_is_the_first_philox_word_of_the_documented_counter(backend: Backend) -> None:
    noise = Noise(seed=0x0123456789ABCDEF, stream=5, round=77)
    tokens = np.array([0, 1, 151935, 2**31 - 1], dtype=np.int32)
    got = backend.kernels.uniform(noise, Purpose.RESIDUAL, 4242, tokens)
    key = np.array([0x89ABCDEF, 0x01234567], dtype=np.uint32)
    for token, value in zip(tokens, got, strict=True):
        counter = np.array([token, 4242, 2 | 77 << 2, 5], dtype=np.uint32)
        assert value == (float(reference.philox4x32_10(counter, key)[0]) + 0.5) / 2**32


@given(NOISES, st.sampled_from(Purpose), st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_native_noise_has_the_bits_of_the_reference(noise: Noise, purpose: Purpose, position: int, n: int) -> None:
    tokens = np.arange(7, 7 + n, dtype=np.int32)
    for backend in NATIVE:
        for name in ("uniform", "gumbel"):
            wanted = getattr(reference, name)(noise, purpose, position, tokens)
            assert getattr(backend.kernels, name)(noise, purpose, position, tokens).tobytes() == wanted.tobytes()


def test_gumbel_is_minus_log_minus_log_and_bounded() -> None:
    noise, tokens = Noise(3), np.arange(20000, dtype=np.int32)
    uniform = NumberKernels().uniform(noise, Purpose.SAMPLE, 0, tokens)
    gumbel = KERNELS.gumbel(noise, Purpose.SAMPLE, 0, tokens)
    np.testing.assert_allclose(gumbel, -np.log(-np.log(uniform)), rtol=1e-13, atol=1e-15)
    assert abs(gumbel.mean() - 0.5772) < 0.03
    assert abs(gumbel.var() - math.pi**2 / 6) < 0.06
    assert -math.log(-math.log((2**32 - 0.5) / 2**32)) < 22.875  # LS_GUMBEL_MAX


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_exp_is_within_two_units_of_the_true_value(backend: Backend) -> None:
    got = backend.kernels.exp(ARGUMENTS)
    for x, y in zip(ARGUMENTS, got, strict=True):
        wanted = math.exp(x) if x >= -690.0 else 0.0
        assert abs(y - wanted) <= 2 * math.ulp(wanted) if wanted else y == 0.0


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_log_is_within_a_unit_of_the_true_value(backend: Backend) -> None:
    x = np.concatenate(
        [np.exp(ARGUMENTS[ARGUMENTS > -690]), 1 + np.logspace(-16, 0, 300), 1 - np.logspace(-16, -0.1, 300)]
    )
    for argument, y in zip(x, backend.kernels.log(x), strict=True):
        assert abs(y - math.log(argument)) <= math.ulp(math.log(argument))


@given(st.lists(st.floats(-1e6, 700.0), max_size=70))
def test_native_exp_has_the_bits_of_the_reference(values: list[float]) -> None:
    x: Float64Array = np.array(values, dtype=np.float64)
    for backend in NATIVE:
        assert backend.kernels.exp(x).tobytes() == reference.exp(x).tobytes()


@given(st.lists(st.floats(2.3e-308, 1e308), max_size=70))
def test_native_log_has_the_bits_of_the_reference(values: list[float]) -> None:
    x: Float64Array = np.array(values, dtype=np.float64)
    for backend in NATIVE:
        assert backend.kernels.log(x).tobytes() == reference.log(x).tobytes()
