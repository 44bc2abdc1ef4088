"""Small graphs on llama.cpp's CPU backend, computed for any rows of their inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.llama.exact.choice import HADAMARD
from localspec.llama.library import lib
from localspec.llama.library.lib import GgmlTensor, InitParams
from tests.native.wide import ggml
from tests.native.wide.ggml import BOOL, F16, F32, I32, I64, INT, PTR, Q8_0, SIZE, TEXT

Values = npt.NDArray[Any]
Bits = npt.NDArray[np.uint8]
FLOAT = ctypes.c_float

BF16 = 30
TYPES = {"float32": F32, "float16": F16, "uint8": Q8_0, "uint16": BF16, "int32": I32, "int64": 27}
"""ggml's number for an operand of this dtype. Whole blocks of bytes are Q8_0, and 16 bits are BF16."""
FORMATS = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ3_S", "IQ3_XXS", "TQ1_0", "TQ2_0"),
)
"""Of weights, as files name them; the rest needs an importance matrix to be made."""
UNARY = (
    *("ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH"),
    *("HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC"),
)
"""Kinds of UNARY, in the order of their numbers."""
GLU = ("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP")
"""Kinds of GLU, in the order of their numbers."""

ONE, TWO = (PTR, PTR, PTR), (PTR, PTR, PTR, PTR)  # a function of one tensor, and of two
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "op_name": (TEXT, INT),
    "op_desc": (TEXT, PTR),
    "unary_op_name": (TEXT, INT),
    "glu_op_name": (TEXT, INT),
    "new_tensor_4d": (PTR, PTR, INT, I64, I64, I64, I64),
    "graph_n_nodes": (INT, PTR),
    "graph_node": (PTR, PTR, INT),
    "new_graph_custom": (PTR, PTR, SIZE, BOOL),
    "graph_overhead_custom": (SIZE, SIZE, BOOL),
    "backend_dev_backend_reg": (PTR, PTR),
    "backend_reg_get_proc_address": (PTR, PTR, TEXT),
    **dict.fromkeys(("sqr", "sqrt", "sum_rows", "mean"), ONE),
    **dict.fromkeys(("add", "sub", "mul", "div", "cpy", "repeat"), TWO),
    "add_id": (*TWO, PTR),
    "set_rows": (*TWO, PTR),
    "fill": (*ONE, FLOAT),
    "scale_bias": (*ONE, FLOAT, FLOAT),
    "clamp": (*ONE, FLOAT, FLOAT),
    **dict.fromkeys(("norm", "rms_norm", "l2_norm"), (*ONE, FLOAT)),
    "unary": (*ONE, INT),
    "xielu": (*ONE, FLOAT, FLOAT, FLOAT, FLOAT),
    "glu": (*ONE, INT, BOOL),
    "glu_split": (*TWO, INT),
    "swiglu_oai": (*TWO, FLOAT, FLOAT),
    "swiglu_clamp": (*TWO, FLOAT),
    "soft_max_ext": (*TWO, FLOAT, FLOAT),
    "soft_max_add_sinks": (None, PTR, PTR),
    "rope_ext_back": (*TWO, PTR, INT, INT, INT, *[FLOAT] * 6),
    "rope_ext": (*TWO, PTR, INT, INT, INT, *[FLOAT] * 6),
    "rope_multi": (*TWO, PTR, INT, PTR, INT, INT, *[FLOAT] * 6),
    "cast": (*ONE, INT),
    "cont_2d": (*ONE, I64, I64),
    "concat": (*TWO, INT),
    **dict.fromkeys(("argsort", "top_k"), (*ONE, INT)),
    "mul_mat_id": (*TWO, PTR),
    "mul_mat_set_hint": (None, PTR, INT),
    "lightning_indexer": (*TWO, PTR, PTR),
    "dsv4_hc_comb": (*TWO, PTR, FLOAT, INT),
    "dsv4_hc_pre": TWO,
    "dsv4_hc_pre_gated": (*TWO, FLOAT),
    "dsv4_hc_post": (*TWO, PTR, PTR),
    "ssm_conv": TWO,
    "ssm_scan": (PTR, *[PTR] * 8, I64),
    "rwkv_wkv6": (PTR, *[PTR] * 7),
    "rwkv_wkv7": (PTR, *[PTR] * 8),
    "gated_delta_net": (PTR, *[PTR] * 7, I64),
    "type_size": (SIZE, INT),
    "blck_size": (I64, INT),
    "quantize_chunk": (SIZE, INT, PTR, PTR, I64, I64, I64, PTR),
    "repeat_4d": (*ONE, I64, I64, I64, I64),
    "permute": (*ONE, INT, INT, INT, INT),
    "reshape_2d": (*ONE, I64, I64),
    "reshape_3d": (*ONE, I64, I64, I64),
    "reshape_1d": (*ONE, I64),
    "view_3d": (*ONE, I64, I64, I64, SIZE, SIZE, SIZE),
}


def call(name: str, *arguments: Any) -> Any:
    """A function of the ggml that llama.cpp uses, without its "ggml_"."""
    if name not in _SIGNATURES:
        return ggml.call(name, *arguments)
    return lib.c_function(f"ggml_{name}", *_SIGNATURES[name])(*arguments)


@dataclass(frozen=True)
class Operand:
    """An input of a graph."""

    values: Values
    """In ggml's order reversed: the last axis is dimension 0."""
    axis: int | None = None
    """Where the rows of a pass lie; None = every pass gets all of it."""
    kind: int | None = None
    """ggml's number of the type of what `values` has as bytes; None = by their dtype."""
    halo: int = 0
    """Elements of that axis that a row needs besides its own: those before it, as a convolution does."""

    def of(self, rows: slice) -> Values:
        """What a pass of these rows gets."""
        if self.axis is None:
            return self.values
        place = [slice(None)] * self.axis + [slice(rows.start, rows.stop + self.halo)]
        return np.ascontiguousarray(self.values[tuple(place)])


