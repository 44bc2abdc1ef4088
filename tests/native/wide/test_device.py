"""The ggml side of localspec_wide: what is taken, who sees packed bytes, and that nobody else does."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from localspec.llama.exact import wide
from localspec.llama.library import lib
from tests.native.wide import ggml
from tests.native.wide.ggml import F16, F32, I32, Runner, Weights, call, get_bytes, graph_of, memory_of, q8_0, set_bytes

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")

COLUMNS, ROWS = 256, 96


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _switched_on() -> Iterator[None]:
    with wide.switched(wide.MOST_ROWS):
        yield


def test_registered_where_llama_cpp_looks() -> None:
    (found,) = [device for device in lib.devices() if device.name == wide.DEVICE_NAME]
    assert (found.kind, found.description) == ("accel", wide.status().isa)


class _Product:
    """A graph of weights * x; like llama.cpp's it is made anew when another device is to compute it."""

    def __init__(self, weight: int, width: int = 3, rows: int = COLUMNS) -> None:
        self.keep = ggml.context()
        self.context = self.keep.__enter__()
        self.x = call("new_tensor_2d", self.context, F32, rows, width)
        self.y = call("mul_mat", self.context, weight, self.x)
        self.graph = graph_of(self.context, [self.x], [self.y])

    def __enter__(self) -> _Product:
        return self

    def __exit__(self, *_: object) -> None:
        self.keep.__exit__(None, None, None)

    def run(self, runner: Runner, x: np.ndarray) -> np.ndarray:
        (data,) = runner.compute(self.graph, {self.x: x}, self.y)
        found: np.ndarray = np.frombuffer(data, np.float32).reshape(len(x), -1)
        return found


