"""Logits that stay on a device: what is drafted is verified by lists of their best entries, and the text is the same.

The device is the host: passes are computed on the CPU, and the kernel runs against tests/native/gpu's driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.interfaces import Draft
from localspec.engine.loop import verify
from localspec.llama.cache.context import ConstantWidth
from localspec.llama.library import handle, lib
from localspec.llama.library.handle import open_gpu, ordinal_of
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.native.gpu import METAL, DeviceRows, Gpu
from localspec.types import Feed, LogitRows, Noise, Rule, SamplingParams, Tokens
from tests.llama.conftest import chain
from tests.native.gpu.fake_driver import FakeDriver, load_driver

SETTINGS = ContextSettings(n_ctx=640, threads=1, grid=64, reuse="chunks")
WIDTH = 4
SAMPLINGS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, top_k=40),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.05, repeat_penalty=1.2, penalty_last_n=4),
    SamplingParams(temperature=0.8, top_k=0, top_p=0.9),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return load_driver(tmp_path_factory)


@pytest.fixture
def on_device(model: Model, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[ConstantWidth]:
    """A context whose logits are called a device's; nothing is held when it is closed."""
    driver.reset()
    monkeypatch.setattr(handle, "open_gpu", {"CUDA0": driver.open()}.get)
    context = ConstantWidth(model, SETTINGS, WIDTH)
    tap = context.handle.logits_tap
    assert tap is not None
    monkeypatch.setattr(tap, "_device_of", lambda buffer_type: 1)
    monkeypatch.setattr(tap, "_name_of", lambda device: b"CUDA0")
    context.decode([Feed(0, np.array([5, 6], dtype=np.int32), 2)])
    first = tap.rows(WIDTH, 0)
    with driver.lent(first, 4 * WIDTH * context.n_vocab):
        yield context
        context.close()
    assert driver.fault() == ""
    assert driver.held() == 0


def answer(
    context: ConstantWidth, prompt: Tokens, sampling: SamplingParams, guesses: list[int]
) -> tuple[list[int], int, int]:
    """As many tokens as guesses, how many of those were right, and how many rows of logits the host has read."""
    history, right, copied = prompt, 0, 0
    while len(history) < len(prompt) + len(guesses):
        nodes = min(WIDTH - 1, context.longest_draft(len(history)))
        said = guesses[len(history) - len(prompt) :][:nodes]
        draft = Draft(np.array(said, dtype=np.int32), chain(len(said)))
        (rows,) = context.decode([Feed(0, history, len(prompt), draft.tokens, draft.parents)])
        verdict = verify(rows, draft, sampling, history, Noise(11), Rule.COUPLED)
        right += len(verdict.accepted)
        copied += len(rows._here) if isinstance(rows, DeviceRows) else len(rows)
        new = [*(said[node] for node in verdict.accepted), verdict.next_token]
        history = np.concatenate([history, np.array(new, dtype=np.int32)])
    return history[len(prompt) :][: len(guesses)].tolist(), right, copied


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "top-k", "min-p and penalties", "top-p"])
def test_the_text_is_that_of_whole_rows(
    on_device: ConstantWidth, model: Model, text: Tokens, sampling: SamplingParams
) -> None:
    with contextlib.closing(ConstantWidth(model, SETTINGS, WIDTH)) as plain:
        wanted, _, _ = answer(plain, text[:60], sampling, [64] * 40)
    guesses = [token if place % 3 else 64 for place, token in enumerate(wanted)]
    found, right, copied = answer(on_device, text[:60], sampling, guesses)
    assert found == wanted
    assert right > 12
    assert (copied > 0) == (sampling.top_p < 1.0 and not sampling.top_k), "rows are copied where lists cannot decide"
    buffer = lib.pointer_value(lib.api().llama_get_logits(on_device.handle.pointer))
    assert not any(ctypes.string_at(buffer, 4 * on_device.n_vocab)), "llama.cpp's own buffer is as it was made"


