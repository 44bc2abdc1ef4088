"""How the target runs: whose kernels, which number format of the cache, and which widths are exact.

Nothing is compared and nothing is timed, as a rule. On a CPU our own kernels serve (native/wide), elsewhere those of
llama.cpp. A pass is a graph of operations. Our own matrix products and attention compute each row by the same
arithmetic at every width, and so does llama.cpp in most other operations: they are `PER_ROW`. A model all of whose
nodes are one or the other is exact at every width, by construction. llama.cpp's own products and attention choose their
kernels by the width, so one of them makes a model inexact; then `strict` examines real passes (see `widths`), which
takes minutes and is remembered.

Which backend computes each node is asked of llama.cpp's scheduler, without a pass. `ggml_backend_supports_op` would
only say who could. A node that is supported can still go to another backend, and while a context is being made no
backend is offered attention. So the graph is built and split as for a pass: the scheduler then says whom each node was
assigned to.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from localspec.config import LONGEST_DRAFT
from localspec.errors import ModelError, UsageError
from localspec.gguf import parts_of, split_of
from localspec.gguf.spread import BY_LAYER, Spread
from localspec.kept import NOWHERE, FactStore
from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.exact import wide
from localspec.llama.exact import widths as probing
from localspec.llama.exact.wide import ALL_KERNELS, DEFAULT_CACHE, KERNEL_WORDS, CacheFormat, Kernels
from localspec.llama.library import lib
from localspec.llama.library.handle import Handle
from localspec.llama.library.lib import GgmlTensor
from localspec.llama.library.settings import GPU_WIDTH, NO_TAP, ContextSettings, Tap
from localspec.llama.model import Model

HADAMARD = "HADAMARD"  # a MUL_MAT that ggml computes as a fast Walsh-Hadamard transform of each row (its hint 1)


@dataclass(frozen=True, slots=True)
class Node:
    name: str  # llama.cpp's name of the node, such as "ffn_moe_logits-0"; the number is the layer
    operation: str  # ggml's name of the operation, such as "MUL_MAT", or `HADAMARD`
    backend: str  # device that computes the node: "wide", "CPU" or a GPU's name
    source: str  # name of the first operand, for products the weight
    source_type: str  # number format of the first operand


def nodes(handle: Handle, rows: int, sequences: int = 1, outputs: int | None = None) -> list[Node]:
    """The graph that a pass of so many rows would run, over all slots (`sequences`: llama.cpp ends the process over
    another number), with logits of `outputs` rows (None = all). The context must have no pass under way; it goes on as
    it was. Takes about 0.15 ms a layer. Raises ModelError: llama.cpp cannot build it, mostly for want of memory."""
    assert handle.pointer is not None
    call, mark = lib.c_function, lib.log.mark()
    lib.api().llama_synchronize(handle.pointer)
    with wide.switched(handle.wide_rows):
        graph = call(lib.GRAPH_RESERVE)(handle.pointer, rows, sequences, rows if outputs is None else outputs)
        if not graph:
            reason = lib.log.reason(mark) or "it gave no reason"
            raise ModelError(f"llama.cpp cannot lay out a pass of {rows} rows: {reason}.", "Use a shorter context.")
        scheduler = call(lib.GET_SCHEDULER)(handle.pointer)
        call("ggml_backend_sched_split_graph")(scheduler, graph)
        try:
            count, node = call("ggml_graph_n_nodes")(graph), call("ggml_graph_node")
            return [_node(scheduler, node(graph, index)) for index in range(count)]
        finally:
            call("ggml_backend_sched_reset")(scheduler)


def _node(scheduler: int, address: int) -> Node:
    call, tensor = lib.c_function, GgmlTensor.from_address(address)
    backend, source = call("ggml_backend_sched_get_tensor_backend")(scheduler, address), tensor.src[0]
    name, operation = call("ggml_get_name"), call("ggml_op_name")(tensor.op).decode()
    return Node(
        name(address).decode("utf-8", "replace"),
        HADAMARD if operation == "MUL_MAT" and tensor.op_params[1] == 1 else operation,
        call("ggml_backend_name")(backend).decode() if backend else "",
        name(source).decode("utf-8", "replace") if source else "",
        call("ggml_type_name")(GgmlTensor.from_address(source).type).decode() if source else "",
    )


_WIDEST_PASS = 1 + LONGEST_DRAFT  # rows of the widest pass of one slot: the last token and the longest draft
WITHOUT_ARITHMETIC = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})  # only how it is read changes
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
    prefill: bool  # whether rows of prompt passes have these bits, too, so that a cache does not depend on its passes
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
    return Exactness(True, not reason, reason, sum(node.backend == wide.DEVICE_NAME for node in _computing(narrow)))


def of_file(path: Path, rollback: int = 0) -> Exactness | None:
    """What `by_construction` says of a GGUF file, for one slot on the CPU; None if nothing can be drafted for it,
    because its cache cannot be trimmed. Weights are not read; takes about 0.1 s."""
    if not wide.available():
        return Exactness(False, False, wide.status().reason)
    wide.turn_off_tiles()
    with Model.load(path, kernels="wide", weights=False) as model:
        context = Context(model, ContextSettings(n_ctx=512, rollback=rollback))
        return by_construction(context, _WIDEST_PASS) if context.most_nodes else None


def _computing(graph: Sequence[Node]) -> list[Node]:
    return [node for node in graph if node.operation not in WITHOUT_ARITHMETIC]


def _objection(narrow: Sequence[Node], graph: Sequence[Node]) -> str:
    """Why rows of this graph may have other bits than in the graph of one row; "" = they cannot."""
    for node in _computing(graph):
        # llama.cpp computes such experts by other arithmetic where one has many rows (see `wide`)
        tiled = node.operation == "MUL_MAT_ID" and wide.TILED_TYPES.fullmatch(node.source_type) and wide.tiles_in_use()
        per_row = node.backend == "CPU" and node.operation in PER_ROW and not tiled
        if node.backend != wide.DEVICE_NAME and not per_row:
            words = f"the operation {node.operation} ({node.name})"
            if node.operation in ("MUL_MAT", "MUL_MAT_ID"):
                words = f"the product {node.name} ({node.source_type})"
            elif node.operation == "FLASH_ATTN_EXT":
                words = f"the attention {node.name}"
            return f"{words} is {'llama.cpp' if node.backend == 'CPU' else node.backend}'s"

    def shape(graph: Sequence[Node]) -> list[tuple[str, str]]:
        """Wider passes of recurrent layers copy more states, and llama.cpp numbers its nodes."""
        computed = [node for node in _computing(graph) if node.operation != "CPY"]
        return [(node.operation, re.sub(r"node_\d+", "node", node.source)) for node in computed]

    return "" if shape(graph) == shape(narrow) else "the graph of one row is another"


Mode = Literal["auto", "strict", "off"]
Progress = Callable[[str, float], None]  # (what is being done, share done from 0 to 1); may raise to give up

_EXAMINATION_SECONDS = 600.0  # seconds that `strict` may take to examine a model of which nothing is proved
MOST_PADDED_COST = 1.1
"""Highest cost, in plain passes, of one of `GPU_WIDTH` rows at which `auto` runs these on a GPU (issue 49)."""
_SELF_CHECK_SECONDS = 0.5  # seconds that the self-check of our kernels may take before the first answer under `strict`


_TREES_VERSION = 2  # version of the trees that `widths` examines: results of another version do not count


@dataclass(slots=True)
class LoadedTarget:
    model: Model
    context: Context
    configuration: str  # whose kernels, and which cache, in words
    proof: Exactness  # what the graphs of the target's passes prove about widths and prompts
    description: str  # the configuration in words, whether it is exact, and why
    self_check: wide.SelfCheck | None = None  # self-check of our kernels, if they compute the target's passes


def choose(
    path: str | Path,
    settings: ContextSettings,
    *,
    exact: Mode = "auto",
    kernels: Kernels | None = None,
    cache: CacheFormat = DEFAULT_CACHE,
    widest: int = probing.WIDEST_PROBED,
    gpu_layers: int = 0,
    device: str | None = None,
    spread: Spread = BY_LAYER,
    padded: float | None = None,
    facts: FactStore = NOWHERE,
    progress: Progress | None = None,
    tap: Tap = NO_TAP,
    otherwise: ContextSettings | None = None,
) -> LoadedTarget:
    """Loads a target. Raises ModelError: "strict", and the model could not be examined in ten minutes; UsageError:
    `exact` or `kernels` is none of those that there are; or what `Model.load` and `Context` raise.

    Args:
        settings: of the context; its cache types and flash attention are those of `cache`.
        exact: "auto" = exact where that follows from the graph; "strict" = exact in any case, which may need an
            examination; "off" = nothing is claimed.
        kernels: who computes passes on the CPU; None = ours where they can be used, else llama.cpp's.
        widest: widest pass the engine will ask for (1 + most draft nodes, over all slots).
        gpu_layers, device, spread: as in `Model.load`.
        padded: how many times as long as a plain pass one of `GPU_WIDTH` rows took on this GPU; None = not known.
        facts: where what is examined is kept.
        tap: hidden states that the context hands out; they change no bit.
        otherwise: settings of the context where its cache depends on how prompts are cut; None = the same.
    """
    if exact not in ("auto", "strict", "off"):
        raise UsageError(f"exact is {exact!r}; it must be auto, strict or off.")
    if kernels is not None and kernels not in ALL_KERNELS:
        raise UsageError(f"kernels is {kernels!r}; it must be one of {', '.join(ALL_KERNELS)}.")
    served, check = kernels or usual_kernels(gpu_layers), None
    if served == "wide":
        check = wide.SelfCheck(facts, settings.threads)
        if exact == "strict":
            check.run(_SELF_CHECK_SECONDS)
        served = kernels or ("repacked" if check.fault else served)
    configuration, report = f"{cache.name}, {KERNEL_WORDS[served]}", progress or (lambda what, share: None)
    model = load(path, served, gpu_layers, device, spread, nextn=tap.nextn, progress=report)
    try:
        context = _context(model, cache.apply(settings), exact, padded, facts, tap)
        proof = _proof(context, widest, check)
        if otherwise is not None and not proof.prefill:
            context.close()
            context = _context(model, cache.apply(otherwise), exact, padded, facts, tap)
            proof = _proof(context, widest, check)
        why = _settle(context, proof, exact, padded, lambda: _examined(context, widest, facts, report))
    except BaseException:
        model.close()
        raise
    word = "inexact" if context.exact_widths is None else "exact"
    used = check if served == "wide" else None
    return LoadedTarget(model, context, configuration, proof, f"{word}: {configuration} ({why})", used)


def _settle(
    context: Context, proof: Exactness, exact: Mode, padded: float | None, examined: Callable[[], frozenset[int]]
) -> str:
    """Sets the exact widths of the context and what of its cache counts; why these, in words."""
    if proof.prefill:
        context.reuse_all()
    if isinstance(context, ConstantWidth):
        context.exact_widths = frozenset(range(1, 1 + context.width))  # as many rows as count
        cost = "" if padded is None else f", which take {padded:.2f} times as long as plain ones"
        return f"all passes have {context.width} rows{cost}"
    if exact == "strict" and not proof.widths and context.most_nodes:
        context.exact_widths = examined()
        return "bits of real passes were compared"
    if exact != "off" and (proof.widths or not context.most_nodes):
        context.exact_widths = frozenset(range(1, 1 + (context.settings.max_rows if context.most_nodes else 1)))
        context.watch = wide.StepWatch(proof.steps) if proof.widths else None
    if not context.most_nodes:
        return "its state cannot be trimmed, so nothing is drafted"
    if exact == "off":
        return "exactness is off"
    known = proof.widths or not context.model.gpu_layers or padded is None
    return str(proof) if known else f"{proof}; passes of {GPU_WIDTH} rows take {padded:.2f} times as long as plain ones"


def _context(
    model: Model, settings: ContextSettings, exact: Mode, padded: float | None, facts: FactStore, tap: Tap
) -> Context:
    """On a GPU passes have one width under `strict`, and under `auto` with one slot and without trees if that costs
    little. Raises ModelError: "strict", and rows differ even so."""
    alone = settings.n_slots == 1 and settings.max_leaves == 1
    cheap = exact == "auto" and alone and padded is not None and padded <= MOST_PADDED_COST
    if not (exact == "strict" or cheap) or not model.gpu_layers or not model.can_trim:
        return Context(model, settings, tap=tap)
    chains = replace(settings, max_leaves=1, reuse="chunks", n_ctx=settings.n_ctx + GPU_WIDTH - 1)
    context = ConstantWidth(model, chains, GPU_WIDTH, tap)

    def compared() -> frozenset[int]:
        return frozenset({1, GPU_WIDTH} if context.same_bits() else {1})

    if len(compared() if exact == "strict" else _remembered(context, GPU_WIDTH, facts, compared)) > 1:
        return context
    context.close()
    if exact == "strict":
        raise ModelError(
            f"Rows of {model.path.name} differ on this GPU even in passes of one width.", "--gpu-layers 0 is exact."
        )
    return Context(model, settings, tap=tap)


def _proof(context: Context, widest: int, check: wide.SelfCheck | None) -> Exactness:
    if check is not None and check.fault and context.model.kernels == "wide":
        return Exactness(False, False, f"localspec's kernels compute {check.fault} differently at some widths")
    return by_construction(context, widest)


def usual_kernels(gpu_layers: int = 0) -> Kernels:
    """Ours for models on the CPU, where they can be used; else llama.cpp's, with weights reordered for speed."""
    return "wide" if gpu_layers == 0 and wide.available() else "repacked"