class Graph:
    """Adds operations to the graph of one pass."""

    def __init__(self, context: int, width: int) -> None:
        self.context = context
        self.width = width
        """Rows of the pass."""

    def __call__(self, function: str, *arguments: Any) -> int:
        """The tensor that a function of ggml makes."""
        return int(call(function, self.context, *arguments))

    def operand(self, values: Values, kind: int | None = None) -> int:
        """A tensor for these values, without memory."""
        kind = TYPES[values.dtype.name] if kind is None else kind
        shape = [*values.shape[::-1], 1, 1, 1][:4]
        if values.dtype == np.uint8:
            shape[0] = shape[0] // call("type_size", kind) * call("blck_size", kind)
        return self("new_tensor_4d", kind, *shape)


Build = Callable[..., int]
"""Takes a Graph and the tensors of the operands, returns the output."""


def quantised(kind: int, values: npt.NDArray[np.float32]) -> Values:
    """uint8[..., bytes of a row]: float32[..., columns] in a type of ggml."""
    columns = values.shape[-1]
    size = columns // call("blck_size", kind) * call("type_size", kind)
    made = np.zeros((*values.shape[:-1], size), np.uint8)
    rows = values.size // columns
    source = np.ascontiguousarray(values, np.float32)
    written = call("quantize_chunk", kind, source.ctypes.data, made.ctypes.data, 0, rows, columns, None)
    assert written == made.size
    return made


@dataclass(frozen=True)
class Case:
    """An operation as a model may use it."""

    operation: str
    label: str
    build: Build
    operands: tuple[Operand, ...]
    outer: int = 1
    """Size of the output's dimensions outside of that of its rows."""
    cells: list[int] | None = None
    """The row of the output, which is a cache, that each row of the operands goes to. None = they are its rows."""
    cache: int = 0
    """Rows of such a cache."""


class Cpu:
    """llama.cpp's CPU backend."""

    def __init__(self) -> None:
        self.device = call("backend_dev_by_type", 0)
        self.backend = call("backend_dev_init", self.device, None)
        registry = call("backend_dev_backend_reg", self.device)
        address = call("backend_reg_get_proc_address", registry, b"ggml_backend_set_n_threads")
        self._set_threads = ctypes.CFUNCTYPE(None, PTR, INT)(address)

    def close(self) -> None:
        call("backend_free", self.backend)

    def __enter__(self) -> Cpu:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, cases: Sequence[Case], rows: slice, threads: int) -> list[Bits]:
        """A pass of these rows through every case.

        Returns:
            uint8[rows, bytes] for each case: what it makes of each row.
        """
        made = self.outputs(cases, rows, threads)
        return [_rows(case, data, rows) for case, data in zip(cases, made, strict=True)]

    def outputs(self, cases: Sequence[Case], rows: slice, threads: int) -> list[bytes]:
        """The same, as it lies in memory."""
        size = 16 * len(cases)
        memory = size * call("tensor_overhead") + call("graph_overhead_custom", size, False)
        context = call("init", InitParams(memory, None, True))
        graph = call("new_graph_custom", context, size, False)
        make = Graph(context, rows.stop - rows.start)
        inputs: dict[int, Values] = {}
        outputs: list[int] = []
        for case in cases:
            values = [operand.of(rows) for operand in case.operands]
            tensors = [make.operand(each, operand.kind) for each, operand in zip(values, case.operands, strict=True)]
            inputs |= zip(tensors, values, strict=True)
            outputs.append(case.build(make, *tensors))
            before = call("graph_n_nodes", graph)
            call("build_forward_expand", graph, outputs[-1])
            _check(case, graph, before)
        buffer = call("backend_alloc_ctx_tensors_from_buft", context, call("backend_dev_buffer_type", self.device))
        try:
            for tensor, each in inputs.items():
                ggml.set_bytes(tensor, each.tobytes())
            self._set_threads(self.backend, threads)
            assert call("backend_graph_compute", self.backend, graph) == 0
            return [ggml.get_bytes(made) for made in outputs]
        finally:
            call("backend_buffer_free", buffer)
            call("free", context)


def operations(graph: int, first: int = 0) -> list[str]:
    """Names of the operations of a graph's nodes from number `first` on."""
    found = []
    for index in range(first, call("graph_n_nodes", graph)):
        node = call("graph_node", graph, index)
        name = call("op_desc", node).decode()
        hint = GgmlTensor.from_address(node).op_params[1]
        kind = "UNARY" if name in UNARY else "GLU" if name in GLU else name
        found.append(HADAMARD if name == "MUL_MAT" and hint else kind)
    return found


def _check(case: Case, graph: int, first: int) -> None:
    """A case must compute what its name says."""
    found = operations(graph, first)
    assert case.operation in found, (case.operation, case.label, found)


def _rows(case: Case, data: bytes, rows: slice) -> Bits:
    """uint8[rows, bytes]: the output by rows of the operands."""
    width = rows.stop - rows.start
    bits: Bits = np.frombuffer(data, np.uint8).reshape(case.outer, case.cache or width, -1)
    if case.cells is not None:
        bits = bits[:, case.cells[rows]]
    by_rows: Bits = bits.swapaxes(0, 1).reshape(width, -1)
    return by_rows