def test_a_row_that_is_read_has_the_bits_of_the_pass(on_device: ConstantWidth, model: Model, text: Tokens) -> None:
    feed = Feed(0, text[:70], 70, text[600:602], chain(2))
    with contextlib.closing(ConstantWidth(model, SETTINGS, WIDTH)) as plain:
        (expected,) = plain.decode([feed])
        wanted = [expected[index].tobytes() for index in range(3)]
    (rows,) = on_device.decode([feed])
    assert isinstance(rows, DeviceRows)
    assert len(rows._here) == 0
    assert [rows[index].tobytes() for index in range(3)] == wanted
    assert len(rows._here) == 3


def test_a_gpu_that_fails_is_said_once_and_rows_are_read_whole(
    on_device: ConstantWidth, driver: FakeDriver, text: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    driver.fail("cuLaunchKernel", 0, 719)
    with caplog.at_level(logging.WARNING, "localspec"):
        found, _, copied = answer(on_device, text[:60], SAMPLINGS[0], [64] * 12)
    assert len(found) == 12
    assert copied > 12
    assert [record.message for record in caplog.records] == [
        "CUDA device 0: finding the best logits failed with error 719 (a failure made by the test). "
        "Rows are verified on the CPU."
    ]
    assert type(on_device.decode([Feed(0, text[:60], 60)])[0]) is LogitRows


@pytest.mark.parametrize(
    ("name", "switch", "ordinal"),
    [
        ("CUDA0", "", None),
        ("CUDA0", "0", None),
        ("CUDA0", "LOCALSPEC_METAL_KERNEL", None),
        ("CUDA0", "LOCALSPEC_CUDA_KERNEL", 0),
        ("CUDA12", "LOCALSPEC_CUDA_KERNEL", 12),
        ("CUDA0_Split", "LOCALSPEC_CUDA_KERNEL", None),
        ("CPU", "LOCALSPEC_CUDA_KERNEL", None),
        ("ROCm0", "LOCALSPEC_CUDA_KERNEL", None),
        ("Vulkan0", "LOCALSPEC_METAL_KERNEL", None),
        ("MTL0", "", None),
        ("MTL0", "LOCALSPEC_CUDA_KERNEL", None),
        ("MTL0", "LOCALSPEC_METAL_KERNEL", METAL),
        ("Metal", "LOCALSPEC_METAL_KERNEL", METAL),
        ("Metal", "0", None),
    ],
)
def test_a_kernel_is_used_only_where_it_is_asked_for(
    name: str, switch: str, ordinal: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LOCALSPEC_CUDA_KERNEL", "LOCALSPEC_METAL_KERNEL"):
        monkeypatch.setenv(variable, "1" if switch == variable else "0" if switch == "0" else "")
    assert ordinal_of(name) == ordinal


def test_a_device_that_cannot_serve_is_said(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver.reset()
    driver.put("version", 10000)
    monkeypatch.setenv("LOCALSPEC_CUDA_KERNEL", "1")
    monkeypatch.setattr(handle, "Gpu", lambda ordinal: Gpu(ordinal, driver.path))
    with caplog.at_level(logging.WARNING, "localspec"):
        assert open_gpu("CUDA0") is None
        assert open_gpu("CPU") is None
    assert [record.message for record in caplog.records] == [
        "NVIDIA's driver is too old, it is of CUDA 10.0: install one of CUDA 11.0 or newer. "
        "Logits are copied from CUDA0 and verified on the CPU."
    ]


def test_a_machine_without_a_driver_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOCALSPEC_CUDA_KERNEL", "1")
    monkeypatch.setattr(handle, "Gpu", lambda ordinal: Gpu(ordinal, tmp_path / "libcuda.so.1"))
    assert open_gpu("CUDA0") is None
    assert caplog.records == []


def test_a_kernel_that_is_not_asked_for_opens_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    monkeypatch.delenv("LOCALSPEC_CUDA_KERNEL", raising=False)
    monkeypatch.setattr(handle, "Gpu", opened.append)
    assert open_gpu("CUDA0") is None
    assert not opened
