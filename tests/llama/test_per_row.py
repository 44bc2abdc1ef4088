"""llama.cpp's CPU backend computes each row of the operations in PER_ROW by itself, whatever the width of the pass."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from localspec.gguf import TYPE_NUMBERS
from localspec.llama.exact.choice import HADAMARD, PER_ROW, WITHOUT_ARITHMETIC
from tests.llama.ggml_graph import BF16, FORMATS, GLU, UNARY, Case, Cpu, Graph, Operand, call, quantised
from tests.native.wide.ggml import F16, F32, Q8_0, q8_0

WIDTHS = (1, 2, 3, 4, 8, 16, 17, 33, 130)
THREADS = (1, 2, 3, 4)
ROWS = max(WIDTHS)
COMPARED = 33
"""The last rows, of which one-row passes are computed."""
SIZES = (64, 100, 128, 256)
"""Columns of a row. 100 is no multiple of a vector."""
CELLS = 160
"""Rows of a cache."""
HEADS = 4

RECURRENT = frozenset({"SSM_SCAN", "GATED_DELTA_NET", "RWKV_WKV6", "RWKV_WKV7"})
"""Operations with a state; tests/llama/test_recurrent.py has them."""

_rng = np.random.default_rng(5)


def tokens(columns: int, *between: int, scale: float = 3.0) -> Operand:
    """float32[rows, *between, columns] random values."""
    return Operand((scale * _rng.standard_normal((ROWS, *between, columns))).astype(np.float32), 0)


def positive(columns: int) -> Operand:
    return Operand(np.abs(tokens(columns).values) + np.float32(0.01), 0)


def fixed(*shape: int) -> Operand:
    """float32 random values that every pass gets all of."""
    return Operand(_rng.standard_normal(shape).astype(np.float32))


def numbers(below: int, *shape: int) -> Operand:
    """int32[rows, *shape] random numbers."""
    return Operand(_rng.integers(0, below, (ROWS, *shape)).astype(np.int32), 0)


def attention(columns: int) -> Operand:
    """float32[heads, rows, columns]: what attention computes before it is put together."""
    return Operand((3 * _rng.standard_normal((HEADS, ROWS, columns))).astype(np.float32), 1)


def function(name: str, *arguments: Any) -> Callable[..., int]:
    """Builds this function of its operands."""
    return lambda graph, *operands: graph(name, *operands, *arguments)


def each_size(operation: str, label: str, build: Callable[..., int], *between: int) -> Iterator[Case]:
    for columns in SIZES:
        yield Case(operation, f"{label} of {columns}", build, (tokens(columns, *between),))


def part(graph: Graph, values: int, skip: int = 0) -> int:
    """float32[rows, 100] out of values of 256 columns, such as the keys among queries, keys and values."""
    return graph("view_2d", values, 100, graph.width, 4 * 256, 4 * skip)


def binary(operation: str) -> Iterator[Case]:
    """ADD, SUB, MUL and DIV."""
    build = function(operation.lower())

    def experts(graph: Graph, values: int) -> int:
        """As where the outputs of experts are summed."""
        pieces = [graph("view_2d", values, 100, graph.width, 4 * 100 * HEADS, 4 * 100 * at) for at in (0, 2)]
        return graph(operation.lower(), *pieces)

    for columns in SIZES:
        yield Case(operation, f"rows of {columns}", build, (tokens(columns), tokens(columns)))
        yield Case(operation, f"a vector of {columns}", build, (tokens(columns), fixed(columns)))
    yield Case(operation, "one value per head", build, (tokens(100, HEADS), tokens(1, HEADS)))
    yield Case(operation, "one vector for all heads", build, (tokens(100, HEADS), fixed(100)))
    yield Case(operation, "one value", build, (tokens(100), fixed(1)))
    yield Case(operation, "views", experts, (tokens(100, HEADS),))


def add_id() -> Iterator[Case]:
    for columns in SIZES:
        operands = (tokens(columns, HEADS), fixed(8, columns), numbers(8, HEADS))
        yield Case("ADD_ID", f"biases of experts of {columns}", function("add_id"), operands)


def scale() -> Iterator[Case]:
    yield from each_size("SCALE", "by a factor", function("scale", 0.3))
    yield from each_size("SCALE", "with a bias", function("scale_bias", 0.3, -1.7))


def clamp() -> Iterator[Case]:
    yield from each_size("CLAMP", "both ends", function("clamp", -1.5, 2.5))
    yield from each_size("CLAMP", "one end", function("clamp", 6.1e-5, float("inf")), HEADS)


def root() -> Iterator[Case]:
    for columns in SIZES:
        yield Case("SQRT", f"rows of {columns}", function("sqrt"), (positive(columns),))


def unary() -> Iterator[Case]:
    for number, kind in enumerate(UNARY):
        assert call("unary_op_name", number).decode() == kind
        build = function("xielu", 0.8, 0.8, 0.5, -1e-6) if kind == "XIELU" else function("unary", number)
        yield from each_size("UNARY", kind, build)
        yield Case("UNARY", f"{kind} of experts", build, (tokens(100, HEADS),))


def glu() -> Iterator[Case]:
    for number, kind in enumerate(GLU):
        assert call("glu_op_name", number).decode() == kind
        build = function("glu_split", number)
        if kind == "SWIGLU_OAI":
            build = function("swiglu_oai", 1.702, 7.0)
        elif kind == "SWIGLU_CLAMP":
            build = function("swiglu_clamp", 4.0)
        for columns in SIZES:
            yield Case("GLU", f"{kind} of {columns}", build, (tokens(columns), tokens(columns)))
        yield Case("GLU", f"{kind} of experts", build, (tokens(100, HEADS), tokens(100, HEADS)))
        if kind not in ("SWIGLU_OAI", "SWIGLU_CLAMP"):
            yield from each_size("GLU", f"{kind} of halves", function("glu", number, False))
            yield from each_size("GLU", f"{kind} of swapped halves", function("glu", number, True))


def norm(operation: str) -> Iterator[Case]:
    """NORM, RMS_NORM and L2_NORM."""
    name = operation.lower()

    def weighted(graph: Graph, values: int, weight: int) -> int:
        """llama.cpp computes an RMS_NORM and its weights in one go."""
        return graph("mul", graph(name, values, 1e-5), weight)

    yield from each_size(operation, "rows", function(name, 1e-5))
    yield from each_size(operation, "heads", function(name, 1e-5), HEADS)
    for columns in SIZES:
        yield Case(operation, f"rows of {columns} by weights", weighted, (tokens(columns), fixed(columns)))
        yield Case(operation, f"heads of {columns} by weights", weighted, (tokens(columns, HEADS), fixed(columns)))
    yield Case(operation, "a view", lambda graph, x: graph(name, part(graph, x, 20), 1e-6), (tokens(256),))


def soft_max() -> Iterator[Case]:
    def plain(graph: Graph, values: int) -> int:
        return graph("soft_max_ext", values, None, 1.0, 0.0)

    def with_sinks(graph: Graph, values: int, mask: int, sinks: int) -> int:
        made = graph("soft_max_ext", values, mask, 0.1, 0.0)
        call("soft_max_add_sinks", made, sinks)
        return made

    yield from each_size("SOFT_MAX", "experts", plain)
    yield Case("SOFT_MAX", "few experts", plain, (tokens(5),))
    for columns in SIZES:
        x = attention(columns)
        hidden = _rng.random((ROWS, columns)) < 0.3
        hidden[:, 0] = False
        masks = [Operand(np.where(hidden, -np.inf, 0).astype(kind), 0) for kind in (np.float32, np.float16)]
        for bias in (0.0, 8.0):
            build = function("soft_max_ext", 0.125, bias)
            for mask in masks:
                label = f"{columns} cells, {mask.values.dtype} mask, bias {bias}"
                yield Case("SOFT_MAX", label, build, (x, mask), outer=HEADS)
        yield Case("SOFT_MAX", f"{columns} cells, sinks", with_sinks, (x, masks[0], fixed(HEADS)), outer=HEADS)


def sums(operation: str) -> Iterator[Case]:
    """SUM_ROWS and MEAN."""
    name = operation.lower()
    yield from each_size(operation, "rows", function(name))
    yield from each_size(operation, "heads", function(name), HEADS)
    yield Case(operation, "few experts", function(name), (tokens(6),))


def rope() -> Iterator[Case]:
    """Modes 0 (neighbours), 2 (halves), and 8 and 40 (several positions per token)."""
    sections = (ctypes.c_int * 4)(16, 12, 12, 0)
    positions = numbers(3000)
    several = Operand(_rng.integers(0, 3000, (4, ROWS)).astype(np.int32), 1)
    plain, yarn = (10000.0, 1.0, 0.0, 1.0, 32.0, 1.0), (10000.0, 0.25, 1.0, 1.1, 32.0, 1.0)

    def factored(mode: int, turned: int) -> Callable[..., int]:
        return lambda graph, x, at, factors: graph("rope_ext", x, at, factors, turned, mode, 4096, *plain)

    def multiple(mode: int) -> Callable[..., int]:
        def build(graph: Graph, x: int, at: int) -> int:
            flat = graph("reshape_1d", at, 4 * graph.width)
            return graph("rope_multi", x, flat, None, 128, sections, mode, 4096, *plain)

        return build

    def of_a_view(mode: int) -> Callable[..., int]:
        def build(graph: Graph, x: int, at: int) -> int:
            keys = graph("view_3d", x, 64, 2, graph.width, 4 * 64, 4 * 64 * HEADS, 4 * 64)
            return graph("rope_ext", keys, at, None, 64, mode, 4096, *plain)

        return build

    for mode in (0, 2):
        for columns, turned in ((64, 64), (100, 100), (100, 50), (128, 128), (256, 64)):
            x = tokens(columns, HEADS)
            label = f"mode {mode}, {turned} of {columns}"
            for kind, numeric in (("plain", plain), ("stretched", yarn)):
                build = function("rope_ext", None, turned, mode, 4096, *numeric)
                yield Case("ROPE", f"{label}, {kind}", build, (x, positions))
            factors = Operand(_rng.uniform(1, 8, turned // 2).astype(np.float32))
            yield Case("ROPE", f"{label}, factors", factored(mode, turned), (x, positions, factors))
        yield Case("ROPE", f"mode {mode}, a view", of_a_view(mode), (tokens(64, HEADS), positions))
    for mode in (8, 40):
        yield Case("ROPE", f"mode {mode}", multiple(mode), (tokens(128, HEADS), several))


def rope_back() -> Iterator[Case]:
    """As where attention's result is turned back to position 0."""
    plain = (10000.0, 1.0, 0.0, 1.0, 32.0, 1.0)
    for mode in (0, 2):
        for columns, turned in ((64, 64), (128, 64)):
            build = function("rope_ext_back", None, turned, mode, 4096, *plain)
            operands = (tokens(columns, HEADS), numbers(3000))
            yield Case("ROPE_BACK", f"mode {mode}, {turned} of {columns}", build, operands)


