"""Rows that stay on a device: the verdict is that of whole rows, and only rows that are needed are copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from localspec.errors import KernelError
from localspec.native import kernels
from localspec.native.gpu import DeviceRows, Gpu
from localspec.types import NO_TOKENS, Float32Array, LogitRows, Noise, Rule, SamplingParams

from ..test_kernel_agreement import Pass, random_pass
from .fake_driver import FakeDriver
from .test_verdicts import damage, large_pass, random_sampling

GREEDY = SamplingParams(temperature=0.0, top_k=0)
NUCLEUS = SamplingParams(temperature=1.0, top_k=0, top_p=0.9)


@pytest.fixture
def gpu(driver: FakeDriver) -> Iterator[Gpu]:
    one = driver.open()
    yield one
    one.close()


class Device:
    """The logits of a pass in the fake device's memory, `order[i]` being the place of row i."""

    def __init__(self, driver: FakeDriver, matrix: Float32Array, order: list[int] | None = None) -> None:
        placed = np.empty_like(matrix)
        places = np.array(order if order is not None else range(len(matrix)))
        placed[places] = matrix
        self._placed, self.first = placed, driver.upload(placed)
        self.addresses = self.first + 4 * matrix.shape[1] * places
        self.fetched: list[int] = []
        """Places of the rows that were copied to the host."""

    def fetch(self, address: int, out: Float32Array) -> None:
        place = (address - self.first) // out.nbytes
        self.fetched.append(place)
        out[:] = self._placed[place]

    def rows(self, gpu: Gpu | None) -> DeviceRows:
        return DeviceRows(self.addresses.tolist(), self._placed.shape[1], self.fetch, gpu)


def verdict(
    rows: LogitRows, p: Pass, sampling: SamplingParams, rule: Rule = Rule.COUPLED
) -> tuple[list[int], int] | str:
    """What the target says, or the error."""
    try:
        accepted, token = kernels.verify(
            rows, p.tokens, p.parents, p.probs, sampling, p.window, p.noise, p.position, rule
        )
    except KernelError as error:
        return str(error)
    return accepted.tolist(), token


def test_verdicts_are_those_of_whole_rows(driver: FakeDriver, gpu: Gpu) -> None:
    ways: Counter[str] = Counter()
    for seed in range(400):
        rng = np.random.default_rng([seed, 50])
        p = random_pass(seed, chain=seed % 2 == 0)
        damage(p, rng)
        rule = Rule.COUPLED if seed % 8 else Rule.BLOCK if seed % 16 == 0 else Rule.REJECTION
        sampling = random_sampling(rng, p.matrix.shape[1])
        device = Device(driver, p.matrix, [0, *(1 + rng.permutation(len(p.matrix) - 1)).tolist()])
        before = driver.calls("cuLaunchKernel")
        wanted = verdict(LogitRows.from_matrix(p.matrix), p, sampling, rule)
        assert verdict(device.rows(gpu), p, sampling, rule) == wanted, (seed, sampling, rule)
        launched = driver.calls("cuLaunchKernel") > before
        ways["lists" if launched and not device.fetched else "some rows" if launched else "whole rows"] += 1
        ways["failed"] += isinstance(wanted, str)
    assert gpu.serves
    assert min(ways["lists"], ways["some rows"], ways["whole rows"], ways["failed"]) > 10, ways
    assert ways["lists"] > 200, ways


def test_a_large_pass_copies_no_row(driver: FakeDriver, gpu: Gpu) -> None:
    p = large_pass(1, 152_000)
    device = Device(driver, p.matrix)
    wanted = verdict(LogitRows.from_matrix(p.matrix), p, GREEDY)
    assert verdict(device.rows(gpu), p, GREEDY) == wanted
    assert device.fetched == []


@pytest.mark.parametrize("with_gpu", [True, False])
def test_where_lists_cannot_decide_rows_are_copied_once(driver: FakeDriver, gpu: Gpu, with_gpu: bool) -> None:
    p = large_pass(2, 9000)
    device = Device(driver, p.matrix)
    rows = device.rows(gpu if with_gpu else None)
    wanted = verdict(LogitRows.from_matrix(p.matrix), p, NUCLEUS)
    assert verdict(rows, p, NUCLEUS) == verdict(rows, p, NUCLEUS) == wanted
    assert device.fetched == [0, 1, 2]


def test_a_row_that_is_full_of_ties_is_copied_and_no_other(driver: FakeDriver, gpu: Gpu) -> None:
    p = replace(large_pass(3, 9000), tokens=NO_TOKENS, parents=NO_TOKENS)
    p.matrix[0] = 1.0
    device = Device(driver, p.matrix)
    rows = device.rows(gpu)
    assert verdict(rows, p, GREEDY) == ([], 0)
    assert device.fetched == [0]


def test_rows_with_others_between_them_are_copied(driver: FakeDriver, gpu: Gpu) -> None:
    p = replace(large_pass(4, 900), tokens=NO_TOKENS, parents=NO_TOKENS)
    spread = Device(driver, np.repeat(p.matrix, 2, axis=0))
    q = large_pass(4, 900)
    rows = DeviceRows(spread.addresses[::2].tolist(), 900, spread.fetch, gpu)
    assert verdict(rows, q, GREEDY) == verdict(LogitRows.from_matrix(q.matrix), q, GREEDY)
    assert spread.fetched == [0, 2, 4]


def test_a_lost_device_is_said_and_rows_are_copied(driver: FakeDriver, gpu: Gpu) -> None:
    p = large_pass(5, 900)
    wanted = verdict(LogitRows.from_matrix(p.matrix), p, GREEDY)
    device = Device(driver, p.matrix)
    driver.fail("cuLaunchKernel", 0, 719)
    assert verdict(device.rows(gpu), p, GREEDY) == wanted
    assert device.fetched == [0, 1, 2]
    assert not gpu.serves
    assert gpu.failure == (
        "CUDA device 0: finding the best logits failed with error 719 (a failure made by the test). "
        "Rows are verified on the CPU."
    )
    launched = driver.calls("cuLaunchKernel")
    assert verdict(device.rows(gpu), p, GREEDY) == wanted
    assert driver.calls("cuLaunchKernel") == launched


def test_functions_of_one_row_copy_that_row(driver: FakeDriver, gpu: Gpu) -> None:
    p = large_pass(6, 900)
    host, device = LogitRows.from_matrix(p.matrix), Device(driver, p.matrix)
    rows = device.rows(gpu)
    assert kernels.log_probs(rows, 1, [5]) == kernels.log_probs(host, 1, [5])
    assert kernels.top_log_probs(rows, 1, 1)[0] == p.matrix[1].argmax()
    drawn = kernels.sample(rows, 2, GREEDY, NO_TOKENS, Noise(1, 1), 5)[0]
    assert drawn == kernels.sample(host, 2, GREEDY, NO_TOKENS, Noise(1, 1), 5)[0]
    assert device.fetched == [1, 2]
    assert np.array_equal(rows[-1], p.matrix[-1])
