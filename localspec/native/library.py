"""The library built from native/: where it is, its functions and structs, what a thread keeps between calls,
and weights in 8 bits. Importing this module opens nothing."""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import localspec
from localspec.errors import KernelError
from localspec.types import NO_BREAKERS, Float32Array, ModelSampling, Noise, SamplingParams, SparseProbs, Tokens


def file_name(stem: str) -> str:
    return stem + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")


ABI_VERSION = 7
THROWN = -1000  # LS_THROWN
ISAS = {"best": 0, "scalar": 1, "neon": 2, "avx2": 3, "avx512": 4}
FILE_NAME = file_name("localspec_native")

_PTR, _I32, _U32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_int64
_TEXT = ctypes.c_char_p
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ls_abi_version": (_I32, []),
    "ls_cpu_features": (_TEXT, []),
    "ls_isa_name": (_TEXT, [_I32]),
    "ls_workspace_new ls_suffix_new": (_I32, [_I32, _PTR]),
    "ls_workspace_isa ls_suffix_check ls_counts_new": (_I32, [_PTR]),
    "ls_workspace_free ls_gpu_close ls_ngram_free ls_suffix_free ls_counts_free": (None, [_PTR]),
    "ls_fault ls_philox4x32_10": (None, [_PTR, _PTR, _PTR]),
    "ls_uniform": (None, [_PTR, _I32, _U32, _PTR, _I64, _PTR]),
    "ls_gumbel": (None, [_PTR, _PTR, _I32, _U32, _PTR, _I64, _PTR]),
    "ls_log ls_exp": (None, [_PTR, _PTR, _I64, _PTR]),
    "ls_sample": (_I32, [_PTR, _PTR, _I32, _PTR, _PTR, _I32, _PTR, _U32, _I32, _PTR, _PTR, _PTR]),
    "ls_distribution": (_I32, [_PTR, _PTR, _I32, _PTR, _PTR, _I32, _PTR, _U32, _PTR, _PTR, _PTR]),
    "ls_log_probs": (_I32, [_PTR, _PTR, _I32, _PTR, _I32, _PTR]),
    "ls_top_log_probs": (_I32, [_PTR, _PTR, _I32, _I32, _PTR, _PTR, _PTR]),
    "ls_verify ls_verify_rows": (_I32, [_PTR, _PTR, _I32, _PTR, _PTR, _PTR, _I32, _PTR, _U32, _I32, _PTR, _PTR, _PTR]),
    "ls_list_request": (_I32, [_PTR, _I32, _PTR, _PTR, _PTR, _I32, _PTR, _U32, _I32, _PTR, _PTR, _PTR]),
    "ls_gpu_open": (_I32, [_TEXT, _I32, _PTR, _PTR]),
    "ls_gpu_reason": (_TEXT, [_PTR]),
    "ls_guard_pass": (_I32, [_PTR, _PTR, _PTR, _PTR]),
    "ls_guard_wait": (_I32, [_PTR, _PTR, _PTR]),
    "ls_guard_get": (_I32, [_PTR, _PTR, _PTR, ctypes.c_size_t, ctypes.c_size_t, _PTR]),
    "ls_gpu_lists": (_I32, [_PTR, ctypes.c_uint64, _I32, _PTR, _PTR, _PTR, _PTR, _PTR, _PTR]),
    "ls_matvec": (_I32, [_PTR, _PTR, _PTR, _I64, _I64, _PTR, _I64, _PTR]),
    "ls_ngram_new": (_I32, [_I32, _I32, _PTR]),
    "ls_ngram_sync ls_suffix_sync ls_counts_sync": (_I32, [_PTR, _I64, _PTR, _I64]),
    "ls_ngram_lookup": (_I32, [_PTR, _I32, _PTR, _PTR, _PTR]),
    "ls_ngram_check": (_I32, [_PTR, _PTR, _PTR]),
    "ls_ngram_length ls_ngram_bytes ls_suffix_tokens ls_suffix_bytes ls_counts_bytes": (_I64, [_PTR]),
    "ls_suffix_add": (_I32, [_PTR, _PTR, _PTR, _I32, _PTR]),
    "ls_suffix_remove": (_I32, [_PTR, _I32]),
    "ls_suffix_guess": (_I32, [_PTR, _PTR, _I64, _I32, _I32, _I32, _PTR, _PTR, _PTR, _PTR, _PTR]),
    "ls_suffix_follow": (_I32, [_PTR, _PTR, _I32, _I64, _PTR, _I64, _I32, _I32, _I32, _PTR]),
    "ls_counts_add": (_I32, [_PTR, _PTR, _I64, _I32]),
    "ls_counts_guess": (_I32, [_PTR, _PTR, _PTR, _I64, _PTR, _I64, ctypes.c_double, _PTR, _I32, _I32, _I32, _PTR]),
}  # {functions: (their result, their arguments)}
SIGNATURES = {name: signature for names, signature in _FUNCTIONS.items() for name in names.split()}
BRIEF = ("ls_gumbel", "ls_ngram_sync", "ls_ngram_lookup", "ls_suffix_follow", "ls_counts_guess")
"""Functions that take microseconds while a pass is planned: those of `Library.brief` keep Python's lock. Were it let
go, the thread that reads the answer would take it, and the pass would wait for up to a millisecond."""
MOST_BRIEF = 512  # tokens to work on from which on that is not brief: indexing takes 0.1 ms a thousand
REINSTALL = "pip install --force-reinstall --no-deps localspec"
"""The command that builds or fetches the C libraries again."""
_ADVICE = f"Install a C compiler, then localspec again: {REINSTALL}"
NO_MEMORY, BAD_ARGUMENT, NOT_FINITE, NO_SUPPORT, BAD_TREE, BAD_DRAFT, NO_ISA, NEED_ROW, NO_DEVICE, DEVICE_FAILED = (
    range(1, 11)
)


