"""The host side for CUDA, whole, against a driver on the host's memory that checks how it is called."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.errors import KernelError
from localspec.native.gpu import LIST_ROOM, Gpu, ListRequest, UInt32Array
from localspec.native.library import find_library
from localspec.types import Float32Array

from .fake_driver import FakeDriver
from .host import Host

OPENING = [
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuStreamCreate",
    "cuMemAlloc_v2", "cuMemAllocHost_v2", "cuMemcpyHtoDAsync_v2", "cuPointerGetAttribute", "cuLaunchKernel",
    "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize", "cuMemFree_v2", "cuCtxPopCurrent_v2",
]  # fmt: skip


def greedy(n_vocab: int, count: int = 1, patched: tuple[int, ...] = ()) -> ListRequest:
    """Asks for the `count` largest logits of a row."""
    request = ListRequest()
    request.words[:5] = 0, count, len(patched), n_vocab, 0x3F800000
    request.patched[: len(patched)] = patched
    return request


def places(rows: int) -> UInt32Array:
    return np.arange(rows, dtype=np.uint32)


def random_rows(rows: int, n_vocab: int) -> Float32Array:
    return np.random.default_rng(rows).normal(0, 3, size=(rows, n_vocab)).astype(np.float32)


def why(driver: FakeDriver, ordinal: int = 0) -> str:
    """What opening a device says; it must fail."""
    with pytest.raises(KernelError) as failure:
        driver.open(ordinal)
    return failure.value.message


@pytest.mark.parametrize(("rows", "n_vocab"), [(1, 5), (3, 1000), (8, 9000), (2, 152_000)])
def test_its_lists_are_those_of_the_host(driver: FakeDriver, host: Host, rows: int, n_vocab: int) -> None:
    matrix, request = random_rows(rows, n_vocab), greedy(n_vocab, 5, (3, 1))
    with closing(driver.open()) as gpu:
        lists = gpu.lists(driver.upload(matrix), rows, request, places(rows))
    found, tokens, values = host.lists(matrix, request.words, request.patched, places(rows))
    assert lists.found.tolist() == found
    for row, n in enumerate(found):
        assert n <= LIST_ROOM
        assert lists.tokens[row, :2].tolist() == [3, 1]
        wanted = sorted(zip(tokens[row, :n].tolist(), values[row, :n].tolist(), strict=True))
        assert sorted(zip(lists.tokens[row, :n].tolist(), lists.values[row, :n].tolist(), strict=True)) == wanted


def test_a_list_that_is_cut_off_says_how_long_it_would_be(driver: FakeDriver) -> None:
    with closing(driver.open()) as gpu:
        lists = gpu.lists(driver.upload(np.zeros((1, 2000), dtype=np.float32)), 1, greedy(2000), places(1))
    assert lists.found.tolist() == [2000]


def test_memory_is_taken_once_and_a_call_waits_once(driver: FakeDriver) -> None:
    matrix = random_rows(8, 9000)
    counted = (
        "cuMemAlloc_v2",
        "cuMemAllocHost_v2",
        "cuStreamSynchronize",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
    )
    with closing(driver.open()) as gpu:
        logits = driver.upload(matrix)
        gpu.lists(logits, 8, greedy(9000), places(8))
        before = [driver.calls(name) for name in counted]
        gpu.lists(logits, 8, greedy(9000), places(8))
        gpu.lists(logits, 3, greedy(9000), places(3))
    assert [driver.calls(name) - n for name, n in zip(counted[:2], before[:2], strict=True)] == [0, 0]
    assert [driver.calls(name) - n for name, n in zip(counted[3:], before[3:], strict=True)] == [2, 2]


def test_a_machine_without_a_driver_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(KernelError) as failure:
        Gpu(0, tmp_path / "libcuda.so.1")
    assert str(failure.value) == ""


def test_something_else_of_that_name_is_no_driver(host: Host, tmp_path: Path) -> None:
    path = find_library()
    with pytest.raises(KernelError, match=r"NVIDIA's driver is too old, it has no cu\w+: install one of CUDA 11.0"):
        Gpu(0, path)


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("version", 10020, "NVIDIA's driver is too old, it is of CUDA 10.2: install one of CUDA 11.0 or newer."),
        ("count", 0, "There is no CUDA device 0; the driver has 0."),
        ("capability", 61, "CUDA device 0 has compute capability 6.1; localspec's kernel needs 7.5."),
        ("wrong_kernel", 1, "CUDA device 0: the kernel's self-test found case 1 wrong."),
        ("memory_type", 1, "CUDA device 0: the logits are not in its memory."),
    ],
)
def test_a_device_that_cannot_serve_is_said_in_a_sentence(driver: FakeDriver, what: str, value: int, said: str) -> None:
    driver.put(what, value)
    assert why(driver) == said


def test_there_is_no_such_device(driver: FakeDriver) -> None:
    assert why(driver, 3) == "There is no CUDA device 3; the driver has 1."
    assert why(driver, -1) == "There is no CUDA device -1; the driver has 1."


@pytest.mark.parametrize("error", [2, 700, 999])
@pytest.mark.parametrize("function", OPENING)
def test_a_failure_while_opening_is_a_sentence_and_leaves_nothing(
    driver: FakeDriver, function: str, error: int
) -> None:
    driver.fail(function, 0, error)
    text = {2: "out of memory", 700: "a failure made by the test", 999: "unknown"}[error]
    said = why(driver)
    assert said.startswith("CUDA device 0: ")
    assert said.endswith(f" failed with error {error} ({text}).")


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"])
@pytest.mark.parametrize("calls", [1, 2, 500])
def test_a_failure_in_the_self_test_is_one_of_opening(driver: FakeDriver, function: str, calls: int) -> None:
    driver.fail(function, calls, 719)
    assert why(driver).endswith(" failed with error 719 (a failure made by the test).")


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                                      "cuStreamSynchronize", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"])  # fmt: skip
def test_a_device_that_is_lost_says_so_in_every_call(driver: FakeDriver, function: str) -> None:
    matrix = random_rows(2, 900)
    with closing(driver.open()) as gpu:
        logits = driver.upload(matrix)
        driver.fail(function)
        with pytest.raises(KernelError, match="Rows are verified on the CPU") as first:
            gpu.lists(logits, 2, greedy(900), places(2))
        with pytest.raises(KernelError) as second:
            gpu.lists(logits, 1, greedy(900), places(1))
        assert second.value.message == first.value.message
        assert first.value.message.startswith("CUDA device 0: ")


@pytest.mark.parametrize("function", ["cuMemAlloc_v2", "cuMemAllocHost_v2"])
def test_after_running_out_of_memory_smaller_passes_are_served(driver: FakeDriver, function: str) -> None:
    matrix = random_rows(64, 9000)
    with closing(driver.open()) as gpu:
        logits = driver.upload(matrix)
        driver.fail(function, 0, 2)
        with pytest.raises(KernelError, match="failed with error 2 \\(out of memory\\)"):
            gpu.lists(logits, 64, greedy(9000), places(64))
        assert gpu.lists(logits, 1, greedy(9000), places(1)).tokens[0, 0] == matrix[0].argmax()


def test_only_memory_of_this_device_is_read(driver: FakeDriver) -> None:
    matrix = random_rows(2, 900)
    with closing(driver.open()) as gpu:
        with pytest.raises(KernelError, match="not in its memory"):
            gpu.lists(matrix.ctypes.data, 2, greedy(900), places(2))
        logits = driver.upload(matrix)
        with pytest.raises(KernelError, match="longer than the memory"):
            gpu.lists(logits, 3, greedy(900), places(3))
        driver.put("ordinal", 1)
        with pytest.raises(KernelError, match="not in its memory"):
            gpu.lists(logits, 2, greedy(900), places(2))
        driver.put("ordinal", 0)
        assert gpu.lists(logits, 2, greedy(900), places(2)).tokens[:, 0].tolist() == matrix.argmax(axis=1).tolist()


@pytest.mark.parametrize(
    "request_",
    [greedy(900, 0), greedy(0), greedy(900, 1, (900,)), greedy(900, 1, (-1,)), greedy(2**31 - 1)],
    ids=["count", "vocabulary", "patched", "negative", "huge"],
)
def test_what_is_no_request_is_refused(driver: FakeDriver, request_: ListRequest) -> None:
    with closing(driver.open()) as gpu, pytest.raises(KernelError):
        gpu.lists(driver.upload(random_rows(2, 900)), 2, request_, places(2))


def test_a_closed_gpu_is_no_crash(driver: FakeDriver) -> None:
    gpu = driver.open()
    gpu.close()
    gpu.close()
    with pytest.raises(KernelError, match="closed"):
        gpu.lists(1, 1, greedy(5), places(1))
