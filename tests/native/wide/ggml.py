"""Just enough of ggml, by ctypes, to drive the device without a model."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.lib import InitParams

F32, F16, Q8_0, I32 = 0, 1, 8, 26
WEIGHTS = 1  # a buffer's usage
PTR, INT, I64, SIZE, TEXT, BOOL = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_int64,
    ctypes.c_size_t,
    ctypes.c_char_p,
    ctypes.c_bool,
)


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ggml_init": (PTR, InitParams),
    "ggml_free": (None, PTR),
    "ggml_tensor_overhead": (SIZE,),
    "ggml_graph_overhead": (SIZE,),
    "ggml_new_tensor_2d": (PTR, PTR, INT, I64, I64),
    "ggml_new_tensor_3d": (PTR, PTR, INT, I64, I64, I64),
    "ggml_new_tensor_1d": (PTR, PTR, INT, I64),
    "ggml_set_name": (PTR, PTR, TEXT),
    "ggml_mul_mat": (PTR, PTR, PTR, PTR),
    "ggml_get_rows": (PTR, PTR, PTR, PTR),
    "ggml_view_2d": (PTR, PTR, PTR, I64, I64, SIZE, SIZE),
    "ggml_transpose": (PTR, PTR, PTR),
    "ggml_cont": (PTR, PTR, PTR),
    "ggml_scale": (PTR, PTR, PTR, ctypes.c_float),
    "ggml_set_input": (None, PTR),
    "ggml_set_output": (None, PTR),
    "ggml_nbytes": (SIZE, PTR),
    "ggml_get_data": (PTR, PTR),
    "ggml_new_graph": (PTR, PTR),
    "ggml_build_forward_expand": (None, PTR, PTR),
    "ggml_backend_dev_by_name": (PTR, TEXT),
    "ggml_backend_dev_by_type": (PTR, INT),
    "ggml_backend_dev_init": (PTR, PTR, TEXT),
    "ggml_backend_dev_buffer_type": (PTR, PTR),
    "ggml_backend_dev_supports_op": (BOOL, PTR, PTR),
    "ggml_backend_free": (None, PTR),
    "ggml_backend_graph_compute": (INT, PTR, PTR),
    "ggml_backend_alloc_ctx_tensors_from_buft": (PTR, PTR, PTR),
    "ggml_backend_buffer_set_usage": (None, PTR, INT),
    "ggml_backend_buffer_clear": (None, PTR, ctypes.c_uint8),
    "ggml_backend_buffer_free": (None, PTR),
    "ggml_backend_tensor_set": (None, PTR, PTR, SIZE, SIZE),
    "ggml_backend_tensor_get": (None, PTR, PTR, SIZE, SIZE),
    "ggml_backend_tensor_memset": (None, PTR, ctypes.c_uint8, SIZE, SIZE),
    "ggml_backend_sched_new": (PTR, PTR, PTR, INT, SIZE, BOOL, BOOL),
    "ggml_backend_sched_free": (None, PTR),
    "ggml_backend_sched_reset": (None, PTR),
    "ggml_backend_sched_alloc_graph": (BOOL, PTR, PTR),
    "ggml_backend_sched_graph_compute": (INT, PTR, PTR),
    "ggml_backend_sched_get_tensor_backend": (PTR, PTR, PTR),
}


def call(name: str, *arguments: Any) -> Any:
    """A function of the ggml that llama.cpp uses."""
    return lib.c_function(f"ggml_{name}", *SIGNATURES[f"ggml_{name}"])(*arguments)


@contextlib.contextmanager
def context(tensors: int = 64) -> Iterator[int]:
    """A place for descriptions of tensors and graphs, without their data."""
    size = tensors * call("tensor_overhead") + 2 * call("graph_overhead")
    made = call("init", InitParams(size, None, True))
    try:
        yield made
    finally:
        call("free", made)


def graph_of(context: int, inputs: Iterable[int], outputs: Iterable[int]) -> int:
    """A graph that computes `outputs`, for `Runner.compute`."""
    graph = int(call("new_graph", context))
    for tensor in inputs:
        call("set_input", tensor)
    for tensor in outputs:
        call("set_output", tensor)
        call("build_forward_expand", graph, tensor)
    return graph


def set_bytes(tensor: int, data: bytes, offset: int = 0) -> None:
    call("backend_tensor_set", tensor, data, offset, len(data))


def get_bytes(tensor: int, offset: int = 0, size: int | None = None) -> bytes:
    size = call("nbytes", tensor) - offset if size is None else size
    data = ctypes.create_string_buffer(size)
    call("backend_tensor_get", tensor, data, offset, size)
    return data.raw


def memory_of(tensor: int) -> bytes:
    """What really lies at the tensor's address."""
    return ctypes.string_at(call("get_data", tensor), call("nbytes", tensor))