def _each(kind: Any, names: str) -> list[tuple[str, Any]]:
    """Fields of a struct that follow one another, of one type."""
    return [(name, kind) for name in names.split()]


class NoiseStruct(ctypes.Structure):
    _fields_ = (("seed", ctypes.c_uint64), ("stream", _U32), ("round", _U32))


class SamplingStruct(ctypes.Structure):
    _fields_ = (
        *_each(ctypes.c_double, "temperature top_p min_p typical_p top_n_sigma xtc_probability xtc_threshold"),
        *_each(ctypes.c_double, "dynatemp_range dynatemp_exponent dry_multiplier dry_base"),
        *_each(ctypes.c_float, "repeat_penalty presence_penalty frequency_penalty"),
        *_each(_I32, "penalty_last_n top_k dry_allowed_length dry_penalty_last_n n_breaks"),
        *_each(_PTR, "break_heads break_offsets break_tails"),
        ("n_bias", _I32),
        *_each(_PTR, "bias_tokens bias_values"),
    )


class DraftStruct(ctypes.Structure):
    _fields_ = (("n", _I32), *_each(_PTR, "tokens parents offsets q_tokens q_probs"))


MOST_FOLLOWED = 64  # nodes of a guess, LS_MOST_FOLLOWED
_NODES = (*_each(_I32 * MOST_FOLLOWED, "tokens parents"), ("confidence", ctypes.c_float * MOST_FOLLOWED))


class FollowedStruct(ctypes.Structure):
    _fields_ = (("score", ctypes.c_double), ("nodes", _I32), ("match", _I32), ("sequence", _I32), *_NODES)


class GuessStruct(ctypes.Structure):
    _fields_ = (("nodes", _I32), *_NODES)


def find_file(variable: str, name: str) -> Path | None:
    """What the variable names, or the library beside the package (wheels) or in site-packages (editable installs)."""
    wish = os.environ.get(variable)
    if wish:
        return Path(wish)
    folders = [*map(Path, localspec.__path__), Path(sysconfig.get_path("platlib")) / "localspec"]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def find_library() -> Path | None:
    return find_file("LOCALSPEC_LIBRARY", FILE_NAME)


def declare(library: ctypes.CDLL, signatures: Mapping[str, tuple[Any, list[Any]]]) -> None:
    """`signatures`: {functions: (their result, their arguments)}."""
    for names, (result, arguments) in signatures.items():
        for name in names.split():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments


