"""What is exact by construction: whether a row's bits can depend on how many rows its pass has.

A pass is a graph of operations. Our own matrix products and attention (native/wide) compute each row by the same
arithmetic whatever the width, and so does llama.cpp in most other operations: they are `PER_ROW`. A model all of whose
nodes are one or the other is exact at every width, and needs no probe. llama.cpp's own products and attention choose
their kernels by the width, so one of them makes a model inexact. Nothing is computed to find this out.

Which backend computes each node is asked of llama.cpp's scheduler, without a pass. `ggml_backend_supports_op` would
only say who could. A node that is supported can still go to another backend, and while a context is being made no
backend is offered attention. So the graph is built and split as for a pass: the scheduler then says whom each node was
assigned to.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from localspec.config import LONGEST_DRAFT
from localspec.errors import ModelError
from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.exact.wide import DEVICE_NAME
from localspec.llama.library import lib
from localspec.llama.library.bindings import Tensor
from localspec.llama.library.handle import Handle
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model

_POINTER, _TEXT, _U32 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32


HADAMARD = "HADAMARD"
"""Our name of a MUL_MAT that ggml computes as a fast Walsh-Hadamard transform of each row (its hint 1): rotations."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of a graph."""

    name: str  # llama.cpp's name of the node, such as "ffn_moe_logits-0"; the number is the layer
    operation: str  # ggml's name of the operation, such as "MUL_MAT", or `HADAMARD`
    backend: str  # device that computes the node: "wide", "CPU" or a GPU's name
    source: str  # name of the first operand, for products the weight
    source_type: str  # number format of the first operand