def matrices(rows: int, columns: int) -> Iterator[Operand]:
    """A matrix in each number format of a cache."""
    values = fixed(rows, columns).values
    yield Operand(values)
    yield Operand(values.astype(np.float16))
    yield Operand((values.view(np.uint32) >> 16).astype(np.uint16))
    if columns % 32 == 0:
        blocks, _ = q8_0(_rng, columns, rows)
        yield Operand(np.frombuffer(blocks, np.uint8).reshape(rows, -1))


def get_rows() -> Iterator[Case]:
    def of_experts(graph: Graph, weights: int, chosen: int) -> int:
        return graph("get_rows", graph("reshape_3d", weights, 1, 8, graph.width), chosen)

    for columns in SIZES:
        for matrix in matrices(CELLS, columns):
            label = f"{matrix.values.dtype} of {columns}"
            yield Case("GET_ROWS", label, function("get_rows"), (matrix, numbers(CELLS)))
    yield Case("GET_ROWS", "weights of experts", of_experts, (tokens(8), numbers(8, 3)))


def set_rows() -> Iterator[Case]:
    """Into caches of keys and values, and into one of values that lies transposed."""
    cells = _rng.permutation(CELLS)[:ROWS]
    where = Operand(cells.astype(np.int64), 0)

    def plain(graph: Graph, x: int, at: int, cache: int) -> int:
        return graph("set_rows", cache, x, at)

    def transposed(graph: Graph, x: int, at: int, cache: int) -> int:
        count = 100 * graph.width
        flat = graph("reshape_2d", cache, 1, 100 * CELLS)
        return graph("set_rows", flat, graph("reshape_2d", x, 1, count), graph("reshape_1d", at, count))

    for columns in SIZES:
        for cache in matrices(CELLS, columns):
            label = f"{cache.values.dtype} of {columns}"
            operands = (tokens(columns), where, cache)
            yield Case("SET_ROWS", label, plain, operands, cells=cells.tolist(), cache=CELLS)
    spread = Operand(cells[:, None] + np.arange(100, dtype=np.int64) * CELLS, 0)
    for cache in list(matrices(100, CELLS))[:3]:
        label = f"{cache.values.dtype}, transposed"
        operands = (tokens(100), spread, cache)
        yield Case("SET_ROWS", label, transposed, operands, outer=100, cells=cells.tolist(), cache=CELLS)