class PackedSampling:
    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        biases = [pair for pair in params.logit_bias if pair[0] < 2**31]  # no vocabulary is larger
        self.bias_tokens = np.array([token for token, _ in biases], dtype=np.int32)
        with np.errstate(over="ignore"):
            self.bias_values = np.array([bias for _, bias in biases], dtype=np.float64).astype(np.float32)
        self.breakers = breakers = params.breakers if isinstance(params, ModelSampling) else NO_BREAKERS
        names = [field[0] for field in SamplingStruct._fields_ if hasattr(params, field[0])]
        given = {name: getattr(params, name) for name in names}
        self.struct = SamplingStruct(
            **{name: min(value, 2**31 - 1) if isinstance(value, int) else value for name, value in given.items()},
            n_breaks=len(breakers.heads),
            break_heads=breakers.heads.ctypes.data,
            break_offsets=breakers.offsets.ctypes.data,
            break_tails=breakers.tails.ctypes.data,
            n_bias=len(biases),
            bias_tokens=self.bias_tokens.ctypes.data,
            bias_values=self.bias_values.ctypes.data,
        )
        self.address = ctypes.addressof(self.struct)
        lookbacks = [params.dry_penalty_last_n if params.dry_multiplier else 0]
        if params.repeat_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
            lookbacks.append(params.penalty_last_n)
        self.lookback = -1 if -1 in lookbacks else max(lookbacks)  # how many tokens of the history matter; -1 all


class Library(ctypes.CDLL):
    brief: ctypes.PyDLL  # the same, for functions of `BRIEF`

    def suited(self, tokens: int) -> ctypes.CDLL:
        """Whichever of the two a function of `BRIEF` is called of, where it has so many tokens to work on."""
        return self.brief if tokens < MOST_BRIEF else self


def open_library(path: Path | None = None) -> Library:
    """Loads and declares a library; None = the one that is installed. Raises KernelError: none, or not this version."""
    path = find_library() if path is None else path
    if path is None:
        raise KernelError(f"localspec's C library {FILE_NAME} is missing.", _ADVICE)
    try:
        lib = Library(str(path))
        lib.brief = ctypes.PyDLL(str(path))
        declare(lib, SIGNATURES)
        declare(lib.brief, {name: SIGNATURES[name] for name in BRIEF})
    except (OSError, AttributeError) as error:
        raise KernelError(f"the C library {path} cannot be loaded: {error}.", _ADVICE) from error
    if lib.ls_abi_version() != ABI_VERSION:
        raise KernelError(f"the C library {path} has ABI {lib.ls_abi_version()}, not {ABI_VERSION}.", _ADVICE)
    return lib


