"""Calls of llama.cpp under a guard: what they return, and what they throw."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest

from localspec.errors import DeviceError
from localspec.llama.library import lib
from localspec.llama.library.handle import guarded
from localspec.llama.model import Model


def test_a_pass_gets_its_batch_and_its_code_comes_back() -> None:
    seen: list[tuple[Any, ...]] = []

    def decode(context: int, batch: Any) -> int:
        seen.append((context, batch.n_tokens, list(batch.token[:3]), batch.logits[1]))
        return -3

    batch = lib.api().llama_batch_init(3, 0, 1)
    batch.n_tokens = 3
    for index, token in enumerate([7, 8, 9]):
        batch.token[index] = token
    batch.logits[1] = 5
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, lib.api().llama_batch)(decode)
    assert guarded("ls_guard_pass", function, 77, ctypes.addressof(batch)) == -3
    assert seen == [(77, 3, [7, 8, 9], 5)]
    lib.api().llama_batch_free(batch)


def test_what_is_read_of_a_device_gets_all_its_arguments() -> None:
    seen: list[tuple[int, ...]] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    assert guarded("ls_guard_get", kind(lambda *given: seen.append(given)), 1, 2, 3, 1 << 40) == 0
    assert seen == [(1, 2, 3, 1 << 40)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="throws by a function of libstdc++")
def test_an_exception_is_an_error_and_what_is_on_the_device_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "device_lost", False)
    throw = ctypes.CDLL("libstdc++.so.6")["_ZSt17__throw_bad_allocv"]
    with pytest.raises(DeviceError, match=r"llama\.cpp could not evaluate a pass: std::bad_alloc\."):
        guarded("ls_guard_wait", throw, None)
    assert Model.device_lost
