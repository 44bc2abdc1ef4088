"""Products of matrices that are not packed have the bits of llama.cpp's pass of one row, at every width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from localspec.gguf import TYPE_NUMBERS
from localspec.llama.exact import wide
from localspec.llama.library.lib import InitParams
from tests.llama.ggml_graph import FORMATS, Case, Cpu, Graph, Operand, quantised
from tests.llama.ggml_graph import call as build_call
from tests.native.wide import ggml
from tests.native.wide.ggml import F32, WEIGHTS, Runner, call, graph_of, set_bytes

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")

SMALL = ("F32", "F16", "BF16")
"""Those of which matrices are taken at every width."""
COLUMNS, WIDTHS, THREADS = 256, (1, 2, 3, 5, 8, 16, 17, 33, 64), (1, 2, 3)
_rng = np.random.default_rng(4)


@dataclass(frozen=True)
class Shape:
    """Of the weights and of the input in dimensions 2 and 3."""

    rows: int = 32
    matrices: tuple[int, int] = (1, 1)
    inputs: tuple[int, int] = (1, 1)


PLAIN, ODD, HEADS = Shape(), Shape(rows=7), Shape(16, (4, 1), (4, 1))
SHARED, BOTH = Shape(48, (2, 1), (6, 1)), Shape(8, (2, 2), (4, 6))


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    with wide.switched(wide.MOST_ROWS):
        yield


@pytest.fixture(scope="module")
def cpu() -> Iterator[Cpu]:
    with Cpu() as made:
        yield made


class Product:
    """Weights in the CPU's memory, as they come from a file that is mapped."""

    def __init__(self, kind: int, shape: Shape, usage: int = WEIGHTS) -> None:
        self.kind, self.shape = kind, shape
        values = _rng.standard_normal((*shape.matrices[::-1], shape.rows, COLUMNS)).astype(np.float32)
        self.data = quantised(kind, values)
        self.context = call("init", InitParams(4 * call("tensor_overhead"), None, True))
        self.weight = build_call("new_tensor_4d", self.context, kind, COLUMNS, shape.rows, *shape.matrices)
        device = call("backend_dev_by_type", 0)
        self.buffer = call("backend_alloc_ctx_tensors_from_buft", self.context, call("backend_dev_buffer_type", device))
        call("backend_buffer_set_usage", self.buffer, usage)
        set_bytes(self.weight, self.data.tobytes())

    def __enter__(self) -> Product:
        return self

    def __exit__(self, *_: object) -> None:
        call("backend_buffer_free", self.buffer)
        call("free", self.context)

    def input(self, width: int) -> np.ndarray:
        """float32[inputs in 3, inputs in 2, width, columns]"""
        return _rng.standard_normal((*self.shape.inputs[::-1], width, COLUMNS)).astype(np.float32)

    def run(self, x: np.ndarray, threads: int = 2) -> tuple[np.ndarray, bool]:
        """The result, float32[..., width, rows], and whether it is ours."""
        with Runner(threads) as runner, ggml.context() as context:
            given = build_call("new_tensor_4d", context, F32, *x.shape[::-1])
            product = call("mul_mat", context, self.weight, given)
            graph = graph_of(context, [given], [product])
            (found,) = runner.compute(graph, {given: x}, product)
            made = np.frombuffer(found, np.float32).reshape(*x.shape[:-1], self.shape.rows)
            return made, runner.runs_on_wide(product)

    def of_llama_cpp(self, cpu: Cpu, x: np.ndarray) -> np.ndarray:
        """The same, computed by llama.cpp one row at a time."""
        weight = Operand(self.data, kind=self.kind)

        def build(graph: Graph, weights: int, given: int) -> int:
            return graph("mul_mat", weights, given)

        rows = [
            cpu.outputs([Case("MUL_MAT", "", build, (weight, Operand(x[:, :, at : at + 1])))], slice(0, 1), 1)[0]
            for at in range(x.shape[2])
        ]
        single = [np.frombuffer(row, np.float32).reshape(*x.shape[:2], 1, self.shape.rows) for row in rows]
        return np.concatenate(single, axis=2)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_bits_of_single_rows(cpu: Cpu, name: str) -> None:
    with Product(TYPE_NUMBERS[name], PLAIN) as product:
        x = product.input(max(WIDTHS))
        expected = product.of_llama_cpp(cpu, x)
        for width in WIDTHS:
            for threads in THREADS:
                found, ours = product.run(x[:, :, :width], threads)
                assert ours
                assert found.tobytes() == expected[:, :, :width].tobytes(), (width, threads)


@pytest.mark.parametrize("shape", [ODD, HEADS, SHARED, BOTH], ids=str)
@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_K"])
def test_every_shape_has(cpu: Cpu, name: str, shape: Shape) -> None:
    with Product(TYPE_NUMBERS[name], shape) as product:
        x = product.input(17)
        expected = product.of_llama_cpp(cpu, x)
        for width in (1, 2, 17):
            found, ours = product.run(np.ascontiguousarray(x[:, :, :width]), 3)
            assert ours
            assert found.tobytes() == np.ascontiguousarray(expected[:, :, :width]).tobytes(), width


@pytest.mark.parametrize(("name", "shape"), [*[(name, PLAIN) for name in SMALL], ("Q8_0", ODD), ("Q5_0", HEADS)])
def test_what_is_small_is_taken_at_every_width(name: str, shape: Shape) -> None:
    with Product(TYPE_NUMBERS[name], shape) as product:
        x = product.input(130)
        found, ours = product.run(x)
        assert ours
        assert found[:, :, -1:].tobytes() == product.run(np.ascontiguousarray(x[:, :, -1:]))[0].tobytes()


def test_what_is_large_is_taken_up_to_the_switch() -> None:
    with Product(TYPE_NUMBERS["Q5_0"], PLAIN) as product:

        def taken(width: int) -> bool:
            return product.run(product.input(width))[1]

        assert (taken(64), taken(65)) == (True, False)
        with wide.switched(80):
            assert (taken(65), taken(81)) == (True, False)
        with wide.switched(0):
            assert not taken(1)


def test_a_cache_is_taken_up_to_the_switch() -> None:
    with Product(TYPE_NUMBERS["F16"], HEADS, usage=0) as product:
        assert [product.run(product.input(width))[1] for width in (1, 64, 65)] == [True, True, False]


def test_rows_that_lie_apart(cpu: Cpu) -> None:
    """A cache that holds more than is looked at, and inputs that are a part of something."""
    with Product(TYPE_NUMBERS["F16"], Shape(16, (4, 1), (4, 1))) as product:
        x = product.input(6)
        expected = product.of_llama_cpp(cpu, x[:, :, 1:4])[..., 2:10]
        with Runner(2) as runner, ggml.context() as context:
            given = build_call("new_tensor_4d", context, F32, COLUMNS, 6, 4, 1)
            row, matrix = 2 * COLUMNS, 2 * COLUMNS * 16
            part = build_call("view_3d", context, product.weight, COLUMNS, 8, 4, row, matrix, 2 * row)
            wanted = build_call("view_3d", context, given, COLUMNS, 3, 4, 4 * COLUMNS, 4 * COLUMNS * 6, 4 * COLUMNS)
            made = call("mul_mat", context, part, wanted)
            graph = graph_of(context, [given], [made])
            (found,) = runner.compute(graph, {given: x}, made)
            assert runner.runs_on_wide(made)
        assert found == np.ascontiguousarray(expected).tobytes()
