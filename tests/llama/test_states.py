"""Hidden states kept beside the cache: the right row at the right token, and no bit of a logits row changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.errors import ModelError, UsageError
from localspec.llama.cache.context import Context
from localspec.llama.cache.states import States
from localspec.llama.library.batch import Cells
from localspec.llama.library.settings import FINAL, NEXTN, ContextSettings, Final, Tap, union
from localspec.llama.model import Model
from localspec.runtime.engine import HiddenReader
from localspec.types import Feed, Float32Array, Tokens
from tests.drafters.mtp_files import SHIPPED
from tests.llama.conftest import chain

SETTINGS = ContextSettings(n_ctx=640, type_v="bf16", threads=1, grid=64)
LAYERS = (1, 3)


@pytest.fixture(scope="module")
def truth(model: Model, text: Tokens) -> Iterator[dict[int, Float32Array]]:
    """States of the first 400 tokens, read at once by the reader that `localspec extract` uses."""
    context = Context(model, SETTINGS)
    reader = HiddenReader(context)
    found = next(states for states in reader.read(text[:400], LAYERS) if states is not None)
    yield {**found.layers, FINAL: found.final}
    reader.close()
    context.close()


def tapped(model: Model, final: Final = "all", **settings: Any) -> Context:
    return Context(model, replace(SETTINGS, **settings), tap=Tap(LAYERS, final))


def agree(context: Context, truth: dict[int, Float32Array], tokens: Tokens, slot: int = 0) -> tuple[int, int]:
    """Checks every row held of `tokens`, a beginning of the truth's text; returns the layers' span."""
    assert context.states is not None
    for what in context.states.tap.everything:
        start, stop = context.states.span(slot, tokens, what)
        held = context.states.read(slot, what, start, stop)
        np.testing.assert_allclose(held, truth[what][start:stop], rtol=0.02, atol=0.02)
    return context.states.span(slot, tokens, LAYERS[0])


def test_they_follow_the_cache_through_drafts_edits_and_rejections(
    model: Model, text: Tokens, truth: dict[int, Float32Array]
) -> None:
    context = tapped(model)
    try:
        context.decode([Feed(0, text[:300], 300)])
        assert agree(context, truth, text[:300]) == (0, 300)
        context.decode([Feed(0, text[:301], 300, text[301:305], chain(4))])  # right
        assert agree(context, truth, text[:400]) == (0, 305)
        context.decode([Feed(0, text[:306], 300, text[900:904], chain(4))])  # wrong
        assert agree(context, truth, text[:400]) == (0, 306)
        assert context.states is not None
        assert context.states.span(0, text[500:600]) == (0, 0), "another text shares nothing"
        context.decode([Feed(0, np.concatenate([text[:200], text[900:905]]), 205)])  # edited
        assert agree(context, truth, text[:400]) == (0, 200)
        context.forget(0, 100)
        assert agree(context, truth, text[:400]) == (0, 100)
        with pytest.raises(UsageError, match="positions 0 to 101 are held from 0 to 100"):
            context.states.read(0, FINAL, 0, 101)
        with pytest.raises(UsageError, match="are not tapped"):
            context.states.read(0, NEXTN, 0, 1)
    finally:
        context.close()


def test_of_a_tree_the_main_chain_is_kept(model: Model, text: Tokens, truth: dict[int, Float32Array]) -> None:
    wrong, parents = text[900:903], np.array([-1, -1, 0, 1, 2], dtype=np.int32)
    context = tapped(model, max_leaves=4)
    try:
        nodes = np.array([text[300], wrong[0], text[301], wrong[1], text[302]], dtype=np.int32)
        context.decode([Feed(0, text[:300], 300, nodes, parents)])
        assert agree(context, truth, text[:400]) == (0, 303)
        nodes = np.array([wrong[0], text[303], wrong[1], text[304], wrong[2]], dtype=np.int32)
        context.decode([Feed(0, text[:303], 300, nodes, parents)])
        assert agree(context, truth, text[:400]) == (0, 303), "the sibling that was right is decoded again"
        context.decode([Feed(0, text[:305], 300)])
        assert agree(context, truth, text[:400]) == (0, 305)
    finally:
        context.close()


def test_final_states_of_decoded_rows_leave_prompts_out(
    model: Model, text: Tokens, truth: dict[int, Float32Array]
) -> None:
    context = tapped(model, "decoded")
    try:
        context.decode([Feed(0, text[:300], 300)])
        states = context.states
        assert states is not None
        assert states.span(0, text[:300], FINAL) == (299, 300)
        context.decode([Feed(0, text[:304], 300, text[304:306], chain(2))])
        assert states.span(0, text[:400], FINAL) == (299, 306)
        assert agree(context, truth, text[:400]) == (0, 306), "layers are of every row"
        context.prefill(0, text[:360], 300)
        context.decode([Feed(0, text[:360], 300)])
        assert states.span(0, text[:400], FINAL) == (359, 360), "what was read without logits has none"
        agree(context, truth, text[:400])
        state, held = bytes(context.save(0)), context.held(0)
        assert context.restore(0, state, held[0].copy(), held[1])
        assert states.span(0, text[:400], LAYERS[0]) == (0, 0), "a cache from elsewhere brings none"
        context.decode([Feed(0, text[:362], 300)])
        assert states.span(0, text[:400], LAYERS[0]) == states.span(0, text[:400], FINAL) == (360, 362)
        agree(context, truth, text[:400])
    finally:
        context.close()


def test_what_is_no_longer_asked_for_is_freed_and_the_rest_goes_on(
    model: Model, text: Tokens, truth: dict[int, Float32Array]
) -> None:
    context = tapped(model)
    try:
        context.decode([Feed(0, text[:200], 200)])
        states, outputs = context.states, context.outputs
        assert states is not None
        assert outputs is not None
        context.tap_only(Tap(LAYERS[1:], "decoded"))
        assert states.tap.everything == (LAYERS[1], FINAL)
        assert states.span(0, text[:200], LAYERS[0]) == (0, 0)
        assert states.span(0, text[:200], LAYERS[1]) == (0, 200)
        assert not outputs.before(decodes=False), "prompts pay for no logits any more"
        context.decode([Feed(0, text[:300], 300)])
        assert states.span(0, text[:300], FINAL) == (299, 300)
        np.testing.assert_allclose(states.read(0, LAYERS[1], 0, 300), truth[LAYERS[1]][:300], rtol=0.02, atol=0.02)
        np.testing.assert_allclose(states.read(0, FINAL, 299, 300), truth[FINAL][299:300], rtol=0.02, atol=0.02)
        context.tap_only(Tap())
        assert context.states is None
        assert states.span(0, text[:300]) == (0, 0)
    finally:
        context.close()


def test_slots_are_told_apart(model: Model, text: Tokens, truth: dict[int, Float32Array]) -> None:
    """Uneven slots in one pass, which llama.cpp cuts into several and reorders."""
    context = tapped(model, n_slots=3)
    try:
        feeds = [
            Feed(2, text[:200], 200, text[200:204], chain(4)),
            Feed(0, text[:100], 100, text[100:101], chain(1)),
            Feed(1, text[:150], 150),
        ]
        context.decode(feeds)
        assert [agree(context, truth, text[:400], slot)[1] for slot in range(3)] == [101, 150, 204]
        context.decode([Feed(0, text[:105], 100, text[105:107], chain(2)), Feed(2, text[:206], 200)])
        assert [agree(context, truth, text[:400], slot)[1] for slot in range(3)] == [107, 150, 206]
    finally:
        context.close()


@pytest.mark.parametrize("final", ["no", "decoded", "all"])
@pytest.mark.parametrize("slots", [1, 2])
def test_no_bit_of_a_logits_row_changes(model: Model, text: Tokens, final: Final, slots: int) -> None:
    assert_same_bits(model, text, Tap(LAYERS, final), slots)


@pytest.mark.parametrize("slots", [1, 2])
def test_nor_where_an_mtp_layer_starts_from_them(text: Tokens, slots: int) -> None:
    with Model.load(SHIPPED, nextn=True) as model:
        assert_same_bits(model, text, Tap(final="decoded", nextn=True), slots)


def assert_same_bits(model: Model, text: Tokens, tap: Tap, slots: int) -> None:
    settings = replace(SETTINGS, n_slots=slots)
    plain, with_tap = Context(model, settings), Context(model, settings, tap=tap)
    try:
        for length in (130, 133, 134, 420):  # fresh, missing rows that ride along, one row, missing prompt
            feeds = [
                Feed(slot, text[slot : slot + length], 130, text[500 : 503 + slot], chain(3 + slot))
                for slot in range(slots)
            ]
            for rows, expected in zip(with_tap.decode(feeds), plain.decode(feeds), strict=True):
                assert len(rows) == len(expected)
                assert all(rows[i].tobytes() == expected[i].tobytes() for i in range(len(expected)))
    finally:
        plain.close()
        with_tap.close()


def test_states_there_is_no_memory_for_are_refused_at_once() -> None:
    outputs: Any = SimpleNamespace(tap=Tap((0,)), n_embd=2**30, n_final=1, n_cells=2**28)
    with pytest.raises(ModelError, match=r"no memory for the hidden states that heads read: \d+ MiB\. A shorter"):
        States(outputs, [Cells(16, 0, "all")])


def test_nothing_tapped_nothing_kept(model: Model, tiny_target: Path) -> None:
    context = Context(model, SETTINGS)
    assert context.states is None
    context.close()
    with pytest.raises(UsageError, match=r"no layer 6; tiny-target-q8_0\.gguf has layers 0 to 5"):
        Context(model, SETTINGS, tap=Tap((6,)))
    with pytest.raises(UsageError, match="no state for MTP layers of the architecture llama"):
        Context(model, SETTINGS, tap=Tap(nextn=True))
    assert union([Tap((1,), "decoded"), Tap((2, 1), "all", True)]) == Tap((1, 2), "all", True)
