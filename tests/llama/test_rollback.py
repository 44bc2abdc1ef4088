"""Models with recurrent layers: rejected tokens are taken back through llama.cpp's snapshots, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from localspec.engine.request import Request
from localspec.errors import UsageError
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.settings import ContextSettings
from localspec.runtime.engine import Engine
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


def test_wrong_drafts_leave_no_trace(hybrid: Model, tokens: Tokens) -> None:
    assert not hybrid.can_trim
    context = Context(hybrid, SETTINGS)
    assert context.most_nodes == 4
    plain = [context.decode([Feed(0, tokens[:n], 30)])[0][0].copy() for n in range(30, 60)]
    context.forget(0)
    at = 30
    while at < 55:
        right, nodes = at % 3, 2 + at % 3  # of a draft, the first few tokens are right
        draft = np.concatenate([tokens[at : at + right], tokens[70 : 70 + nodes - right]])
        rows = context.decode([Feed(0, tokens[:at], 30, draft, chain(nodes))])[0]
        assert context.reusable(0, tokens[: at + right + 1], 30) == at + right
        for depth in range(right + 1):
            assert rows[depth].tobytes() == plain[at - 30 + depth].tobytes()
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
            for drafter in ("none", "recycling", "mtp", "auto"):
                engine.configure(drafter=drafter, max_draft_tokens={"none": 0, "auto": None}.get(drafter, 9))
                sampling = SamplingParams(temperature=temperature, top_k=2)
                generation = engine.submit(Request(tokens[:40], sampling, seed=1, max_tokens=40, ignore_end=True))
                generation.text()
                assert generation.stats.exact
                found.append(generation.tokens)
                drafted += generation.stats.drafted
            assert all(one == found[0] for one in found)
            assert drafted > 40
