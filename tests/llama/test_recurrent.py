"""llama.cpp's recurrent operations step from token to token: the width of a pass changes neither rows nor states."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from localspec.llama.exact.choice import PER_ROW
from localspec.types import Float32Array
from tests.llama.ggml_graph import Case, Cpu, Graph, Operand

WIDTHS, THREADS, ROWS = (2, 3, 4, 8, 16, 33), (1, 2, 3), 34
HEADS, SIZE = 4, 64
_rng = np.random.default_rng(11)


@dataclass(frozen=True)
class Recurrence:
    """An operation whose output has rows first and then states, the latest first."""

    operation: str
    operands: tuple[Operand, ...]
    build: Callable[[Graph, int, Sequence[int], int], int]
    """Of a graph, the state, the other operands and how many states are wanted."""
    state: Float32Array
    """The first one."""
    row: int
    """Numbers of an output row."""

    def run(
        self, cpu: Cpu, state: Float32Array, rows: slice, threads: int, states: int
    ) -> tuple[Float32Array, Float32Array]:
        """float32[width, row] and float32[states, ...]: a pass from a state on."""

        def made(graph: Graph, *tensors: int) -> int:
            return self.build(graph, tensors[0], tensors[1:], states)

        case = Case(self.operation, "", made, (Operand(state), *self.operands))
        found = np.frombuffer(cpu.outputs([case], rows, threads)[0], np.float32)
        count = (rows.stop - rows.start) * self.row
        return found[:count].reshape(-1, self.row), found[count:].reshape(states, *self.state.shape)


def values(*shape: int, axis: int | None = 0, scale: float = 1.0) -> Operand:
    """float32 random values."""
    return Operand((scale * _rng.standard_normal(shape)).astype(np.float32), axis)


def gated_delta_net(per_value: bool) -> Recurrence:
    """`per_value`: the gate has a number for every value, not one for a head."""
    unit = [values(ROWS, HEADS, SIZE) for _ in range(2)]
    for one in unit:
        one.values[:] /= np.linalg.norm(one.values, axis=-1, keepdims=True)
    gate = Operand(-np.abs(values(ROWS, HEADS, SIZE if per_value else 1).values), 0)
    beta = Operand(_rng.random((ROWS, HEADS, 1)).astype(np.float32), 0)

    def build(graph: Graph, state: int, tensors: Sequence[int], states: int) -> int:
        return graph("gated_delta_net", *tensors, state, states)

    state = values(HEADS, SIZE, SIZE, axis=None).values
    return Recurrence("GATED_DELTA_NET", (*unit, values(ROWS, HEADS, SIZE), gate, beta), build, state, HEADS * SIZE)


def ssm_scan(per_state: bool) -> Recurrence:
    """`per_state`: as in the first Mamba, every element of the state decays by itself."""
    heads, size, kept = (HEADS * SIZE, 1, 16) if per_state else (HEADS, SIZE, 128)
    decay = Operand(-np.abs(values(heads, kept if per_state else 1).values))
    which = Operand(np.zeros(1, np.int32))
    inputs = (values(ROWS, heads, size), values(ROWS, heads))
    groups = (values(ROWS, 1, kept), values(ROWS, 1, kept))

    def build(graph: Graph, state: int, tensors: Sequence[int], states: int) -> int:
        return graph("ssm_scan", state, *tensors, states)

    state = values(heads, size, kept, axis=None).values
    return Recurrence("SSM_SCAN", (*inputs, decay, *groups, which), build, state, heads * size)


def rwkv(version: int) -> Recurrence:
    """Version 6 or 7."""
    count = 4 if version == 6 else 6
    inputs = [values(ROWS, HEADS, SIZE, scale=0.3) for _ in range(count)]
    decay = 3 if version == 6 else 1
    inputs[decay] = Operand(_rng.uniform(0.8, 1.0, (ROWS, HEADS, SIZE)).astype(np.float32), 0)
    bonus = values(HEADS, SIZE, axis=None)

    def build(graph: Graph, state: int, tensors: Sequence[int], states: int) -> int:
        assert states == 1
        if version == 6:
            keys, bonuses = tensors[:3], tensors[-1]
            return graph("rwkv_wkv6", *keys, bonuses, tensors[3], state)
        return graph("rwkv_wkv7", *tensors, state)

    operands = (*inputs, bonus) if version == 6 else tuple(inputs)
    state = values(1, HEADS * SIZE * SIZE, axis=None).values
    return Recurrence(f"RWKV_WKV{version}", operands, build, state, HEADS * SIZE)


CASES = {
    "gated delta net": gated_delta_net(False),
    "gated delta net, a gate for every value": gated_delta_net(True),
    "Mamba-2": ssm_scan(False),
    "Mamba": ssm_scan(True),
    "RWKV-6": rwkv(6),
    "RWKV-7": rwkv(7),
}
ONE_STATE = ("Mamba", "RWKV-6", "RWKV-7")
"""Those that hand out the last state only."""


@pytest.fixture(scope="module")
def cpu() -> Iterator[Cpu]:
    with Cpu() as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_rows_and_states_have_the_bits_of_single_steps(cpu: Cpu, name: str) -> None:
    case = CASES[name]
    assert case.operation in PER_ROW
    rows, states = [], [case.state]
    for at in range(ROWS):
        row, state = case.run(cpu, states[-1], slice(at, at + 1), 1, 1)
        rows.append(row[0])
        states.append(state[0])
    assert len({row.tobytes() for row in rows}) == ROWS, "rows differ from each other"
    for threads in THREADS:
        for width in WIDTHS:
            kept = 1 if name in ONE_STATE else min(width, 5)
            found, last = case.run(cpu, case.state, slice(0, width), threads, kept)
            assert found.tobytes() == np.stack(rows[:width]).tobytes(), (threads, width)
            expected = np.stack(states[width : width - kept : -1])
            assert last.tobytes() == expected.tobytes(), (threads, width)
