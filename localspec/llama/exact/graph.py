"""The graph of a pass, and which backend computes each of its nodes: asked of llama.cpp's scheduler, without a pass.

`ggml_backend_supports_op` would only say who could. A node that is supported can still go to another backend, and while
a context is being made no backend is offered attention. So the graph is built and split as for a pass: the scheduler
then says whom each node was assigned to.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from localspec.errors import ModelError
from localspec.llama.exact import wide
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.library.structs import Tensor

_POINTER, _TEXT, _U32 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32


HADAMARD = "HADAMARD"
"""Our name of a MUL_MAT that ggml computes as a fast Walsh-Hadamard transform of each row (its hint 1): rotations."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of a graph."""

    name: str
    """llama.cpp's name of the node, such as "ffn_moe_logits-0"; the number is the layer."""
    operation: str
    """ggml's name of the operation, such as "MUL_MAT", or `HADAMARD`."""
    backend: str
    """Device that computes the node: "wide", "CPU" or a GPU's name."""
    source: str
    """Name of the first operand, for products the weight."""
    source_type: str
    """Number format of the first operand."""


def nodes(handle: Handle, rows: int, sequences: int = 1, outputs: int | None = None) -> list[Node]:
    """The graph that a pass of this shape would run.

    The context must have no pass under way; it goes on as it was. Takes about 0.15 ms a layer.

    Args:
        handle: of a context.
        rows: tokens of the pass, over all slots; a multiple of `sequences`.
        sequences: slots of the context, which share the pass equally; llama.cpp ends the process over another number.
        outputs: rows with logits; None = all.

    Raises:
        ModelError: llama.cpp cannot build the graph, mostly for want of memory.
    """
    calls = _calls()
    assert handle.pointer is not None
    mark = lib.log.mark()
    lib.api().llama_synchronize(handle.pointer)
    with wide.switched(handle.wide_rows):
        graph = calls.reserve(handle.pointer, rows, sequences, rows if outputs is None else outputs)
        if not graph:
            reason = lib.log.reason(mark) or "it gave no reason"
            raise ModelError(f"llama.cpp cannot lay out a pass of {rows} rows: {reason}.", "Use a shorter context.")
        scheduler = calls.scheduler(handle.pointer)
        calls.split(scheduler, graph)
        try:
            return list(_nodes(calls, scheduler, graph))
        finally:
            calls.reset(scheduler)


def _nodes(calls: _Calls, scheduler: int, graph: int) -> Iterator[Node]:
    for index in range(calls.count(graph)):
        node = calls.node(graph, index)
        backend = calls.backend_of(scheduler, node)
        tensor = Tensor.from_address(node)
        source = tensor.src[0]
        kind = Tensor.from_address(source).type if source else 0
        operation = calls.operation(tensor.op).decode()
        yield Node(
            calls.name(node).decode("utf-8", "replace"),
            HADAMARD if operation == "MUL_MAT" and tensor.op_params[1] == 1 else operation,
            calls.backend_name(backend).decode() if backend else "",
            calls.name(source).decode("utf-8", "replace") if source else "",
            calls.type_name(kind).decode() if source else "",
        )


@dataclass(frozen=True, slots=True)
class _Calls:
    """Functions that llama.cpp exports and its Python package does not declare."""

    reserve: Any
    scheduler: Any
    split: Any
    backend_of: Any
    reset: Any
    count: Any
    node: Any
    name: Any
    operation: Any
    backend_name: Any
    type_name: Any


@functools.cache
def _calls() -> _Calls:
    find = lib.c_function
    return _Calls(
        find("_Z19llama_graph_reserveP13llama_contextjjj", _POINTER, _POINTER, _U32, _U32, _U32),
        find("_ZNK13llama_context9get_schedEv", _POINTER, _POINTER),
        find("ggml_backend_sched_split_graph", None, _POINTER, _POINTER),
        find("ggml_backend_sched_get_tensor_backend", _POINTER, _POINTER, _POINTER),
        find("ggml_backend_sched_reset", None, _POINTER),
        find("ggml_graph_n_nodes", ctypes.c_int, _POINTER),
        find("ggml_graph_node", _POINTER, _POINTER, ctypes.c_int),
        find("ggml_get_name", _TEXT, _POINTER),
        find("ggml_op_name", _TEXT, ctypes.c_int),
        find("ggml_backend_name", _TEXT, _POINTER),
        find("ggml_type_name", _TEXT, ctypes.c_int),
    )
