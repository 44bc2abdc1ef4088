"""What is exact by construction: whether a row's bits can depend on how many rows its pass has.

A pass is a graph of operations. Our own matrix products and attention (native/wide) compute each row by the same
arithmetic whatever the width, and so does llama.cpp in most other operations: they are `PER_ROW`. A model all of whose
nodes are one or the other is exact at every width, and needs no probe. llama.cpp's own products and attention choose
their kernels by the width, so one of them makes a model inexact. Nothing is computed to find this out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localspec.config import LONGEST_DRAFT
from localspec.llama.cache.context import Context
from localspec.llama.exact import tiles, wide
from localspec.llama.exact.graph import HADAMARD, Node, nodes
from localspec.llama.exact.wide import DEVICE_NAME
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model

_WIDEST_PASS = 1 + LONGEST_DRAFT
"""Rows of the widest pass of one slot: the last token and the longest draft."""
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

    widths: bool
    """Whether rows have the bits of one-row passes at every width."""
    prefill: bool
    """Whether rows of prompt passes have these bits, too, so that a cache does not depend on its passes."""
    reason: str
    """The first node that speaks against `widths`, or else against `prefill`, in words; "" if none does."""
    steps: int = field(default=0, compare=False)
    """Products and attentions of a pass that our library computes."""

    def __str__(self) -> str:
        if not self.widths:
            return self.reason
        chunks = f"; prompts are reused in whole chunks, since {self.reason}" if self.reason else ""
        return f"every width, by construction{chunks}"


def by_construction(context: Context, widest: int) -> Exactness:
    """Looks at the graphs of the passes that this context will run, all slots at work.

    Fewer slots make the same graph with fewer streams.

    Args:
        context: with the slots, leaves and taps in use; no pass may be under way.
        widest: rows of the widest pass that decodes, over all slots.

    Raises:
        ModelError: llama.cpp has no memory for one of these passes.
    """
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
    """What `by_construction` says of a file, for one slot on the CPU. Weights are not read; takes about 0.1 s.

    Args:
        path: a GGUF file.
        rollback: see `ContextSettings`.

    Returns:
        None if nothing can be drafted for it, because its cache cannot be trimmed.

    Raises:
        ModelFileError: llama.cpp cannot load the file.
        ModelError: it cannot lay out a pass.
    """
    if not wide.available():
        return Exactness(False, False, wide.status().reason)
    tiles.turn_off()
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
        per_row = node.backend == "CPU" and node.operation in PER_ROW and not _is_tiled(node)
        if not (ours or node.operation in WITHOUT_ARITHMETIC or per_row):
            yield node


def _is_tiled(node: Node) -> bool:
    """Whether llama.cpp computes these experts by other arithmetic where one has many rows (see `tiles`)."""
    return node.operation == "MUL_MAT_ID" and bool(tiles.TILED_TYPES.fullmatch(node.source_type)) and tiles.in_use()


def _in_words(node: Node) -> str:
    """Such as "the product ffn_moe_logits-0 (f32)"."""
    if node.operation in ("MUL_MAT", "MUL_MAT_ID"):
        return f"the product {node.name} ({node.source_type})"
    if node.operation == "FLASH_ATTN_EXT":
        return f"the attention {node.name}"
    return f"the operation {node.operation} ({node.name})"
