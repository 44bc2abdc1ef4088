"""Texts of a device: under strict each drafter gives those of plain decoding there, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.config import EngineSettings
from localspec.llama.cache.context import ConstantWidth
from localspec.runtime.engine import Engine
from localspec.runtime.loading import load_models
from localspec.types import SamplingParams
from tests.gpu.conftest import NAME

pytestmark = pytest.mark.trial
PROMPT = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon."
WAYS = {"greedy": SamplingParams(temperature=0.0), "by noise": SamplingParams(temperature=1.0)}


@pytest.fixture(scope="module", params=[-1, 3], ids=["all layers", "half the layers"])
def engine(
    request: pytest.FixtureRequest, tiny_target: Path, tiny_draft: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    settings = EngineSettings(
        tiny_target, tiny_draft, context=256, exact="strict", device=NAME, gpu_layers=request.param, corpus="off"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_DATA", str(tmp_path_factory.mktemp("data")))
        with Engine(load_models(settings)) as made:
            yield made


@pytest.mark.parametrize("way", WAYS)
def test_drafts_change_no_byte(engine: Engine, way: str) -> None:
    assert isinstance(engine.loaded.context, ConstantWidth)
    texts, passes = {}, {}
    for drafter in ("none", "lookup", "draft", "auto"):
        generation = engine.generate(
            PROMPT, sampling=WAYS[way], seed=3, max_tokens=16, ignore_end=True, drafter=drafter
        )
        texts[drafter] = "".join(event.text for event in generation)
        assert generation.stats.exact
        passes[drafter] = generation.stats.passes
    assert len(set(texts.values())) == 1, texts
    assert passes["none"] == 16
    assert min(passes.values()) < 16
