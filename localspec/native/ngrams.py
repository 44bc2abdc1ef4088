"""Prompt lookup in C."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from localspec.errors import KernelError
from localspec.native.library import Library
from localspec.types import Tokens


class NgramIndex:
    """Handle of an `ls_ngram`."""

    def __init__(self, lib: Library, min_ngram: int, max_ngram: int) -> None:
        self._lib = lib
        self._sizes = (min_ngram, max_ngram)
        self._results = np.zeros(4, dtype=np.int32)
        self._address = self._results.ctypes.data
        self._open()

    def _open(self) -> None:
        handle = ctypes.c_void_p()
        status = self._lib.ls_ngram_new(*self._sizes, ctypes.addressof(handle))
        if status:
            raise KernelError(f"no n-gram index for {self._sizes} tokens (status {status}).")
        self._handle = handle.value
        self._free = weakref.finalize(self, self._lib.ls_ngram_free, self._handle)
        self._length = 0

    def sync(self, tokens: Tokens, unchanged: int = 0) -> None:
        unchanged = min(unchanged, self._length)
        tail = np.ascontiguousarray(tokens[unchanged:], dtype=np.int32)
        lib = self._lib.suited(len(tail))
        status = lib.ls_ngram_sync(self._handle, unchanged, tail.ctypes.data, len(tail))
        if status:
            raise KernelError(f"the n-gram index could not take {len(tokens)} tokens (status {status}).")
        self._length = len(tokens)

    def lookup(self, max_tokens: int) -> tuple[Tokens, int]:
        out = np.empty(max_tokens, dtype=np.int32)
        brief = self._lib.brief
        status = brief.ls_ngram_lookup(self._handle, max_tokens, out.ctypes.data, self._address, self._address + 4)
        if status:
            raise KernelError(f"the n-gram index cannot look up {max_tokens} tokens (status {status}).")
        found, match = self._results[:2].tolist()
        return out[:found], match

    def check_integrity(self) -> str:
        end = np.zeros(1, dtype=np.int64)
        status = self._lib.ls_ngram_check(self._handle, self._address, end.ctypes.data)
        if status:
            return f"the n-gram index could not be checked (status {status})."
        n = int(self._results[0])
        return f"the n-gram index is wrong about the {n} tokens before token {end[0]}." if n else ""

    def memory_bytes(self) -> int:
        return int(self._lib.ls_ngram_bytes(self._handle))

    def close(self) -> None:
        """Frees the index; what is asked afterwards sees an empty one."""
        self._free()
        self._open()