class Scratch:
    """Buffers of one thread, with their addresses."""

    def __init__(self, lib: ctypes.CDLL, isa: int) -> None:
        handle = ctypes.c_void_p()
        status = lib.ls_workspace_new(isa, ctypes.addressof(handle))
        if status:
            raise KernelError(f"the C library cannot serve instruction set {isa} here (status {status}).")
        self.workspace = int(handle.value or 0)
        self._lib, self._free = lib, weakref.finalize(self, lib.ls_workspace_free, self.workspace)
        self.noise = NoiseStruct()
        self.noise_address = ctypes.addressof(self.noise)
        self.draft = DraftStruct()
        self.draft_address = ctypes.addressof(self.draft)
        self._draft_probs: tuple[npt.NDArray[Any], ...] = ()
        self.results = np.zeros(4, dtype=np.int32)
        self.results_address = self.results.ctypes.data
        self._packed: dict[int, PackedSampling] = {}  # by id: a hash of all fields takes long
        self.room = 0
        self.grow(64)

    def check(self, status: int, index: int = 0) -> None:
        """Raises KernelError: what a status other than 0 says of the last call, for a row where C names none."""
        if not status:
            return
        self._lib.ls_fault(self.workspace, self.results_address, self.results_address + 4)
        row, token = self.results[:2].tolist()
        row = index if row < 0 else row
        if status == NOT_FINITE:
            raise KernelError(f"row {row} of the logits holds NaN or +inf for token {token}.")
        if status == NO_SUPPORT:
            raise KernelError(f"row {row} of the logits excludes every token: nothing is left to sample.")
        if status == BAD_TREE:
            node, parent = row - 1, int(self.parents[row - 1])
            fault = ": the block rule takes chains only" if -1 <= parent < node else "; parents come before children"
            raise KernelError(f"draft node {node} has parent {parent}{fault}.")
        if status == BAD_DRAFT:
            raise KernelError(f"draft node {row - 1} is token {token}, to which its own draft_probs give 0.")
        known = {NO_MEMORY: "out of memory", BAD_ARGUMENT: "an argument is out of range"}
        raise KernelError(f"the C library failed: {known.get(status, f'status {status}')}.")

    def grow(self, count: int) -> None:
        if count <= self.room:
            return
        self.room = 2 * count
        self.pointers = np.zeros(self.room + 1, dtype=np.uintp)
        self.tokens = np.zeros(self.room, dtype=np.int32)
        self.parents = np.zeros(self.room, dtype=np.int32)
        self.window = np.zeros(self.room, dtype=np.int32)
        self.picked = np.zeros(self.room, dtype=np.int32)
        self.probs = np.zeros(self.room, dtype=np.float32)
        self.draft.tokens = self.tokens.ctypes.data
        self.draft.parents = self.parents.ctypes.data
        self.pointers_address = self.pointers.ctypes.data
        self.window_address = self.window.ctypes.data
        self.picked_address = self.picked.ctypes.data
        self.probs_address = self.probs.ctypes.data

    def pack(self, params: SamplingParams) -> PackedSampling:
        found = self._packed.get(id(params))
        if found is None:
            if len(self._packed) >= 256:
                self._packed.clear()
            found = self._packed[id(params)] = PackedSampling(params)
        return found

    def put_noise(self, noise: Noise) -> None:
        self.noise.seed = noise.seed
        self.noise.stream = noise.stream & 0xFFFFFFFF
        self.noise.round = noise.round & 0x3FFFFFFF

    def put_draft(self, tokens: Tokens, parents: Tokens, probs: tuple[SparseProbs, ...] | None) -> None:
        """Copies the nodes, for which there is room; keeps what they were drawn from until the next draft."""
        n = len(tokens)
        self.draft.n = n
        self.tokens[:n] = tokens
        self.parents[:n] = parents
        self.draft.offsets = None
        if n and probs is not None:
            offsets = np.zeros(n + 1, dtype=np.int64)
            np.cumsum([len(p.tokens) for p in probs], out=offsets[1:])
            q_tokens = np.concatenate([p.tokens for p in probs]).astype(np.int32, copy=False)
            q_probs = np.concatenate([p.probs for p in probs]).astype(np.float64, copy=False)
            self._draft_probs = (offsets, q_tokens, q_probs)
            self.draft.offsets, self.draft.q_tokens, self.draft.q_probs = (
                array.ctypes.data for array in self._draft_probs
            )

    def put_window(self, window: Tokens, lookback: int) -> int:
        if lookback == 0:
            return 0
        tail = window if lookback < 0 else window[-lookback:]
        self.grow(len(tail))
        self.window[: len(tail)] = tail
        return len(tail)


_AT_ONCE = 4096  # rows that are rounded at a time


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A matrix in a byte a weight: entry (i, k) is `values[i, k] * scales[i]`."""

    values: npt.NDArray[np.int8]  # int8[rows, columns], C-contiguous
    scales: Float32Array  # float32[rows]

    @staticmethod
    def of(weights: npt.NDArray[np.floating]) -> Int8Matrix:
        """float[rows, columns], rounded; a row is 0 where it holds nothing else."""
        return Int8Matrix.in_parts(weights.shape, lambda start, stop: weights[start:stop])

    @staticmethod
    def in_parts(shape: tuple[int, ...], read: Callable[[int, int], npt.NDArray[np.floating]]) -> Int8Matrix:
        """The same of weights that are read in parts, so that a large matrix takes little beside itself: `read(start,
        stop)` gives float[stop - start, columns]."""
        values, scales = np.empty(shape, dtype=np.int8), np.empty(shape[0], dtype=np.float32)
        for start in range(0, shape[0], _AT_ONCE):
            part = np.asarray(read(start, min(start + _AT_ONCE, shape[0])), dtype=np.float32)
            top = np.abs(part).max(axis=1)
            scales[start : start + len(part)] = top / np.float32(127)
            values[start : start + len(part)] = np.rint(part * (127.0 / np.where(top > 0, top, 1.0))[:, None])
        return Int8Matrix(values, scales)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return len(self.values), self.values.shape[1]

    def rows(self, ids: npt.NDArray[np.integer]) -> Float32Array:
        """float32[n, columns] of these rows: an embedding."""
        return np.asarray(self.values[ids] * self.scales[ids, None], dtype=np.float32)
