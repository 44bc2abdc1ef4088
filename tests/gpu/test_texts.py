"""Texts of a device: under strict each drafter gives those of plain decoding there, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.config import EngineSettings
from localspec.llama.cache.context import ConstantWidth
from localspec.llama.exact.choice import MOST_PADDED_COST
from localspec.runtime import costs
from localspec.runtime.engine import Engine
from localspec.runtime.loading import load_models
from localspec.types import SamplingParams
from tests.gpu.conftest import NAME, Run

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


@pytest.mark.parametrize(
    ("places", "layers"), [({"device": NAME, "draft_device": "CPU"}, (-1, 0)), ({"draft_device": NAME}, (0, -1))]
)
def test_target_and_draft_model_are_on_two_devices(
    places: dict[str, Any],
    layers: tuple[int, int],
    tiny_target: Path,
    tiny_draft: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    settings = EngineSettings(tiny_target, tiny_draft, context=256, exact="strict", corpus="off", **places)
    with Engine(load_models(settings)) as engine:
        assert (engine.settings.gpu_layers, engine.settings.draft_gpu_layers) == layers
        plain, drafted = (
            engine.generate(PROMPT, sampling=WAYS["greedy"], max_tokens=16, ignore_end=True, drafter=drafter)
            for drafter in ("none", "draft")
        )
        assert plain.text() == drafted.text()
        assert drafted.stats.exact
        assert drafted.stats.passes < plain.stats.passes == 16


def test_the_next_start_knows_what_passes_took(
    tiny_target: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Run
) -> None:
    """Real answers with plain passes and with passes of 8 rows; `auto` then decides by what they took."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    settings = EngineSettings(tiny_target, tiny_draft, context=256, device=NAME, max_draft_tokens=7, corpus="off")
    with Engine(load_models(settings)) as engine:
        for drafter in ("none", "draft"):
            engine.generate(PROMPT, sampling=WAYS["greedy"], max_tokens=24, ignore_end=True, drafter=drafter).text()
    timed = costs.read_passes(settings, -1, NAME)
    assert timed is not None
    assert timed.padded is not None
    text = program("doctor", "--device", NAME, LOCALSPEC_DATA=str(tmp_path)).stdout
    assert f"{timed.padded:.2f} times as long as plain ones" in text
    cheap = timed.padded <= MOST_PADDED_COST
    assert ("all passes have 8 rows" in text, f"is {NAME}'s" in text) == (cheap, not cheap)