def nodes(handle: Handle, rows: int, sequences: int = 1, outputs: int | None = None) -> list[Node]:
    """The graph that a pass of this shape would run. The context must have no pass under way; it goes on as it was.
    Takes about 0.15 ms a layer.

    Args:
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


def _nodes(calls: SimpleNamespace, scheduler: int, graph: int) -> Iterator[Node]:
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


@functools.cache
def _calls() -> SimpleNamespace:
    """Functions that llama.cpp exports and its Python package does not declare."""
    find = lib.c_function
    return SimpleNamespace(
        reserve=find("_Z19llama_graph_reserveP13llama_contextjjj", _POINTER, _POINTER, _U32, _U32, _U32),
        scheduler=find("_ZNK13llama_context9get_schedEv", _POINTER, _POINTER),
        split=find("ggml_backend_sched_split_graph", None, _POINTER, _POINTER),
        backend_of=find("ggml_backend_sched_get_tensor_backend", _POINTER, _POINTER, _POINTER),
        reset=find("ggml_backend_sched_reset", None, _POINTER),
        count=find("ggml_graph_n_nodes", ctypes.c_int, _POINTER),
        node=find("ggml_graph_node", _POINTER, _POINTER, ctypes.c_int),
        name=find("ggml_get_name", _TEXT, _POINTER),
        operation=find("ggml_op_name", _TEXT, ctypes.c_int),
        backend_name=find("ggml_backend_name", _TEXT, _POINTER),
        type_name=find("ggml_type_name", _TEXT, ctypes.c_int),
    )


_WIDEST_PASS = 1 + LONGEST_DRAFT  # rows of the widest pass of one slot: the last token and the longest draft
WITHOUT_ARITHMETIC = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
"""Operations that only change how a tensor is read."""
PER_ROW = frozenset(
    {
        *("ADD", "ADD_ID", "SUB", "MUL", "DIV", "SCALE", "SQR", "SQRT", "CLAMP", "FILL", "UNARY", "GLU"),
        *("NORM", "RMS_NORM", "L2_NORM", "SOFT_MAX", "SUM_ROWS", "MEAN", "ROPE", "ROPE_BACK"),
        *("GET_ROWS", "SET_ROWS", "CPY", "CONT", "CONCAT", "REPEAT", "ARGSORT", "TOP_K"),
        *("MUL_MAT_ID", "SSM_CONV", "SSM_SCAN", "GATED_DELTA_NET", "RWKV_WKV6", "RWKV_WKV7"),
        *(HADAMARD, "LIGHTNING_INDEXER", "DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST"),
    }
)
"""Operations of which the pinned llama.cpp computes each row by itself on the CPU, by the same arithmetic at every
width. tests/llama/test_per_row.py tries each. An operation that is not here makes a model inexact."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """What is known of a context without computing anything."""

    widths: bool  # whether rows have the bits of one-row passes at every width
    prefill: bool
    """Whether rows of prompt passes have these bits, too, so that a cache does not depend on its passes."""
    reason: str  # the first node that speaks against `widths`, or else against `prefill`, in words; "" if none does
    steps: int = field(default=0, compare=False)  # products and attentions of a pass that our library computes

    def __str__(self) -> str:
        if not self.widths:
            return self.reason
        chunks = f"; prompts are reused in whole chunks, since {self.reason}" if self.reason else ""
        return f"every width, by construction{chunks}"


def by_construction(context: Context, widest: int) -> Exactness:
    """Looks at the graphs of the passes that this context will run with its slots, leaves and taps, up to `widest`
    rows, all slots at work; fewer make the same graph with fewer streams. No pass may be under way."""
    slots = context.settings.n_slots
    narrow = nodes(context.handle, slots, slots)
    reason = _objection(narrow, narrow)
    for each in (2, max(2, widest // slots)):
        reason = reason or _objection(narrow, nodes(context.handle, slots * each, slots))
    if reason:
        return Exactness(False, False, reason)
    chunk = -(-context.settings.grid // slots) * slots
    reason = _objection(narrow, nodes(context.handle, chunk, slots, outputs=slots))
    ours = sum(node.backend == DEVICE_NAME and node.operation not in WITHOUT_ARITHMETIC for node in narrow)
    return Exactness(True, not reason, reason, ours)


def of_file(path: Path, rollback: int = 0) -> Exactness | None:
    """What `by_construction` says of a GGUF file, for one slot on the CPU; None if nothing can be drafted for it,
    because its cache cannot be trimmed. Weights are not read; takes about 0.1 s."""
    if not wide.available():
        return Exactness(False, False, wide.status().reason)
    wide.turn_off_tiles()
    with Model.load(path, kernels="wide", weights=False) as model:
        context = Context(model, ContextSettings(n_ctx=512, rollback=rollback))
        try:
            return by_construction(context, _WIDEST_PASS) if context.most_nodes else None
        finally:
            context.close()


def _objection(narrow: Sequence[Node], graph: Sequence[Node]) -> str:
    """Why rows of this graph may have other bits than in the graph of one row; "" = they cannot."""
    found = next(_inexact(graph), None)
    if found is not None:
        return f"{_in_words(found)} is {'llama.cpp' if found.backend == 'CPU' else found.backend}'s"
    if _computed(graph) != _computed(narrow):
        return "the graph of one row is another"
    return ""


def _computed(graph: Sequence[Node]) -> list[tuple[str, str]]:
    """What a graph computes. Wider passes of recurrent layers copy more states, and llama.cpp numbers its nodes."""
    nodes = [node for node in graph if node.operation not in WITHOUT_ARITHMETIC | {"CPY"}]
    return [(node.operation, re.sub(r"node_\d+", "node", node.source)) for node in nodes]


def _inexact(graph: Sequence[Node]) -> Iterator[Node]:
    for node in graph:
        ours = node.backend == DEVICE_NAME
        # llama.cpp computes such experts by other arithmetic where one has many rows (see `wide`)
        tiled = node.operation == "MUL_MAT_ID" and wide.TILED_TYPES.fullmatch(node.source_type) and wide.tiles_in_use()
        per_row = node.backend == "CPU" and node.operation in PER_ROW and not tiled
        if not (ours or node.operation in WITHOUT_ARITHMETIC or per_row):
            yield node


def _in_words(node: Node) -> str:
    """Such as "the product ffn_moe_logits-0 (f32)"."""
    if node.operation in ("MUL_MAT", "MUL_MAT_ID"):
        return f"the product {node.name} ({node.source_type})"
    if node.operation == "FLASH_ATTN_EXT":
        return f"the attention {node.name}"
    return f"the operation {node.operation} ({node.name})"
