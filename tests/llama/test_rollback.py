"""Models with recurrent layers: rejected tokens are taken back through llama.cpp's snapshots, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.engine.interfaces import Request
from localspec.errors import UsageError
from localspec.kept import FactStore
from localspec.llama.cache.context import Context
from localspec.llama.exact import widths
from localspec.llama.exact import widths as benches
from localspec.llama.exact.choice import choose
from localspec.llama.exact.wide import CACHE_NAMES
from localspec.llama.exact.widths import Bench, tile
from localspec.llama.library.settings import FINAL, NO_TAP, ContextSettings, Tap
from localspec.llama.model import Model
from localspec.runtime.engine import Engine, HiddenReader
from localspec.types import Feed, SamplingParams, Tokens
from tests.llama.conftest import chain
from tests.llama.hybrid_file import write

SETTINGS = ContextSettings(n_ctx=256, threads=1, grid=64, type_v="bf16", rollback=4)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hybrid") / "hybrid.gguf")


@pytest.fixture(scope="module")
def hybrid(path: Path) -> Iterator[Model]:
    with Model.load(path, kernels="plain", nextn=True) as model:
        yield model


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return np.random.default_rng(1).integers(40, 4000, 100).astype(np.int32)


@pytest.mark.parametrize("tap", [NO_TAP, Tap(final="decoded")], ids=["rows", "states"])
def test_wrong_drafts_leave_no_trace(hybrid: Model, tokens: Tokens, tap: Tap) -> None:
    assert not hybrid.can_trim
    context = Context(hybrid, SETTINGS, tap=tap)
    assert context.most_nodes == 4
    plain = [context.decode([Feed(0, tokens[:n], 30)])[0][0].copy() for n in range(30, 60)]
    held = None if context.states is None else context.states.read(0, FINAL, 29, 59)
    context.forget(0)
    at = 30
    while at < 55:
        right, nodes = at % 3, 2 + at % 3  # of a draft, the first few tokens are right
        draft = np.concatenate([tokens[at : at + right], tokens[70 : 70 + nodes - right]])
        rows = context.decode([Feed(0, tokens[:at], 30, draft, chain(nodes))])[0]
        assert context.reusable(0, tokens[: at + right + 1], 30) == at + right
        for depth in range(right + 1):
            assert rows[depth].tobytes() == plain[at - 30 + depth].tobytes()
        if context.states is not None and held is not None:
            assert context.states.span(0, tokens[: at + right], FINAL) == (29, at + right)
            found = context.states.read(0, FINAL, at - 1, at + right)
            assert found.tobytes() == held[at - 30 : at - 29 + right].tobytes()
        at += right + 1
    context.close()


def test_more_than_it_can_take_back_is_read_again(hybrid: Model, tokens: Tokens) -> None:
    context = Context(hybrid, SETTINGS)
    wanted = context.decode([Feed(0, tokens[:31], 30)])[0][0].copy()
    context.decode([Feed(0, tokens[:35], 30)])
    assert context.reusable(0, tokens[:31], 30) == 0, "the last pass began behind it"
    assert context.decode([Feed(0, tokens[:31], 30)])[0][0].tobytes() == wanted.tobytes()
    context.decode([Feed(0, tokens[:32], 30, tokens[60:63], chain(3))])
    context.forget(0, 33)
    assert context.cached(0) == 33
    assert context.reusable(0, tokens[:33], 30) == 0, "twice is once too often"
    with pytest.raises(UsageError, match="takes no drafts of more than 4 tokens"):
        context.decode([Feed(0, tokens[:40], 30, tokens[60:65], chain(5))])
    context.close()


def test_without_snapshots_or_with_several_slots_nothing_is_drafted(hybrid: Model, tokens: Tokens) -> None:
    for settings in (ContextSettings(n_ctx=256, threads=1), ContextSettings(n_ctx=256, n_slots=2, rollback=4)):
        context = Context(hybrid, settings)
        assert context.most_nodes == 0
        with pytest.raises(UsageError, match="takes no drafts"):
            context.decode([Feed(0, tokens[:30], 30, tokens[:1], chain(1))])
        context.close()


def test_the_text_is_plain_decodings_whoever_guesses(path: Path, tokens: Tokens) -> None:
    with Engine.load(
        path, exact="strict", kernels="plain", cache="bf16", threads=1, context=256, branches=2, corpus="off"
    ) as engine:
        assert "mtp" in engine.drafters
        for temperature in (0.0, 1.0):
            found, drafted = [], 0
            for drafter in ("none", "habits", "mtp", "auto"):
                engine.configure(drafter=drafter, max_draft_tokens={"none": 0, "auto": None}.get(drafter, 9))
                sampling = SamplingParams(temperature=temperature, top_k=2)
                generation = engine.submit(
                    Request(tokens[:40], sampling=sampling, seed=1, max_tokens=40, ignore_end=True)
                )
                generation.text()
                assert generation.stats.exact
                found.append(generation.tokens)
                drafted += generation.stats.drafted
            assert all(one == found[0] for one in found)
            assert drafted > 40


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Fills up with the lengths of histories that are prefilled chunk by chunk, one for each chunk that was read."""
    found: list[int] = []
    chunk = Context.prefill_chunk

    def counted(self: Context, slot: int, tokens: Tokens, *rest: Any) -> int:
        done = chunk(self, slot, tokens, *rest)
        found.append(len(tokens))
        return done

    monkeypatch.setattr(Context, "prefill_chunk", counted)
    return found