def copy() -> Iterator[Case]:
    def into_cache(graph: Graph, x: int, cache: int) -> int:
        return graph("cpy", x, graph("view_2d", cache, 100, graph.width, 2 * 100, 2 * 100 * 5))

    def gathered(graph: Graph, x: int) -> int:
        return graph("cast", graph("permute", x, 0, 2, 1, 3), F16)

    def widened(graph: Graph, x: int) -> int:
        return graph("cast", graph("cast", x, F16), F32)

    for columns in SIZES:
        for kind in (F32, F16, BF16, *([Q8_0] if columns % 32 == 0 else [])):
            yield Case("CPY", f"{columns} to type {kind}", function("cast", kind), (tokens(columns),))
        yield Case("CPY", f"{columns} to F16 and back", widened, (tokens(columns),))
        yield Case("CPY", f"heads of {columns} to F16", gathered, (tokens(columns, HEADS),), outer=HEADS)
    half = Operand(np.zeros((CELLS, 100), np.float16))
    yield Case("CPY", "into an F16 cache", into_cache, (tokens(100), half))
    yield Case("CPY", "a view to F16", lambda graph, x: graph("cast", part(graph, x, 20), F16), (tokens(256),))


def cont() -> Iterator[Case]:
    def joined(columns: int) -> Callable[..., int]:
        return lambda graph, x: graph("cont_2d", graph("permute", x, 0, 2, 1, 3), HEADS * columns, graph.width)

    def turned(graph: Graph, x: int) -> int:
        return graph("cont", graph("transpose", x))

    def swapped(graph: Graph, x: int) -> int:
        return graph("cont", graph("permute", x, 0, 2, 1, 3))

    for columns in SIZES:
        yield Case("CONT", f"attention of {columns}", joined(columns), (attention(columns),))
        yield Case("CONT", f"heads of {columns}", swapped, (tokens(columns, HEADS),), outer=HEADS)
        yield Case("CONT", f"transposed {columns}", turned, (tokens(columns),), outer=columns)
        yield Case("CONT", f"{columns} as they are", function("cont"), (tokens(columns),))
    yield Case("CONT", "a view", lambda graph, x: graph("cont", part(graph, x, 20)), (tokens(256),))


