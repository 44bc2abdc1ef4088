"""What is exact by construction, on the bundled target; test_architectures.py has other architectures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import Engine
from localspec.errors import ModelError
from localspec.llama.cache.context import Context
from localspec.llama.exact import choice, wide
from localspec.llama.exact.choice import Exactness, Node, by_construction, nodes
from localspec.llama.exact.wide import StepWatch
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model
from localspec.types import Feed, Tokens
from tests.llama import hybrid_file

SETTINGS = ContextSettings(n_ctx=640, threads=2)
pytestmark = pytest.mark.skipif(not wide.available(), reason=wide.status().reason)


@pytest.fixture(scope="module")
def ours(tiny_target: Path) -> Iterator[Model]:
    """The bundled target on our kernels."""
    with Model.load(tiny_target, kernels="wide") as model:
        yield model


def of(model: Model, **settings: Any) -> Exactness:
    tap = settings.pop("tap", Tap())
    context = Context(model, replace(SETTINGS, **settings), tap=tap)
    try:
        return by_construction(context, 32)
    finally:
        context.close()


@pytest.mark.parametrize(
    "settings",
    [{}, {"n_slots": 4}, {"max_leaves": 8}, {"threads": 1}, {"type_v": "bf16"}, {"tap": Tap(final="all")}],
    ids=str,
)
def test_our_kernels_are_exact_at_every_width(ours: Model, settings: dict[str, Any]) -> None:
    assert of(ours, **settings) == Exactness(True, True, "")


def test_llama_cpps_own_are_not_and_the_node_is_named(model: Model) -> None:
    found = of(model)
    assert not found.widths
    assert not found.prefill
    assert found.reason.startswith("the product ")
    assert found.reason.endswith(" is llama.cpp's")


def test_a_file_is_looked_at_without_its_weights(ours: Model, tiny_target: Path, tmp_path: Path) -> None:
    assert choice.of_file(tiny_target) == of(ours)
    hybrid = hybrid_file.write(tmp_path / "hybrid.gguf")
    assert choice.of_file(hybrid) is None
    assert choice.of_file(hybrid, rollback=7) is not None


def test_attention_that_is_not_fused_is_llama_cpps_in_prompts(ours: Model) -> None:
    found = of(ours, flash_attention=False)
    assert found.widths
    assert not found.prefill
    assert "kq-0" in found.reason


@pytest.mark.parametrize("operation", ["ROPE", "RMS_NORM", "SET_ROWS"])
def test_an_operation_that_is_not_on_the_list_is_inexact(
    ours: Model, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "PER_ROW", choice.PER_ROW - {operation})
    found = of(ours)
    assert not found.widths
    assert f"the operation {operation} " in found.reason


def test_a_graph_that_differs_by_width_is_inexact(ours: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def longer(handle: Any, rows: int, *args: Any, **options: Any) -> list[Node]:
        found = nodes(handle, rows, *args, **options)
        return found if rows == 1 else [*found, Node("more", "ADD", "CPU", "", "")]

    monkeypatch.setattr(choice, "nodes", longer)
    assert of(ours) == Exactness(False, False, "the graph of one row is another")


def test_prefill_alone_may_be_inexact(ours: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(handle: Any, rows: int, *args: Any, **options: Any) -> list[Node]:
        found = nodes(handle, rows, *args, **options)
        return [replace(node, backend="CPU") for node in found] if rows == SETTINGS.grid else found

    monkeypatch.setattr(choice, "nodes", theirs)
    found = of(ours)
    assert (found.widths, found.prefill) == (True, False)
    assert found.reason


def test_a_gpus_node_is_named_with_its_device(ours: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus(*args: Any, **options: Any) -> list[Node]:
        return [replace(node, backend="CUDA0") for node in nodes(*args, **options)]

    monkeypatch.setattr(choice, "nodes", gpus)
    assert of(ours).reason.endswith(" is CUDA0's")


def test_looking_changes_no_bit_of_what_follows(ours: Model, text: Tokens) -> None:
    context, other = Context(ours, SETTINGS), Context(ours, SETTINGS)
    for length in (20, 21, 300, 302):
        by_construction(context, 32)
        rows = [one.decode([Feed(0, text[:length], length)])[0][0].tobytes() for one in (context, other)]
        assert rows[0] == rows[1]
    for one in (context, other):
        one.close()


def test_a_graph_lists_its_nodes_and_a_pass_that_does_not_fit_is_one_sentence(
    ours: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = Context(ours, SETTINGS)
    found = nodes(context.handle, 2)
    products = [node for node in found if node.operation == "MUL_MAT"]
    assert {node.backend for node in products} == {wide.DEVICE_NAME}
    assert {node.source_type for node in products} == {"q8_0"}
    assert any(node.source.startswith("blk.0.attn_q") for node in products)
    assert {node.backend for node in found if node.operation == "RMS_NORM"} == {"CPU"}
    refuses = {lib.GRAPH_RESERVE: lambda *args: None}
    monkeypatch.setattr(lib, "c_function", lambda name: refuses.get(name) or c_function(name))
    with pytest.raises(ModelError, match="cannot lay out a pass of 2 rows"):
        nodes(context.handle, 2)
    context.close()


c_function = lib.c_function


# -- the second guard ------------------------------------------------------------------------------------------------


def watched(model: Model, expected: int) -> Context:
    context = Context(model, SETTINGS)
    context.exact_widths, context.watch = frozenset(range(1, 65)), StepWatch(expected)
    return context


def test_passes_run_as_many_steps_as_their_graph_promised(ours: Model, text: Tokens) -> None:
    context = Context(ours, SETTINGS)
    context.exact_widths = frozenset(range(1, 65))
    context.watch = StepWatch(by_construction(context, 32).steps)
    for length, rows in ((30, 1), (31, 1), (32, 4), (40, 1), (41, 8)):
        parents = np.arange(-1, rows - 2, dtype=np.int32)
        context.decode([Feed(0, text[:length], length, text[length : length + rows - 1], parents)])
    assert context.exact_widths is not None
    context.close()


def test_a_pass_that_ran_fewer_is_said_and_nothing_is_exact_from_then_on(
    ours: Model, text: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    context = watched(ours, by_construction(probe := Context(ours, SETTINGS), 32).steps + 1)
    probe.close()
    context.decode([Feed(0, text[:20], 20)])
    assert context.exact_widths is None
    (said,) = caplog.messages
    assert said.startswith("A pass of 1 rows ran 49 of 50 products and attentions")
    context.decode([Feed(0, text[:21], 20)])
    assert len(caplog.messages) == 1
    context.close()


def test_answers_say_so(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine.load(tiny_target, context=256, threads=1, drafter="lookup", max_draft_tokens=3) as engine:
        words = "one two three one two three one two three one two"
        assert (found := engine.generate(words, seed=1, max_tokens=12)).text() is not None
        assert found.stats.exact
        assert engine.loaded.context.watch is not None
        monkeypatch.setattr(engine.loaded.context.watch, "_counted", set())
        monkeypatch.setattr(engine.loaded.context.watch, "_expected", 1000)
        assert (found := engine.generate(words, seed=1, max_tokens=12)).text() is not None
        assert not found.stats.exact
