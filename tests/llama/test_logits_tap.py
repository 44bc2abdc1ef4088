"""Logits read where a pass left them: the bits that llama.cpp copies otherwise, and nothing is copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from localspec.engine.constraint import masked
from localspec.engine.interfaces import EMPTY_DRAFT
from localspec.errors import DecodeError, LocalspecError, UsageError
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler
from localspec.llama.cache.context import ConstantWidth, Context
from localspec.llama.library import handle, lib
from localspec.llama.library.handle import LogitsTap
from localspec.llama.library.lib import GgmlTensor
from localspec.llama.library.settings import FINAL, ContextSettings, Tap
from localspec.llama.model import Model
from localspec.types import Feed, LogitRows, Tokens
from tests.llama.conftest import MakeContext, chain, same_bits

SHAPES = {
    "chain": np.array([-1, 0, 1, 2, 3], dtype=np.int32),
    "tree": np.array([-1, -1, 0, 0, 2], dtype=np.int32),
    "bush": np.array([-1, -1, -1, 1, 1], dtype=np.int32),
}


def tap_of(context: Context) -> LogitsTap:
    assert context.handle.logits_tap is not None
    return context.handle.logits_tap


def copied(context: Context, count: int) -> bytes:
    """The first rows of llama.cpp's own buffer."""
    address = lib.pointer_value(lib.api().llama_get_logits(context.handle.pointer))
    return ctypes.string_at(address, 4 * context.n_vocab * count)


def bits(rows: LogitRows) -> list[bytes]:
    return [rows[index].tobytes() for index in range(len(rows))]


@pytest.mark.parametrize("kernels", ["repacked", "wide"])
def test_rows_are_those_that_llama_cpp_copies(kernels: Any, model: Model, text: Tokens) -> None:
    """Prompts, chains, trees, what a pass takes along, and answers that end and begin anew."""
    settings = ContextSettings(n_ctx=1024, threads=2, grid=64, max_leaves=4)
    with Model.load(model.path, kernels=kernels) as loaded:
        plain, tapped = Context(loaded, settings), Context(loaded, replace(settings, logits="in place"))
        for length, name in (
            (70, "chain"),
            (71, "tree"),
            (74, ""),
            (80, "bush"),
            (81, "chain"),
            (30, ""),
            (300, "tree"),
        ):
            parents = SHAPES.get(name, chain(0))
            feed = Feed(0, text[:length], min(length, 70), text[600 : 600 + len(parents)], parents)
            expected, found = (context.decode([feed])[0] for context in (plain, tapped))
            assert len(found) == 1 + len(parents)
            assert bits(found) == bits(expected)
            assert not any(copied(tapped, len(found))), "llama.cpp's own buffer is as it was made"
            assert copied(plain, 1) == bits(expected)[0]


def test_the_sampler_is_called_when_a_graph_is_built(make: MakeContext, text: Tokens) -> None:
    """Once for each row with logits: not in a pass of the last one's shape, nor for prompts, which have none."""
    context, calls = make(logits="in place"), list[int]()
    tap = tap_of(context)
    for length, nodes in ((40, 3), (41, 3), (42, 3), (43, 0), (44, 0), (45, 3), (200, 3), (201, 3)):
        before = tap.calls
        context.decode([Feed(0, text[:length], 40, text[600 : 600 + nodes], chain(nodes))])
        calls.append(tap.calls - before)
    assert calls == [4, 0, 0, 1, 0, 4, 4, 0]


def test_passes_of_one_width_call_it_once(model: Model, text: Tokens) -> None:
    """Whatever they draft; and rows that fill a pass are not read."""
    with Model.load(model.path, kernels="repacked") as loaded:
        settings = ContextSettings(n_ctx=640, threads=2, grid=64, reuse="chunks")
        narrow, plain = ConstantWidth(loaded, settings, 8), Context(loaded, settings)
        narrow.decode([Feed(0, text[:60], 60)])
        before = tap_of(narrow).calls
        for length in range(61, 100):
            nodes = length % 8
            feed = Feed(0, text[:length], 60, text[600 : 600 + nodes], chain(nodes))
            filled = np.concatenate([feed.draft_tokens, np.full(7 - nodes, text[length - 1], dtype=np.int32)])
            (expected,) = plain.decode([replace(feed, draft_tokens=filled, draft_parents=chain(7))])
            (found,) = narrow.decode([feed])
            assert bits(found) == bits(expected)[: 1 + nodes]
            assert not any(copied(narrow, 8))
        assert tap_of(narrow).calls == before


def test_a_grammar_masks_rows_in_place(make: MakeContext, model: Model, text: Tokens) -> None:
    compiler = Compiler(model)
    grammar = compiler.compile(Grammar.gbnf('root ::= [a-z]{1,9} " " [0-9]{4}'))
    feed = Feed(0, text[:80], 80)
    (expected,), (found,) = (context.decode([feed]) for context in (make(), make(logits="in place")))
    before = bits(found)
    left, right = (masked(rows, EMPTY_DRAFT, grammar.fresh())[0] for rows in (expected, found))
    assert bits(left) == bits(right)
    assert np.isneginf(right[0]).any()
    assert bits(found) == before, "the tensor itself is not masked"
    compiler.close()