def concat() -> Iterator[Case]:
    for columns in SIZES:
        heads = (tokens(columns, HEADS), tokens(28, HEADS))
        yield Case("CONCAT", f"{columns} and 28 columns", function("concat", 0), heads)
        yield Case("CONCAT", f"rows of {columns}", function("concat", 0), (tokens(columns), tokens(columns)))
        more = (tokens(columns, HEADS), tokens(columns, 3))
        yield Case("CONCAT", f"heads of {columns}", function("concat", 1), more)


def repeat() -> Iterator[Case]:
    def for_heads(columns: int) -> Callable[..., int]:
        return lambda graph, x: graph("repeat_4d", x, columns, HEADS, graph.width, 1)

    for columns in SIZES:
        yield Case("REPEAT", f"{columns} for heads", for_heads(columns), (tokens(columns, 1),))
        yield Case("REPEAT", f"values for {columns}", for_heads(columns), (tokens(1, HEADS),))
        yield Case("REPEAT", f"like rows of {columns}", function("repeat"), (fixed(columns), tokens(columns)))


def argsort() -> Iterator[Case]:
    for order in (0, 1):
        yield from each_size("ARGSORT", f"order {order}", function("argsort", order))
        for columns in (5, *SIZES):
            ties = Operand(np.round(tokens(columns).values), 0)
            yield Case("ARGSORT", f"order {order}, ties of {columns}", function("argsort", order), (ties,))