def kernels_beside(target: Model, gpu_layers: int = 0) -> Kernels:
    """Kernels of a draft model: ours if the target uses them, else llama.cpp's."""
    return usual_kernels(gpu_layers) if target.kernels == "wide" else "repacked"


def load(
    path: str | Path,
    kernels: Kernels,
    gpu_layers: int = 0,
    device: str | None = None,
    spread: Spread = BY_LAYER,
    *,
    nextn: bool = False,
    progress: Progress | None = None,
    role: str = "target",
) -> Model:
    """`Model.load`, telling `progress` what is loaded; `role` names it there."""
    if kernels == "wide":
        wide.turn_off_tiles()
    named = split_of(Path(path).name).stem if role == "target" else f"the {role} {split_of(Path(path).name).stem}"
    size = sum(part.stat().st_size for part in parts_of(Path(path)) if part.exists())
    what = f"loading {named}, {size / 1e9:.1f} GB" if size >= 1e9 else f"loading {named}, {size / 1e6:.0f} MB"

    def reported(share: float) -> bool:
        if progress is not None:
            progress(what, share)
        return True

    return Model.load(
        path, gpu_layers=gpu_layers, device=device, spread=spread, kernels=kernels, nextn=nextn, progress=reported
    )


def key(context: Context, widest: int) -> dict[str, Any]:
    """What exact widths depend on: every fact that can change bits."""
    model, settings = context.model, context.settings
    return {
        **wide.shared_facts(model.path, settings, model.gpu_layers, model.device, model.spread),
        "kernels": wide.kernels_id(model.kernels),
        "cache": [settings.type_k, settings.type_v, str(settings.flash_attention), True],  # beside its layers
        "shape": [settings.n_ctx, settings.n_slots, settings.max_leaves, settings.grid, widest],
        **({"trees": _TREES_VERSION} if settings.max_leaves > 1 else {}),
    }