def _expected(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    product: np.ndarray = x.astype(np.float64) @ values.astype(np.float64).T
    return product


def _close(found: np.ndarray, expected: np.ndarray) -> bool:
    """Within what 8-bit activations cost."""
    return bool(np.abs(found - expected).max() <= 0.02 * np.abs(expected).max())


def test_product_of_a_weight_set_whole(rng: np.random.Generator) -> None:
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, _Product(weights.tensors[0]) as product:
        set_bytes(weights.tensors[0], data)
        assert memory_of(weights.tensors[0]) != data  # packed at once
        assert _close(product.run(runner, x), _expected(values, x))
        assert runner.runs_on_wide(product.y)


def test_product_of_a_weight_read_into_place(rng: np.random.Generator) -> None:
    data, _ = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    with (
        Weights([(COLUMNS, ROWS)] * 2) as weights,
        Runner(threads=2) as runner,
        _Product(weights.tensors[0]) as first,
        _Product(weights.tensors[1]) as second,
    ):
        ctypes.memmove(call("get_data", weights.tensors[0]), data, len(data))
        set_bytes(weights.tensors[1], data)
        assert memory_of(weights.tensors[0]) == data
        assert first.run(runner, x).tobytes() == second.run(runner, x).tobytes()
        assert memory_of(weights.tensors[0]) == memory_of(weights.tensors[1]) != data


def test_what_is_got_back_is_ggmls_layout(rng: np.random.Generator) -> None:
    data, _ = q8_0(rng, COLUMNS, ROWS)
    with Weights([(COLUMNS, ROWS)]) as weights:
        (weight,) = weights.tensors
        set_bytes(weight, data)
        packed = memory_of(weight)
        assert get_bytes(weight) == data
        for _ in range(50):
            start = int(rng.integers(0, len(data)))
            size = int(rng.integers(1, len(data) - start + 1))
            assert get_bytes(weight, start, size) == data[start : start + size]
        assert memory_of(weight) == packed  # reading disturbs nothing


def test_a_part_can_be_set(rng: np.random.Generator) -> None:
    data, values = q8_0(rng, COLUMNS, ROWS)
    other, other_values = q8_0(rng, COLUMNS, ROWS)
    row = len(data) // ROWS
    x = rng.standard_normal((2, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, _Product(weights.tensors[0], 2) as product:
        (weight,) = weights.tensors
        set_bytes(weight, data)
        product.run(runner, x)
        set_bytes(weight, other[5 * row : 21 * row], 5 * row)
        values[5:21] = other_values[5:21]
        assert _close(product.run(runner, x), _expected(values, x))
        assert get_bytes(weight) == data[: 5 * row] + other[5 * row : 21 * row] + data[21 * row :]


def test_cleared_and_filled(rng: np.random.Generator) -> None:
    data, _ = q8_0(rng, COLUMNS, ROWS)
    with Weights([(COLUMNS, ROWS)]) as weights:
        (weight,) = weights.tensors
        set_bytes(weight, data)
        call("backend_tensor_memset", weight, 0, 40, 100)
        assert get_bytes(weight) == data[:40] + bytes(100) + data[140:]
        set_bytes(weight, data)
        call("backend_buffer_clear", weights.buffer, 7)
        assert get_bytes(weight) == b"\7" * len(data)


def test_rows_looked_up_in_a_packed_weight(rng: np.random.Generator) -> None:
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    ids = np.array([3, 95, 0], np.int32)
    with (
        Weights([(COLUMNS, ROWS)]) as weights,
        Runner() as runner,
        _Product(weights.tensors[0]) as product,
        ggml.context() as context,
    ):
        (weight,) = weights.tensors
        set_bytes(weight, data)
        before = product.run(runner, x)
        wanted = call("new_tensor_1d", context, I32, len(ids))
        rows = call("get_rows", context, weight, wanted)
        graph = graph_of(context, [wanted], [rows])
        (found,) = runner.compute(graph, {wanted: ids}, rows)
        assert (np.frombuffer(found, np.float32).reshape(3, -1) == values[ids]).all()
        assert memory_of(weight) == data  # left to llama.cpp
        with _Product(weight) as again:
            after = again.run(runner, x)
            assert runner.runs_on_wide(again.y)  # row by row
        assert memory_of(weight) == data
        assert _close(after, before)


def test_a_view_of_a_packed_weight(rng: np.random.Generator) -> None:
    """As LoRA, or a model that cuts a matrix in two."""
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((2, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, ggml.context() as context:
        (weight,) = weights.tensors
        set_bytes(weight, data)
        row = len(data) // ROWS
        part = call("view_2d", context, weight, COLUMNS, 32, row, 48 * row)
        given = call("new_tensor_2d", context, F32, COLUMNS, 2)
        product = call("mul_mat", context, part, given)
        graph = graph_of(context, [given], [product])
        (found,) = runner.compute(graph, {given: x}, product)
        assert _close(np.frombuffer(found, np.float32).reshape(2, 32), _expected(values[48:80], x))
        assert memory_of(weight) == data


def test_a_graph_made_before_its_weight_was_left(rng: np.random.Generator) -> None:
    """llama.cpp computes a graph again without asking again."""
    data, _ = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    with (
        Weights([(COLUMNS, ROWS)]) as weights,
        Runner(threads=2) as runner,
        _Product(weights.tensors[0]) as product,
        ggml.context() as context,
    ):
        (weight,) = weights.tensors
        set_bytes(weight, data)
        before = product.run(runner, x)
        scaled = call("scale", context, weight, 2.0)
        assert not call("backend_dev_supports_op", runner.device, scaled)
        assert memory_of(weight) == data
        assert call("backend_sched_graph_compute", runner.scheduler, product.graph) == 0
        after = np.frombuffer(get_bytes(product.y), np.float32).reshape(3, ROWS)
        assert _close(after, before)  # row by row, from what is not packed any more
        assert memory_of(weight) == data


def test_switch(rng: np.random.Generator) -> None:
    """Off, nothing new is taken; a weight that came while it was on stays ours; another thread has its own."""
    data, _ = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, _Product(weights.tensors[0]) as product:
        set_bytes(weights.tensors[0], data)
        before = product.run(runner, x)
        with wide.switched(0):
            elsewhere: list[int] = []
            thread = threading.Thread(target=lambda: elsewhere.append(wide.set_switch(9)))
            thread.start()
            thread.join()
            assert elsewhere == [wide.MOST_ROWS]  # on from the start
            assert product.run(runner, x).tobytes() == before.tobytes()
            assert runner.runs_on_wide(product.y)
            assert wide.set_switch(0) == 0
        assert wide.set_switch(wide.MOST_ROWS) == wide.MOST_ROWS


def test_what_is_not_packed(rng: np.random.Generator) -> None:
    """Other numbers of rows are multiplied row by row; activations that are not float32 rows are llama.cpp's."""
    data, _ = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    uneven_data, uneven_values = q8_0(rng, COLUMNS, 40)  # no multiple of a tile
    with Weights([(COLUMNS, ROWS), (COLUMNS, 40)]) as weights, Runner() as runner, ggml.context() as context:
        even, uneven = weights.tensors
        set_bytes(even, data)
        set_bytes(uneven, uneven_data)
        assert memory_of(uneven) == uneven_data
        with _Product(uneven) as product:
            assert _close(product.run(runner, x), _expected(uneven_values, x))
            assert runner.runs_on_wide(product.y)
        halves = call("new_tensor_2d", context, F16, COLUMNS, 3)
        assert not call("backend_dev_supports_op", runner.device, call("mul_mat", context, even, halves))
        assert memory_of(even) == data


def test_attention_that_is_not_taken() -> None:
    """ggml lets values and masks of other sizes than the keys through."""
    flash = lib.c_function("ggml_flash_attn_ext", *[ctypes.c_void_p] * 6, *[ctypes.c_float] * 3)
    taken = []
    with Runner() as runner, ggml.context() as context:
        q, k = (call("new_tensor_2d", context, kind, 64, rows) for kind, rows in ((F32, 4), (F16, 32)))
        for values, mask in ((32, (32, 4)), (16, (32, 4)), (32, (16, 4)), (32, (32, 2))):
            v, m = (call("new_tensor_2d", context, F16, *shape) for shape in ((64, values), mask))
            node = flash(context, q, k, v, m, 1.0, 0.0, 0.0)
            taken.append(bool(call("backend_dev_supports_op", runner.device, node)))
    assert taken == [True, False, False, False]


def test_more_dimensions_of_input(rng: np.random.Generator) -> None:
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((2 * 5, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, ggml.context() as context:
        (weight,) = weights.tensors
        set_bytes(weight, data)
        given = call("new_tensor_3d", context, F32, COLUMNS, 5, 2)
        product = call("mul_mat", context, weight, given)
        graph = graph_of(context, [given], [product])
        (found,) = runner.compute(graph, {given: x}, product)
        assert runner.runs_on_wide(product)
        assert _close(np.frombuffer(found, np.float32).reshape(10, ROWS), _expected(values, x))


def test_no_rows_at_all(rng: np.random.Generator) -> None:
    """As in a pass without logits: an empty product beside one that is not."""
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    with Weights([(COLUMNS, ROWS)]) as weights, Runner() as runner, _Product(weights.tensors[0]) as product:
        set_bytes(weights.tensors[0], data)
        none = call("view_2d", product.context, product.x, COLUMNS, 0, 4 * COLUMNS, 0)
        empty = call("mul_mat", product.context, weights.tensors[0], none)
        call("build_forward_expand", product.graph, empty)
        assert _close(product.run(runner, x), _expected(values, x))
        assert runner.runs_on_wide(empty)


def test_results_that_feed_one_another(rng: np.random.Generator) -> None:
    """Two products of one input, then one of a result, in one split: the same bits on every number of threads."""
    x = rng.standard_normal((4, COLUMNS)).astype(np.float32)
    found = []
    shapes = [(COLUMNS, ROWS), (COLUMNS, COLUMNS), (COLUMNS, 48)]
    with Weights(shapes) as weights:
        for weight, shape in zip(weights.tensors, shapes, strict=True):
            set_bytes(weight, q8_0(rng, *shape)[0])
        for threads in (1, 2, 3, 7):
            with Runner(threads) as runner, ggml.context() as context:
                given = call("new_tensor_2d", context, F32, COLUMNS, 4)
                one, two = (call("mul_mat", context, weight, given) for weight in weights.tensors[:2])
                three = call("mul_mat", context, weights.tensors[2], two)
                graph = graph_of(context, [given], [one, two, three])
                found.append(runner.compute(graph, {given: x}, one, two, three))
    assert all(same == found[0] for same in found)
    assert len(set(found[0])) == 3


def test_threads_that_compute_while_others_take_the_weight_away(rng: np.random.Generator) -> None:
    data, values = q8_0(rng, COLUMNS, ROWS)
    x = rng.standard_normal((3, COLUMNS)).astype(np.float32)
    expected = _expected(values, x)
    wrong: list[int] = []
    with Weights([(COLUMNS, ROWS)] * 20) as weights:
        for weight in weights.tensors:
            set_bytes(weight, data)

        def compute() -> None:
            with Runner(threads=2) as runner:
                for weight in weights.tensors:
                    with _Product(weight) as product:
                        wrong.extend(1 for _ in range(5) if not _close(product.run(runner, x), expected))

        def disturb() -> None:
            with Runner() as runner, ggml.context() as context:
                for weight in weights.tensors:
                    wrong.extend(1 for _ in range(5) if get_bytes(weight) != data)
                    call("backend_dev_supports_op", runner.device, call("scale", context, weight, 2.0))
                    set_bytes(weight, data)

        threads = [threading.Thread(target=work) for work in (compute, compute, disturb)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert all(memory_of(weight) == data for weight in weights.tensors)


def test_limits_of_this_machine() -> None:
    library = wide.library()
    assert 1e8 < library.lsw_memory_rate(1, 0.05) < 1e13
    assert 1e8 < library.lsw_int8_rate(0, 1, 0.05) < 1e15
    assert library.lsw_memory_rate(0, 0.05) == library.lsw_int8_rate(99, 1, 0.05) == 0.0