def top_k() -> Iterator[Case]:
    yield from each_size("TOP_K", "the best 6", function("top_k", 6))
    ties = Operand(np.round(tokens(100).values), 0)
    yield Case("TOP_K", "ties", function("top_k", 8), (ties,))


EXPERTS, USED, OUTPUTS = 8, 2, 48


def experts() -> Iterator[Case]:
    """Chosen at random, and one for all rows, where llama.cpp might take another kernel."""
    same = Operand(np.tile(np.array([3, 5], np.int32), (ROWS, 1)), 0)
    for name in FORMATS:
        kind = TYPE_NUMBERS[name]
        weights = Operand(quantised(kind, fixed(EXPERTS, OUTPUTS, 256).values), kind=kind)
        for label, chosen in (("at random", numbers(EXPERTS, USED)), ("the same", same)):
            for between in (1, USED):  # inputs that experts share, and inputs of their own
                operands = (weights, tokens(256, between), chosen)
                yield Case("MUL_MAT_ID", f"{name}, {label}, {between} inputs", function("mul_mat_id"), operands)


def convolution() -> Iterator[Case]:
    """Over the last 3 and 4 tokens; every channel has its own weights."""
    for columns in SIZES:
        for taps in (3, 4):
            x = _rng.standard_normal((columns, ROWS + taps - 1)).astype(np.float32)
            operands = (Operand(x, 1, halo=taps - 1), fixed(columns, taps))
            yield Case("SSM_CONV", f"{columns} channels, {taps} taps", function("ssm_conv"), operands)


def indexer() -> Iterator[Case]:
    """Scores of cached tokens, of which attention then sees the best."""
    mask = Operand(np.where(_rng.random((ROWS, CELLS)) < 0.3, -np.inf, 0).astype(np.float16), 0)
    for columns in (64, 128):
        for cache in (fixed(CELLS, 1, columns).values, fixed(CELLS, 1, columns).values.astype(np.float16)):
            operands = (tokens(columns, HEADS), Operand(cache), tokens(HEADS), mask)
            label = f"{cache.dtype} of {columns}"
            yield Case("LIGHTNING_INDEXER", label, function("lightning_indexer"), operands)


def rotation() -> Iterator[Case]:
    """Of what goes into a quantised cache."""

    def build(graph: Graph, matrix: int, values: int) -> int:
        made = graph("mul_mat", matrix, values)
        call("mul_mat_set_hint", made, 1)
        return made

    for columns in (64, 128, 256):
        yield Case(HADAMARD, f"rows of {columns}", build, (fixed(columns, columns), tokens(columns)))
        yield Case(HADAMARD, f"heads of {columns}", build, (fixed(columns, columns), tokens(columns, HEADS)))


