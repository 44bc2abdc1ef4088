"""`pass_widths` says what llama.cpp does with a batch of several streams."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.cache.context import Context
from localspec.llama.library.batch import split_equal
from localspec.llama.library.handle import Observer
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Tokens
from tests.llama.conftest import chain


class _Widths(Observer):
    """Notes how many rows a node of the graph has in every pass."""

    def __init__(self, node: bytes = b"l_out-0") -> None:
        super().__init__()
        self.node = node
        self.widths: list[int] = []

    def _see(self, tensor: int, asks: bool, _: object) -> bool:
        if self._name(tensor) != self.node:
            return not asks
        if not asks:
            self.widths.append(int((ctypes.c_int64 * 4).from_address(tensor + 16)[1]))
        return True


@pytest.mark.parametrize(
    "rows",
    [
        {0: 3},
        {0: 2, 1: 2},
        {0: 1, 1: 4},
        {0: 4, 1: 1, 2: 2},
        {0: 2, 2: 2},
        {1: 3, 2: 3, 4: 1},
        {0: 5, 1: 3, 2: 3, 3: 1},
    ],
)
def test_widths_are_what_really_runs(model: Model, text: Tokens, rows: dict[int, int]) -> None:
    seen = _Widths()
    context = Context(model, ContextSettings(n_ctx=256, n_slots=5, threads=1), seen)
    feeds = [
        Feed(slot, text[slot : slot + 9], 9, text[20 : 20 + count - 1], chain(count - 1))
        for slot, count in rows.items()
    ]
    for feed in feeds:
        context.prefill(feed.slot, feed.tokens, 9)
    seen.widths.clear()
    context.decode(list(reversed(feeds)))
    assert seen.widths == context.pass_widths(rows)
    context.close()


def test_the_output_matrix_runs_only_for_rows_asked_for(model: Model, text: Tokens) -> None:
    """Prefill computes no logits at all; a pass that catches up computes them for its last row and the draft."""
    seen = _Widths(b"result_output")
    context = Context(model, ContextSettings(n_ctx=512, grid=128, threads=1), seen)
    context.prefill(0, text[:300], 300)
    assert sum(seen.widths) == 0
    context.decode([Feed(0, text[:300], 300, text[300:303], chain(3))])
    context.forget(0, 300)
    context.decode([Feed(0, text[:304], 300, text[304:305], chain(1))])
    assert [width for width in seen.widths if width] == [4, 2]
    context.close()


def test_one_slot_is_one_pass(model: Model) -> None:
    context = Context(model, ContextSettings(n_ctx=256))
    assert context.pass_widths({0: 7}) == [7]
    assert context.pass_widths({}) == []
    context.close()


@given(st.dictionaries(st.integers(0, 15), st.integers(1, 20), min_size=1), st.integers(1, 64))
def test_every_row_runs_once(rows: dict[int, int], limit: int) -> None:
    widths = split_equal(rows, limit)
    assert sum(widths) == sum(rows.values())
    assert min(widths) >= 1
    assert np.all(np.array(widths) <= max(limit, len(rows)))
