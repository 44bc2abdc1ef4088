"""The kernels of the C library as functions, on the best instruction set of this CPU: `kernels.verify(...)`. Importing
this module opens the library, or fails with a KernelError that says what to do.

Rows may be written while a call lasts (logit bias and penalties are applied in place) and hold what they held when it
returns. Arguments are checked here, once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from localspec.errors import KernelError
from localspec.native.gpu import DeviceRows, verify_rows
from localspec.native.library import ISAS, Int8Matrix, Scratch, open_library
from localspec.types import (
    Float32Array,
    Float64Array,
    LogitRows,
    Noise,
    Purpose,
    Rule,
    SamplingParams,
    SparseProbs,
    Tokens,
)

_Drawn = tuple[SamplingParams, Tokens, Noise, int]  # how a token is drawn, what is before it, where it stands
NO_NOISE = Noise(0)  # for distributions that do not depend on noise
_MOST_INPUTS = 64  # LS_MOST_INPUTS
_WORK_PER_THREAD = 1 << 23  # products of weights; below that, waking a thread costs more than it takes off


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="localspec-product")


class NativeKernels:
    def __init__(self, isa: str = "best") -> None:
        """`isa`: one of ISAS; "best" lets the CPU decide."""
        self.library = open_library()
        self._isa = ISAS[isa]
        self._local = threading.local()
        self.isa: str = self.library.ls_isa_name(self.library.ls_workspace_isa(self.scratch().workspace)).decode()
        self.cpu_features: str = self.library.ls_cpu_features().decode()
        """What the dispatcher saw, e.g. "x86-64 avx2 avx512"."""

    def scratch(self) -> Scratch:
        """Buffers of the thread that calls."""
        scratch: Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = Scratch(self.library, self._isa)
        return scratch

    def gumbel(self, noise: Noise, purpose: Purpose, position: int, tokens: Tokens) -> Float64Array:
        """float64[n] = -log(-log(uniform)), with our own log, where uniform is (x + 0.5) / 2^32 of each token id, x its
        first word of Philox 4x32-10 (Salmon et al. 2011)."""
        tokens, scratch = np.ascontiguousarray(tokens, dtype=np.int32), self.scratch()
        out = np.empty(len(tokens))
        scratch.put_noise(noise)
        front = (scratch.workspace, scratch.noise_address, purpose, position & 0xFFFFFFFF)
        self.library.suited(len(tokens)).ls_gumbel(*front, tokens.ctypes.data, len(tokens), out.ctypes.data)
        return out

    def _front(self, rows: LogitRows, index: int, drawn: _Drawn, room: int = 0) -> tuple[Scratch, tuple[int, ...]]:
        """Buffers of this thread, with room for so many results, and the first arguments of C."""
        _check_row(rows, index)
        scratch, context = self._context(*drawn, room)
        return scratch, (scratch.workspace, rows.pointer(index), rows.n_vocab, *context)

    def _context(
        self, sampling: SamplingParams, window: Tokens, noise: Noise, position: int, room: int
    ) -> tuple[Scratch, tuple[int, ...]]:
        scratch = self.scratch()
        packed = scratch.pack(sampling)
        scratch.grow(room)  # first: it would lose the window
        n_window = scratch.put_window(window, packed.lookback)
        scratch.put_noise(noise)
        addresses = packed.address, scratch.window_address, n_window, scratch.noise_address
        return scratch, (*addresses, position & 0xFFFFFFFF)

    def sample(
        self,
        rows: LogitRows,
        index: int,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        count: int = 1,
    ) -> tuple[Tokens, Float32Array]:
        """The `count` best tokens by log probability + Gumbel noise (Purpose.SAMPLE), best first, ties to the lower id.

        One is an exact sample (Gumbel-max), more are samples without replacement in the order in which they were drawn
        (Gumbel-top-k, Kool et al. 2019). At temperature 0 the most likely ones; of the other settings only bias,
        penalties and top-k apply then.

        Args:
            rows: logits as the model left them; only rows[index] is touched.
            window: int32[m], the tokens before this row's; as many of the last as the settings say count.
            position: absolute position of the token that is drawn.

        Returns int32[k] ids and float32[k] probabilities after the transform (at temperature 0: softmax over the top-k
        at temperature 1), k <= count: fewer when the support is smaller. Raises KernelError: NaN or +inf in the row,
        every token excluded, or `index` or `count` out of range.
        """
        if count < 1:
            raise KernelError(f"{count} tokens were asked for; 1 is the least.")
        count = min(count, rows.n_vocab)
        scratch, front = self._front(rows, index, (sampling, window, noise, position), count)
        out = (scratch.picked_address, scratch.probs_address, scratch.results_address)
        scratch.check(self.library.ls_sample(*front, count, *out), index)
        found = int(scratch.results[0])
        return scratch.picked[:found].copy(), scratch.probs[:found].copy()

    def distribution(
        self,
        rows: LogitRows,
        index: int,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise = NO_NOISE,
        position: int = 0,
    ) -> SparseProbs:
        """rows[index] after all steps of `SamplingParams`; the arguments are those of `sample`. `noise` and `position`
        say whether XTC takes tokens out here; nothing else depends on them."""
        scratch, front = self._front(rows, index, (sampling, window, noise, position))
        room = min(sampling.top_k, rows.n_vocab) if sampling.top_k else rows.n_vocab
        tokens, probs = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float64)
        out = (tokens.ctypes.data, probs.ctypes.data, scratch.results_address)
        scratch.check(self.library.ls_distribution(*front, *out), index)
        found = int(scratch.results[0])
        return SparseProbs(tokens[:found].copy(), probs[:found].copy())

    def log_probs(self, rows: LogitRows, index: int, tokens: Tokens | Sequence[int]) -> Float64Array:
        """float64[n], log-softmax of the raw rows[index] at int32[n] ids; -inf for an excluded token. Raises
        KernelError as `sample`, and for an id out of range."""
        _check_row(rows, index)
        ids = np.ascontiguousarray(tokens, dtype=np.int32)
        if len(ids) and not 0 <= ids.min() <= ids.max() < rows.n_vocab:
            raise KernelError(f"token ids {ids.min()} to {ids.max()} do not fit a vocabulary of {rows.n_vocab}.")
        scratch = self.scratch()
        out = np.empty(len(ids))
        row = (scratch.workspace, rows.pointer(index), rows.n_vocab)
        scratch.check(self.library.ls_log_probs(*row, ids.ctypes.data, len(ids), out.ctypes.data), index)
        return out

    def top_log_probs(self, rows: LogitRows, index: int, count: int) -> tuple[Tokens, Float64Array]:
        """int32[k] most likely ids of the raw rows[index], best first, and their log-softmax, float64[k]; k <=
        count."""
        _check_row(rows, index)
        if count < 1:
            raise KernelError(f"{count} tokens were asked for; 1 is the least.")
        scratch, count = self.scratch(), min(count, rows.n_vocab)
        tokens, out = np.empty(count, dtype=np.int32), np.empty(count)
        results = (tokens.ctypes.data, out.ctypes.data, scratch.results_address)
        row = (scratch.workspace, rows.pointer(index), rows.n_vocab)
        scratch.check(self.library.ls_top_log_probs(*row, count, *results), index)
        found = int(scratch.results[0])
        return tokens[:found].copy(), out[:found].copy()

    def verify(
        self,
        rows: LogitRows,
        tokens: Tokens,
        parents: Tokens,
        probs: tuple[SparseProbs, ...] | None,
        sampling: SamplingParams,
        window: Tokens,
        noise: Noise,
        position: int,
        rule: Rule,
    ) -> tuple[Tokens, int]:
        """What the target says to a draft: which nodes it would have said itself, and its own token after them.

        *coupled* draws the target's token of each row with the noise that plain decoding would use and follows the
        child that equals it. *rejection* accepts a child with probability min(1, target_probs / draft_probs), else
        takes what is left of target_probs to the next sibling (Leviathan et al. 2023, Chen et al. 2023). *block*
        decides about a chain as a whole (Sun et al. 2024).

        Args:
            rows: row 0 follows the history, row 1 + i follows node i. Rows off the path are not touched (*block*: rows
                after the accepted prefix may be).
            tokens: int32[n] draft nodes; siblings are distinct.
            parents: int32[n], -1 is the history's last token; parents before children, siblings in trial order.
            probs: what each token was drawn from, given that its earlier siblings were not it; None for deterministic
                guesses. *coupled* ignores it.
            window: int32[m], the whole history.
            noise: for *rejection* and *block* its `round` is the history length.
            position: of the token drawn from row 0, that is, the history length.

        Returns int32[a] accepted nodes along the path, and the next token.
        """
        n = len(tokens)
        if len(parents) != n or len(rows) <= n or (probs is not None and len(probs) != n):
            given = "no" if probs is None else len(probs)
            raise KernelError(
                f"a draft of {n} tokens came with {len(parents)} parents, {given} probs and {len(rows)} rows."
            )
        scratch, context = self._context(sampling, window, noise, position, n)
        scratch.put_draft(tokens, parents, probs if rule else None)
        call = (rows.n_vocab, scratch.draft_address, *context, rule)
        out = (scratch.picked_address, scratch.results_address, scratch.results_address + 4)
        if isinstance(rows, DeviceRows):
            status = verify_rows(self.library, scratch.workspace, rows, n + 1, call, out)
        else:
            scratch.pointers[: n + 1] = rows.pointers[: n + 1]
            status = self.library.ls_verify(scratch.workspace, scratch.pointers_address, *call, *out)
        scratch.check(status)
        accepted, next_token = scratch.results[:2].tolist()
        return scratch.picked[:accepted].copy(), next_token

    def matvec(self, matrix: Int8Matrix, inputs: Float32Array, threads: int = 1) -> Float32Array:
        """float32[n, rows]: the matrix times each of float32[n, columns] inputs, by at most so many threads, as far as
        it is worth them; the bits are the same.

        An input is rounded to 15 bits beside its largest entry; sums are exact integers. One that holds NaN or inf
        gives NaN.
        """
        if inputs.ndim != 2 or inputs.shape[1] != matrix.shape[1] or inputs.dtype != np.float32:
            given = f"{inputs.dtype}{list(inputs.shape)}"
            raise KernelError(f"inputs are {given}; the matrix has {matrix.shape[1]} columns.")
        rows, columns = matrix.shape
        threads = min(threads, rows * columns * len(inputs) // _WORK_PER_THREAD)
        if threads < 2:
            return self._product(matrix, inputs, 0, rows)
        edges = [rows * part // threads for part in range(threads + 1)]
        first = [_pool().submit(self._product, matrix, inputs, *edges[part : part + 2]) for part in range(1, threads)]
        mine = self._product(matrix, inputs, *edges[:2])
        return np.concatenate([mine, *(one.result() for one in first)], axis=1)

    def _product(self, matrix: Int8Matrix, inputs: Float32Array, begin: int, end: int) -> Float32Array:
        columns, scratch = matrix.shape[1], self.scratch()
        first = (matrix.values.ctypes.data + begin * columns, matrix.scales.ctypes.data + 4 * begin)
        out = np.empty((len(inputs), end - begin), dtype=np.float32)
        for start in range(0, len(inputs), _MOST_INPUTS):
            part = np.ascontiguousarray(inputs[start : start + _MOST_INPUTS])
            given = (*first, end - begin, columns, part.ctypes.data, len(part))
            status = self.library.ls_matvec(scratch.workspace, *given, out[start:].ctypes.data)
            if status:
                raise KernelError(f"a product of {end - begin} x {columns} weights failed (status {status}).")
        return out


def _check_row(rows: LogitRows, index: int) -> None:
    if not 0 <= index < len(rows):
        raise KernelError(f"row {index} was asked for; there are {len(rows)}.")


KERNELS = NativeKernels()

gumbel = KERNELS.gumbel
sample = KERNELS.sample
distribution = KERNELS.distribution
log_probs = KERNELS.log_probs
top_log_probs = KERNELS.top_log_probs
verify = KERNELS.verify
matvec = KERNELS.matvec
