"""What is read of a pass where it left it: logits (`LogitsTap`), so that llama.cpp copies none of them to its own
buffer, and intermediate results (`Observer`), so that a probe sees differences that later rounding would hide.

llama.cpp builds the samplers of a context into the graph of a pass, and copies the logits of those sequences only that
have no sampler. The sampler here adds nothing to the graph: it notes which tensor its input is a view of, and gives no
result. A graph that is used again keeps its tensors, so llama.cpp calls the sampler when it builds a graph, and in no
pass of the shape of the last one. It serves passes that llama.cpp computes in one piece: of one slot.

Activations are rounded to 8 bits before every product with quantised weights: a kernel that adds in another order at
another width changes the logits only now and then. In the attention and layer outputs themselves it shows at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from localspec.errors import DecodeError, KernelError, LocalspecError
from localspec.llama.library import lib
from localspec.llama.library.bindings import InitParams, Tensor
from localspec.native.gpu import METAL, Gpu
from localspec.types import Float32Array

_LOG = logging.getLogger("localspec")
_CUDA_SWITCH, _METAL_SWITCH = "LOCALSPEC_CUDA_KERNEL", "LOCALSPEC_METAL_KERNEL"
"""Environment variables: 1 = the kernel is used on such devices. It never ran on any, so it is not used unasked."""


def ordinal_of(name: str) -> int | None:
    """What `Gpu` opens for llama.cpp's device of this name; None where no kernel is to be used."""
    cuda = re.fullmatch(r"CUDA(\d+)", name)
    if cuda is not None and os.environ.get(_CUDA_SWITCH) == "1":
        return int(cuda[1])
    return METAL if re.match(r"MTL|Metal", name) and os.environ.get(_METAL_SWITCH) == "1" else None


def open_gpu(name: str) -> Gpu | None:
    """The GPU that llama.cpp calls so, after its self-test; None where it does not serve. The log says why not."""
    ordinal = ordinal_of(name)
    if ordinal is None:
        return None
    try:
        return Gpu(ordinal)
    except KernelError as error:
        if error.message:
            _LOG.warning("%s Logits are copied from %s and verified on the CPU.", error.message, name)
        return None