def _remembered(
    context: Context, widest: int, facts: FactStore, compared: Callable[[], frozenset[int]]
) -> frozenset[int]:
    """Exact widths of such a context, `compared` now or at an earlier start."""

    def read(data: Any) -> frozenset[int]:
        found = frozenset(int(width) for width in data["exact"])
        if 1 not in found:
            raise ValueError("width 1 is always exact")
        return found

    about = key(context, widest)
    known = facts.read("widths", about, read)
    if known is None:
        known = compared()
        facts.write("widths", about, {"exact": sorted(known)})
    return known


def _examined(context: Context, widest: int, facts: FactStore, report: Progress) -> frozenset[int]:
    """Exact widths, found by comparing the bits of real passes, now or at an earlier start."""
    model, settings = context.model, context.settings
    widest = max(probing.WIDEST_PROBED, min(widest, 1 + context.most_nodes))
    started = time.monotonic()

    def reported(share: float) -> None:
        spent = time.monotonic() - started
        left = f", about {spent * (1 - share) / share:.0f} s left" if share else ""
        report(f"checking bits{left}", share)

    def compared() -> frozenset[int]:
        found = probing.examine(model, settings, widest=widest, budget=_EXAMINATION_SECONDS, progress=reported)
        if found is None:
            raise ModelError(
                f"{model.path.name} could not be shown to be exact here in {_EXAMINATION_SECONDS / 60:.0f} minutes.",
                "Use --exact auto.",
            )
        return found

    return _remembered(context, widest, facts, compared)