@pytest.mark.parametrize("observed", [False, True])
def test_a_probe_goes_back_without_reading_again(hybrid: Model, read: list[int], observed: bool) -> None:
    with closing(Bench(hybrid, replace(SETTINGS, n_ctx=640), observed)) as bench:
        assert tile(bench.state, 128) == bench.state
        seed = len(read)
        for length in (100, 508):
            bench.reference(length, 9)
            assert all(bench.chain_equals(length, width) for width in range(2, 6))
            assert all(bench.rollback_equals(length, width) for width in range(2, 6))
            assert bench.seconds(length, 5) > 0
        assert len(read) == seed, "recurrent states are tiled, too"
        expected = bench._references[508]
        for position in range(5):  # each of the rows behind the two drafts counts
            kept, expected[position] = expected[position], (b"", expected[position][1])
            assert not bench.rollback_equals(508, 5)
            expected[position] = kept


def test_a_state_that_cannot_be_tiled_is_read_once_for_each_length(
    hybrid: Model, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "tile", lambda state, cells: None)
    settings, seed = replace(SETTINGS, n_ctx=640), 2 * [129]
    found = widths.examine(hybrid, settings, widest=8)
    assert found == frozenset(range(1, 6))
    lengths = [250, 508, 640 - 11]
    chunks = {length: -(-(length - 1) // SETTINGS.grid) * [length] for length in lengths}
    observed = [length for at in (250, 629, 508) for length in chunks[at]]
    assert read == seed + observed + chunks[250] + chunks[629]
    read.clear()
    assert widths.examine(hybrid, settings, widest=8, budget=0.0) is None
    assert read == seed, "no time, no reading"


def test_rows_behind_rejected_drafts_are_examined(hybrid: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "rollback_equals", lambda self, length, width: width < 4)
    assert widths.examine(hybrid, SETTINGS, widest=8) == frozenset({1, 2, 3})


def test_several_slots_are_exact_for_single_rows_alone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examine, examined = widths.examine, list[int]()

    def counted(*args: Any, **options: Any) -> frozenset[int] | None:
        examined.append(options["widest"])
        return examine(*args, **options)

    monkeypatch.setattr(widths, "examine", counted)
    for slots, exact in ((1, frozenset(range(1, 6))), (2, frozenset({1}))):
        settings = replace(SETTINGS, n_slots=slots)
        chosen = choose(
            path,
            settings,
            exact="strict",
            kernels="plain",
            cache=CACHE_NAMES["bf16"],
            widest=16,
            facts=FactStore(tmp_path),
        )
        assert chosen.context.exact_widths is not None
        assert chosen.context.exact_widths == exact
        chosen.model.close()
    assert examined == [8], "wider passes than a draft makes are not looked at, and slots decide nothing"


def test_hidden_states_are_read_with_the_snapshots_of_answers(hybrid: Model, tokens: Tokens) -> None:
    for slots, nodes in ((1, 4), (2, 0)):
        like = Context(hybrid, replace(SETTINGS, n_slots=slots))
        reader = HiddenReader(like)
        assert [found.final.shape for found in reader.read(tokens[:30], []) if found is not None] == [(30, 64)]
        assert reader._context is not None
        assert reader._context.most_nodes == like.most_nodes == nodes
        reader.close()
        like.close()