class LogitsTap:
    """The samplers of one context: made before it, and freed after it."""

    def __init__(self, params: Any, n_vocab: int) -> None:
        """Gives every sequence of a context that is to be made a sampler, in `params`, its llama_context_params."""
        self._chains: list[Any] = []
        self.gpu: Gpu | None = None  # preselects where the rows are; None = they are read whole
        _check_layout()
        self.calls = 0
        """How often llama.cpp called a sampler: once for each row with logits of a graph that it built."""
        self._api: Any = lib.api()
        self._row_bytes = 4 * n_vocab
        self._is_host = lib.c_function("ggml_backend_buffer_is_host", ctypes.c_bool, ctypes.c_void_p)
        self._get = lib.c_function(
            "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self._type_of = lib.c_function("ggml_backend_buffer_get_type", ctypes.c_void_p, ctypes.c_void_p)
        self._device_of = lib.c_function("ggml_backend_buft_get_device", ctypes.c_void_p, ctypes.c_void_p)
        self._name_of = lib.c_function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
        self._gpu_wanted = True
        self._tensor = 0
        """The address of the ggml_tensor with the logits of the last graph that has any; 0 = there was none."""
        self._error: BaseException | None = None
        self._interface = self._api.llama_sampler_i(
            backend_init=self._api.llama_sampler_i_backend_init(lambda *_: True),
            backend_apply=self._api.llama_sampler_i_backend_apply(self._called),
        )  # llama.cpp points to it
        count = params.n_seq_max
        self._chains += [self._chain() for _ in range(count)]
        addresses = map(lib.pointer_value, self._chains)
        self._configs = (self._api.llama_sampler_seq_config * count)(*enumerate(addresses))
        params.samplers, params.n_samplers = self._configs, count
        params.n_outputs_max_per_seq = params.n_outputs_max

    def _chain(self) -> Any:
        api = self._api
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init(ctypes.byref(self._interface), None))
        return chain

    def _called(self, sampler: object, context: object, graph: object, data: Any) -> None:
        """The callback: no exception, not even Ctrl-C, may cross C. `rows` raises it."""
        try:
            self._note(data.contents)
        except BaseException as error:  # noqa: BLE001 - see above
            self._error = error

    def _note(self, data: Any) -> None:
        """llama.cpp builds a graph; `data.logits` is a view of one row of its logits, to which it added one row."""
        padded = Tensor.from_address(data.logits).view_src
        data.logits = None
        if padded:  # else llama.cpp tries the sampler out
            found = Tensor.from_address(padded).src[0]
            if Tensor.from_address(found).ne[1]:  # else the pass has no row with logits
                self._tensor = found
                self.calls += 1

    def rows(self, count: int, buffer: int) -> int:
        """The address of the logits of the last pass, which must be over: float32[count, n_vocab], until the next. It
        is an address of the device `gpu`, if there is one after the call; then `fetch` copies from there.

        `buffer` is the address of llama.cpp's own buffer for logits. Rows are copied there from a device that does not
        preselect and has a memory of its own; where llama.cpp takes no samplers, it has copied them itself.

        Raises:
            DecodeError: the pass has fewer rows.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._tensor:
            return buffer
        tensor = Tensor.from_address(self._tensor)
        if tensor.ne[1] < count:
            raise DecodeError(f"The last pass left {tensor.ne[1]} rows of logits; {count} were asked for.")
        self._find_gpu(tensor.buffer)
        if self.gpu is not None or self._is_host(tensor.buffer):
            return int(tensor.data)
        self._get(self._tensor, buffer, 0, count * self._row_bytes)
        return buffer

    def fetch(self, address: int, out: Float32Array) -> None:
        """Copies logits of the last pass to the host: as many as `out` has, from this address of the device on."""
        offset = address - Tensor.from_address(self._tensor).data
        self._get(self._tensor, out.ctypes.data, offset, out.nbytes)

    def _find_gpu(self, buffer: int) -> None:
        """At the first pass opens what preselects on the device of its logits; closes it after a failure."""
        if self._gpu_wanted:
            self._gpu_wanted = False
            device = self._device_of(self._type_of(buffer))
            self.gpu = open_gpu(self._name_of(device).decode()) if device else None
        if self.gpu is not None and self.gpu.failure:
            _LOG.warning("%s", self.gpu.failure)
            self.gpu.close()
            self.gpu = None

    def close(self) -> None:
        """Frees the samplers, and what is held on a GPU; a second call does nothing."""
        if self.gpu is not None:
            self.gpu.close()
            self.gpu = None
        while self._chains:
            self._api.llama_sampler_free(self._chains.pop())

    def __del__(self) -> None:
        self.close()


@functools.cache
def _check_layout() -> None:
    """Tries out on tensors of ggml's own whether `Tensor` is laid out as they are. Raises LocalspecError: it is not."""
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    number = ctypes.c_int64
    context = lib.c_function("ggml_init", pointer, InitParams)(InitParams(1 << 14, None, True))
    logits = lib.c_function("ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, number, number)(context, 0, 5, 3)
    pad = lib.c_function("ggml_pad", pointer, pointer, pointer, *[ctypes.c_int] * 4)
    padded = pad(context, logits, 0, 1, 0, 0)
    view = lib.c_function("ggml_view_1d", pointer, pointer, pointer, number, size)(context, padded, 5, 40)
    cpu = lib.c_function("ggml_backend_cpu_buffer_type", pointer)()
    allocate = lib.c_function("ggml_backend_alloc_ctx_tensors_from_buft", pointer, pointer, pointer)
    buffer = allocate(context, cpu)
    tensor, seen = Tensor.from_address(logits), Tensor.from_address(view)
    right = (
        tensor.buffer == buffer
        and list(tensor.ne) == [5, 3, 1, 1]
        and tensor.data == lib.c_function("ggml_get_data", pointer, pointer)(logits)
        and Tensor.from_address(padded).src[0] == logits
        and (seen.view_src, seen.view_offs) == (padded, 40)
    )
    lib.c_function("ggml_backend_buffer_free", None, pointer)(buffer)
    lib.c_function("ggml_free", None, pointer)(context)
    if not right:
        raise LocalspecError("This llama.cpp lays out its tensors otherwise than localspec declares them.")


WATCHED = re.compile(r"(kqv_out|ffn_out|ffn_moe_out|l_out)-\d+|result_norm").fullmatch
"""Graph nodes whose rows are tokens: attention, feed-forward and layer outputs, the final norm."""

_SHAPE_OFFSET = 16  # ggml_tensor: type (4, padded to 8), buffer (8), ne[4]


class Observer:
    """Collects the rows of the watched nodes of the last pass. CPU and GPU; float32 nodes only."""

    def __init__(self) -> None:
        api = lib.api()
        self._name = lib.c_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._bytes = lib.c_function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
        self._get = lib.c_function(
            "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
        )
        self.callback = api.ggml_backend_sched_eval_callback(self._called)
        self.rows: dict[str, Float32Array] = {}
        """Node -> float32[rows, size], as of the last pass; nodes of the last layer only have rows with logits."""
        self._error: BaseException | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Around a pass: forgets the rows of earlier ones, and raises afterwards what was raised while looking."""
        self.rows.clear()
        self._error = None
        try:
            yield
        finally:
            error, self._error = self._error, None
            if error is not None:
                self.rows.clear()
                raise error

    def _called(self, tensor: int, asks: bool, data: object) -> bool:
        """The callback: no exception, not even Ctrl-C, may cross C. After one the pass runs on, unobserved."""
        try:
            return self._see(tensor, asks, data) if self._error is None else not asks
        except BaseException as error:  # noqa: BLE001 - raised again by `watching`
            self._error = error
            return not asks

    def _see(self, tensor: int, asks: bool, _: object) -> bool:
        name = self._name(tensor).decode("ascii", "replace")
        if not WATCHED(name):
            return not asks
        if not asks:
            kind = ctypes.c_int32.from_address(tensor).value
            shape = (ctypes.c_int64 * 4).from_address(tensor + _SHAPE_OFFSET)
            size = self._bytes(tensor)
            if kind == 0 and shape[2] == shape[3] == 1 and size == 4 * shape[0] * shape[1]:
                rows = np.empty((shape[1], shape[0]), dtype=np.float32)
                self._get(tensor, rows.ctypes.data, 0, size)
                self.rows[name] = rows
        return True
