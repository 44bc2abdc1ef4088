"""Products with int8 weights: every instruction set gives the reference's bits, close to the real thing."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.errors import KernelError
from localspec.native import kernels
from localspec.native.library import Int8Matrix
from localspec.types import Float32Array
from tests.native.backends import NATIVE, REFERENCE, Backend

SHAPES = [(1, 1), (7, 3), (40, 256), (33, 1024), (5, 1025), (3, 5000), (700, 96)]


def random(*shape: int, seed: int = 1) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("backend", NATIVE, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inputs", [1, 3, 65])
def test_the_bits_are_the_references(backend: Backend, shape: tuple[int, int], inputs: int) -> None:
    matrix, x = Int8Matrix.of(random(*shape)), random(inputs, shape[1], seed=2) * 10
    found = backend.kernels.matvec(matrix, x)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, REFERENCE.kernels.matvec(matrix, x))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_a_large_product(threads: int) -> None:
    matrix, x = Int8Matrix.of(random(12_001, 1024)), random(3, 1024)
    np.testing.assert_array_equal(kernels.matvec(matrix, x, threads), kernels.matvec(matrix, x))


@pytest.mark.parametrize("backend", NATIVE, ids=str)
def test_the_largest_sums_do_not_overflow(backend: Backend) -> None:
    rows = np.array([[-128], [127], [-127]], dtype=np.int8)
    matrix = Int8Matrix(np.repeat(rows, 9000, axis=1), np.ones(3, dtype=np.float32))
    x = np.full((2, 9000), 3e38, dtype=np.float32) * np.array([[1], [-1]], dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = REFERENCE.kernels.matvec(matrix, x)
    np.testing.assert_array_equal(backend.kernels.matvec(matrix, x), expected)
    small = backend.kernels.matvec(matrix, x / np.float32(1e30))
    np.testing.assert_allclose(small[0], 9000 * 3e8 * rows[:, 0].astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize("backend", [REFERENCE, *NATIVE], ids=str)
def test_inputs_that_are_nothing_tiny_or_no_numbers(backend: Backend) -> None:
    matrix, x = Int8Matrix.of(random(9, 20)), random(6, 20)
    x[1], x[2, 3], x[3, 4], x[4] = 0.0, np.nan, -np.inf, np.float32(1e-45)
    found = backend.kernels.matvec(matrix, x)
    assert np.isfinite(found[[0, 1, 4, 5]]).all()
    assert not found[1].any()
    assert np.isnan(found[[2, 3]]).all()


def test_the_product_is_close_to_that_of_the_weights_before_they_were_rounded() -> None:
    weights, x = random(300, 512), random(4, 512, seed=3)
    weights[5] = 0.0
    matrix = Int8Matrix.of(weights)
    assert matrix.shape == (300, 512)
    found, exact = kernels.matvec(matrix, x), x @ weights.T
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
    assert not found[:, 5].any()
    np.testing.assert_allclose(matrix.rows(np.array([2, 5])), weights[[2, 5]], atol=float(np.abs(weights).max() / 250))


def test_inputs_of_another_size_are_refused() -> None:
    matrix = Int8Matrix.of(random(4, 8))
    for x in (random(2, 7), random(8), random(2, 8).astype(np.float64)):
        with pytest.raises(KernelError, match="the matrix has 8 columns"):
            kernels.matvec(matrix, x)  # type: ignore[arg-type]
