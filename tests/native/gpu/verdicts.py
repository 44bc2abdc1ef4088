"""ls_verify and ls_verify_rows on one pass: whole rows, and lists with whole rows where C asks for them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from localspec.native.library import NEED_ROW, DraftStruct, PackedSampling, find_library, open_library
from localspec.types import Rule, SamplingParams

from ..backends import noise_struct
from ..test_kernel_agreement import Pass

REQUEST_WORDS, MOST_PATCHED = 10, 192


class Device(Protocol):
    """What runs the kernel."""

    def lists(self, *arguments: Any) -> Any:
        """Of each row: entries found, their tokens and their logits."""


class RowStruct(ctypes.Structure):
    """ls_row."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("n", ctypes.c_int32),
        ("tokens", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class Answer:
    """Everything that a verdict says."""

    status: int
    fault: tuple[int, int]
    accepted: tuple[int, ...]
    next_token: int
    """-1 after a failure."""


@dataclass(frozen=True)
class Listed:
    """A verdict by lists."""

    answer: Answer
    requested: bool
    """C asked for lists, and not for whole rows from the start."""
    whole: int
    """Rows that C asked for after all."""


class Verifier:
    """A workspace of the C library."""

    def __init__(self) -> None:
        path = find_library()
        assert path is not None
        self._library = open_library(path)
        handle = ctypes.c_void_p()
        assert self._library.ls_workspace_new(0, ctypes.addressof(handle)) == 0
        self._workspace = int(handle.value or 0)

    def close(self) -> None:
        self._library.ls_workspace_free(self._workspace)

    def whole(self, p: Pass, sampling: SamplingParams, rule: Rule) -> Answer:
        pointers = np.array([row.ctypes.data for row in p.matrix], dtype=np.uintp)
        return self._verify("ls_verify", pointers.ctypes.data, p, sampling, rule)

    def listed(self, device: Device, p: Pass, sampling: SamplingParams, rule: Rule) -> Listed:
        request = np.zeros(REQUEST_WORDS, dtype=np.uint32)
        patched = np.zeros(MOST_PATCHED, dtype=np.int32)
        positions = np.zeros(len(p.matrix), dtype=np.uint32)
        rows = (RowStruct * len(p.matrix))()
        call = self._arguments(p, sampling)
        addresses = [a.ctypes.data for a in (request, patched, positions)]
        status = self._library.ls_list_request(*call.before(self._workspace), rule, *addresses)
        if status == NEED_ROW:
            for row, logits in zip(rows, p.matrix, strict=True):
                row.logits = logits.ctypes.data
        else:
            assert status == 0
            found, tokens, values = device.lists(p.matrix, request, patched, positions)
            for i, row in enumerate(rows):
                row.n, row.tokens, row.values = found[i], tokens[i].ctypes.data, values[i].ctypes.data
        for whole in range(len(rows) + 1):
            answer = self._verify("ls_verify_rows", ctypes.addressof(rows), p, sampling, rule)
            if answer.status != NEED_ROW:
                return Listed(answer, status == 0, whole)
            row = answer.fault[0]
            assert rows[row].logits is None, "a row is asked for that is there"
            rows[row].logits = p.matrix[row].ctypes.data
        raise AssertionError("more rows are asked for than there are")

    def _arguments(self, p: Pass, sampling: SamplingParams, rows: int | None = None) -> _Call:
        return _Call(p, PackedSampling(sampling), rows)

    def _verify(self, function: str, rows: int, p: Pass, sampling: SamplingParams, rule: Rule) -> Answer:
        accepted = np.zeros(len(p.tokens) + 1, dtype=np.int32)
        results = np.zeros(4, dtype=np.int32)
        at = results.ctypes.data
        call = self._arguments(p, sampling, rows)
        before = p.matrix.tobytes()
        status = getattr(self._library, function)(*call.before(self._workspace), rule, accepted.ctypes.data, at, at + 4)
        assert p.matrix.tobytes() == before
        self._library.ls_fault(self._workspace, at + 8, at + 12)
        count, token, row, fault = results.tolist()
        return Answer(status, (row, fault), tuple(accepted[:count].tolist()), -1 if status else token)


class _Call:
    """The arguments that all three functions share, and what they point to."""

    def __init__(self, p: Pass, packed: PackedSampling, rows: int | None) -> None:
        self._keep: list[Any] = [p, packed]
        self.packed, self.rows, self.p = packed, rows, p
        self.noise = noise_struct(p.noise)
        self.draft = DraftStruct(n=len(p.tokens), tokens=_address(p.tokens), parents=_address(p.parents))
        if p.probs is not None and p.probs:
            offsets = np.cumsum([0, *(len(q.tokens) for q in p.probs)]).astype(np.int64)
            tokens = np.concatenate([q.tokens for q in p.probs]).astype(np.int32)
            probs = np.concatenate([q.probs for q in p.probs]).astype(np.float64)
            self._keep += [offsets, tokens, probs]
            self.draft.offsets, self.draft.q_tokens, self.draft.q_probs = map(_address, (offsets, tokens, probs))

    def before(self, workspace: int) -> list[Any]:
        p = self.p
        rows = [] if self.rows is None else [self.rows]
        return [
            workspace, *rows, p.matrix.shape[1], ctypes.addressof(self.draft), self.packed.address, _address(p.window),
            len(p.window), ctypes.addressof(self.noise), p.position,
        ]  # fmt: skip


def _address(array: Any) -> int:
    return int(array.ctypes.data)