def test_hidden_states_are_tapped_beside_it(model: Model, text: Tokens) -> None:
    settings = ContextSettings(n_ctx=640, type_v="bf16", threads=1, grid=64)
    contexts = [
        Context(model, replace(settings, logits=logits), tap=Tap((1, 3), "decoded"))
        for logits in ("copied", "in place")
    ]
    assert [context.handle.logits_tap is None for context in contexts] == [True, False]
    for length, nodes in ((90, 3), (92, 0), (97, 5), (97, 5)):
        feed = Feed(0, text[:length], 90, text[600 : 600 + nodes], chain(nodes))
        expected, found = (context.decode([feed])[0] for context in contexts)
        assert bits(found) == bits(expected)
        for what in (1, 3, FINAL):
            left, right = (context.states for context in contexts)
            assert left is not None
            assert right is not None
            span = left.span(0, text[:length], what)
            assert span == right.span(0, text[:length], what)
            assert same_bits(left.read(0, what, *span), right.read(0, what, *span))
    for context in contexts:
        context.close()


def test_where_a_pass_may_be_cut_rows_are_copied(make: MakeContext, model: Model, text: Tokens) -> None:
    """With several slots, and where every row of a prompt has logits."""
    feeds = [
        Feed(slot, text[slot : slot + 90], 90, text[600 : 600 + nodes], chain(nodes))
        for slot, nodes in ((0, 3), (1, 1))
    ]
    expected = make(n_slots=2).decode(feeds)
    context = make(n_slots=2, logits="in place")
    assert context.handle.logits_tap is None
    assert [bits(rows) for rows in context.decode(feeds)] == [bits(rows) for rows in expected]
    states = Context(model, ContextSettings(n_ctx=256, logits="in place"), tap=Tap((), "all"))
    assert states.handle.logits_tap is None
    states.close()


def test_rows_come_from_a_device_as_many_as_are_read(
    model: Model, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with a memory of its own, faked: rows that fill the pass are not fetched to llama.cpp's own buffer."""
    context = ConstantWidth(model, ContextSettings(n_ctx=640, threads=1, grid=64), 8)
    feed = Feed(0, text[:70], 70, text[600:602], chain(2))
    expected = bits(context.decode([feed])[0])
    monkeypatch.setattr(tap_of(context), "_is_host", lambda buffer: False)
    found = context.decode([feed])[0]
    assert bits(found) == expected
    assert copied(context, 3) == b"".join(expected)
    assert not any(copied(context, 8)[12 * context.n_vocab :])
    context.close()


def test_a_llama_cpp_that_takes_no_samplers_copies(
    make: MakeContext, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a model is split by tensors over several GPUs."""

    class Refused(LogitsTap):
        def __init__(self, params: Any, n_vocab: int) -> None:
            super().__init__(params, n_vocab)
            params.n_samplers = 0

    feed = Feed(0, text[:70], 70, text[600:602], chain(2))
    expected = bits(make().decode([feed])[0])
    monkeypatch.setattr(handle, "LogitsTap", Refused)
    context = make(logits="in place")
    assert bits(context.decode([feed])[0]) == expected
    assert tap_of(context).calls == 0


def test_what_goes_wrong_is_raised_and_not_read(
    make: MakeContext, text: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = make(logits="in place")
    context.decode([Feed(0, text[:50], 50)])
    with pytest.raises(DecodeError, match=r"left 1 rows of logits; 2 were asked for\."):
        tap_of(context).rows(2, 0)

    def interrupted(address: int) -> GgmlTensor:
        raise KeyboardInterrupt

    monkeypatch.setattr(handle, "GgmlTensor", SimpleNamespace(from_address=interrupted))
    with pytest.raises(KeyboardInterrupt):
        context.decode([Feed(0, text[:51], 50, text[600:602], chain(2))])
    with pytest.raises(UsageError, match="logits is 'here'"):
        make(logits="here")


def test_another_layout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check: Callable[[], None] = handle._check_layout.__wrapped__
    check()

    class Shifted(ctypes.Structure):
        _fields_ = [("new", ctypes.c_int64), *GgmlTensor._fields_]

    monkeypatch.setattr(handle, "GgmlTensor", Shifted)
    with pytest.raises(LocalspecError, match="lays out its tensors otherwise"):
        check()


@pytest.mark.parametrize("fault", [DecodeError("no rows"), KeyboardInterrupt()])
@pytest.mark.parametrize("width", [None, 8])
def test_after_rows_that_could_not_be_read_a_pass_has_the_bits_it_had(
    width: int | None, fault: BaseException, model: Model, text: Tokens
) -> None:
    """The cache is known to hold what the pass computed; of a pass of one width, without the rows that fill it up."""
    settings = ContextSettings(n_ctx=512, threads=1, grid=64, reuse="chunks", logits="in place")
    lost, whole = (
        Context(model, settings) if width is None else ConstantWidth(model, settings, width) for _ in range(2)
    )
    feed = Feed(0, text[:67], 40, text[300:303], chain(3))
    for context in (lost, whole):
        context.decode([Feed(0, text[:66], 40)])
    tap_of(lost)._error = fault
    with pytest.raises(type(fault)):
        lost.decode([feed])
    assert lost.cached(0) == 67 + 3
    (found,), (expected,) = lost.decode([feed]), whole.decode([feed])
    assert bits(found) == bits(expected)
    assert lost.cached(0) == whole.cached(0)