class Weights:
    """Matrices in the device's memory."""

    def __init__(self, shapes: list[tuple[int, int]], kind: int = Q8_0, usage: int = WEIGHTS) -> None:
        """`shapes`: (columns, rows) of each."""
        params = InitParams((len(shapes) + 1) * call("tensor_overhead"), None, True)
        self.context = call("init", params)
        self.tensors = [call("new_tensor_2d", self.context, kind, *shape) for shape in shapes]
        device = call("backend_dev_by_name", wide.DEVICE_NAME.encode())
        self.buffer = call("backend_alloc_ctx_tensors_from_buft", self.context, call("backend_dev_buffer_type", device))
        call("backend_buffer_set_usage", self.buffer, usage)

    def close(self) -> None:
        call("backend_buffer_free", self.buffer)
        call("free", self.context)

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Runner:
    """Our backend and the CPU's behind a scheduler, as in a context of llama.cpp."""

    def __init__(self, threads: int = 1) -> None:
        device = call("backend_dev_by_name", wide.DEVICE_NAME.encode())
        self.device = device
        self.wide = call("backend_dev_init", device, None)
        self.cpu = call("backend_dev_init", call("backend_dev_by_type", 0), None)
        lib.c_function("ggml_backend_synchronize", None, PTR)(self.wide)
        registry = lib.c_function("ggml_backend_dev_backend_reg", PTR, PTR)(device)
        address = lib.c_function("ggml_backend_reg_get_proc_address", PTR, PTR, TEXT)
        set_threads = ctypes.CFUNCTYPE(None, PTR, INT)(address(registry, b"ggml_backend_set_n_threads"))
        set_threads(self.wide, threads)
        backends = (PTR * 2)(self.wide, self.cpu)
        self.scheduler = call("backend_sched_new", backends, None, 2, 512, False, True)

    def compute(self, graph: int, inputs: dict[int, npt.NDArray[Any]], *outputs: int) -> list[bytes]:
        """Computes `outputs` of a graph from its inputs."""
        call("backend_sched_reset", self.scheduler)
        assert call("backend_sched_alloc_graph", self.scheduler, graph)
        for tensor, values in inputs.items():
            set_bytes(tensor, np.ascontiguousarray(values).tobytes())
        assert call("backend_sched_graph_compute", self.scheduler, graph) == 0
        return [get_bytes(tensor) for tensor in outputs]

    def runs_on_wide(self, tensor: int) -> bool:
        """Where the last graph computed `tensor`."""
        return bool(call("backend_sched_get_tensor_backend", self.scheduler, tensor) == self.wide)

    def close(self) -> None:
        call("backend_sched_free", self.scheduler)
        call("backend_free", self.wide)
        call("backend_free", self.cpu)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def q8_0(rng: np.random.Generator, columns: int, rows: int) -> tuple[bytes, npt.NDArray[np.float32]]:
    """Random Q8_0 weights: their bytes, and their values as float32[rows, columns]."""
    scales = rng.uniform(0.01, 0.1, (rows, columns // 32)).astype(np.float16)
    quants = rng.integers(-127, 128, (rows, columns // 32, 32)).astype(np.int8)
    blocks = np.concatenate([scales[..., None].view(np.uint8), quants.view(np.uint8)], axis=2)
    values = quants.astype(np.float32) * scales[..., None].astype(np.float32)
    return blocks.tobytes(), values.reshape(rows, columns)