def connections(operation: str) -> Iterator[Case]:
    """Several residual streams that are mixed: DSV4_HC_COMB, DSV4_HC_PRE and DSV4_HC_POST."""
    streams = 4
    x, weights = tokens(100, streams), tokens(streams)
    if operation == "DSV4_HC_COMB":
        operands = (tokens((2 + streams) * streams), fixed(3), fixed((2 + streams) * streams))
        yield Case(operation, "20 rounds", function("dsv4_hc_comb", 1e-6, 20), operands)
    elif operation == "DSV4_HC_PRE":
        yield Case(operation, "weights", function("dsv4_hc_pre"), (x, weights))
        yield Case(operation, "gates", function("dsv4_hc_pre_gated", 0.5), (x, tokens(100, streams)))
    else:
        operands = (tokens(100), x, weights)
        yield Case(operation, "mixed", function("dsv4_hc_post"), (*operands, tokens(streams, streams)))
        yield Case(operation, "apart", function("dsv4_hc_post", None), operands)


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    **{name: functools.partial(binary, name) for name in ("ADD", "SUB", "MUL", "DIV")},
    **{name: functools.partial(norm, name) for name in ("NORM", "RMS_NORM", "L2_NORM")},
    "ADD_ID": add_id,
    "SCALE": scale,
    "CLAMP": clamp,
    "SQR": functools.partial(each_size, "SQR", "rows", function("sqr")),
    "SQRT": root,
    "UNARY": unary,
    "GLU": glu,
    "SOFT_MAX": soft_max,
    **{name: functools.partial(sums, name) for name in ("SUM_ROWS", "MEAN")},
    "FILL": functools.partial(each_size, "FILL", "rows", function("fill", -1e9)),
    "ROPE": rope,
    "ROPE_BACK": rope_back,
    "GET_ROWS": get_rows,
    "SET_ROWS": set_rows,
    "CPY": copy,
    "CONT": cont,
    "CONCAT": concat,
    "REPEAT": repeat,
    "ARGSORT": argsort,
    "TOP_K": top_k,
    "MUL_MAT_ID": experts,
    "SSM_CONV": convolution,
    "LIGHTNING_INDEXER": indexer,
    HADAMARD: rotation,
    **{name: functools.partial(connections, name) for name in ("DSV4_HC_COMB", "DSV4_HC_PRE", "DSV4_HC_POST")},
}


@pytest.fixture(scope="module")
def cpu() -> Iterator[Cpu]:
    with Cpu() as made:
        yield made


def differing(cpu: Cpu, cases: list[Case]) -> list[tuple[str, int, int]]:
    """(case, width, threads) wherever a row has other bits than in the one-row pass of one thread."""
    single = [cpu.run(cases, slice(row, row + 1), 1) for row in range(ROWS - COMPARED, ROWS)]
    alone = [np.concatenate(rows) for rows in zip(*single, strict=True)]
    found = []
    for threads in THREADS:
        for width in WIDTHS:
            made = cpu.run(cases, slice(ROWS - width, ROWS), threads)
            for case, bits, expected in zip(cases, made, alone, strict=True):
                count = min(width, COMPARED)
                if not np.array_equal(bits[-count:], expected[-count:]):
                    found.append((f"{case.operation}: {case.label}", width, threads))
    return found


@pytest.mark.parametrize("operation", sorted(CASES))
def test_rows_have_the_same_bits_at_every_width(cpu: Cpu, operation: str) -> None:
    cases = list(CASES[operation]())
    assert cases
    assert {case.operation for case in cases} == {operation}
    assert differing(cpu, cases) == []


def test_every_operation_has_cases() -> None:
    assert set(CASES) | RECURRENT == PER_ROW


def test_operations_are_llama_cpps() -> None:
    names: set[str] = set()
    while "GLU" not in names:  # the last
        names.add(call("op_name", len(names)).decode())
    assert names >= (PER_ROW | WITHOUT_ARITHMETIC) - {HADAMARD}


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_product_differs(cpu: Cpu, kind: type[np.float32 | np.float16]) -> None:
    """The comparison can fail: llama.cpp chooses the kernel of a product by the width."""
    weight = Operand(fixed(256, 256).values.astype(kind))
    found = differing(cpu, [Case("MUL_MAT", "256 x 256", function("mul_mat"), (weight, tokens(256)))])
    widths = {width for _, width, _ in found}
    assert 1 not in widths
    assert widths
