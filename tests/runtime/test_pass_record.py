"""What real passes took decides at the next start whether `auto` has passes of one width on a GPU.

The GPU is a fake: what is put there is computed on the CPU, and what its passes took is made up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localspec import paths
from localspec.config import EngineSettings
from localspec.gguf.spread import BY_LAYER
from localspec.llama.cache.context import ConstantWidth
from localspec.runtime import costs
from localspec.runtime.engine import Engine
from localspec.runtime.loaded import Loaded
from localspec.runtime.loading import load_models
from tests.fake_gpus import CARD, list_gpus


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))
    list_gpus(monkeypatch, CARD)


@pytest.fixture
def settings(tiny_target: Path) -> EngineSettings:
    return EngineSettings(tiny_target, context=256, threads=1)


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each comparison of rows found."""
    found: list[bool] = []
    real = ConstantWidth.same_bits

    def same_bits(context: ConstantWidth) -> bool:
        found.append(real(context))
        return found[-1]

    monkeypatch.setattr(ConstantWidth, "same_bits", same_bits)
    return found


def start(settings: EngineSettings, ratio: float | None = None) -> tuple[bool, str]:
    """(whether passes have one width, how exact it is in words); passes of 8 rows then take `ratio` times a plain one's
    seconds.
    """
    loaded = load_models(settings)
    try:
        if ratio is not None:
            _passes(loaded, ratio)
        return isinstance(loaded.context, ConstantWidth), loaded.exactness
    finally:
        loaded.close()


def _passes(loaded: Loaded, ratio: float) -> None:
    for _ in range(60):
        loaded.knowledge.costs.observe(1, 100, 0.010)
        loaded.knowledge.costs.observe(8, 100, 0.010 * ratio)
    loaded.save_knowledge()


def test_auto_drafts_freely_until_passes_were_timed(settings: EngineSettings, compared: list[bool]) -> None:
    constant, words = start(settings)
    assert not constant
    assert words.startswith("inexact: ")
    assert compared == []


def test_passes_that_cost_little_more_have_one_width_from_the_next_start_on(
    settings: EngineSettings, compared: list[bool]
) -> None:
    assert not start(settings, 1.06)[0]
    for _ in range(2):
        constant, words = start(settings)
        assert constant
        assert words.endswith("(all passes have 8 rows, which take 1.06 times as long as plain ones)")
        assert words.startswith("exact: ")
    assert compared == [True], "it is remembered"
    with Engine(load_models(settings)) as engine:
        said = engine.generate("a b c", max_tokens=12, ignore_end=True)
        assert said.text()
        assert said.stats.exact
        assert said.stats.passes


def test_passes_that_cost_more_stay_as_they_are(settings: EngineSettings, compared: list[bool]) -> None:
    start(settings, 1.4)
    constant, words = start(settings)
    assert not constant
    assert words.endswith("; passes of 8 rows take 1.40 times as long as plain ones)")
    assert compared == []


def test_what_passes_of_one_width_took_does_not_count(settings: EngineSettings) -> None:
    start(settings, 1.4)
    start(replace(settings, exact="strict"), 1.0)
    assert not start(settings)[0]


def test_rows_that_differ_leave_it_free(
    settings: EngineSettings, compared: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    start(settings, 1.0)
    monkeypatch.setattr(ConstantWidth, "same_bits", lambda self: False)
    constant, words = start(settings)
    assert (constant, words.split(":")[0]) == (False, "inexact")


@pytest.mark.parametrize("other", [{"slots": 2}, {"branches": 2}, {"exact": "off"}, {"gpu_layers": 3}, {"cpu_moe": 1}])
def test_trees_several_slots_and_other_places_are_free(settings: EngineSettings, other: dict[str, object]) -> None:
    start(settings, 1.0)
    assert not start(replace(settings, **other))[0]  # type: ignore[arg-type]


def test_nothing_is_kept_of_a_cpu(settings: EngineSettings) -> None:
    start(replace(settings, gpu_layers=0), 1.0)
    assert not list((paths.data_dir() / "facts").glob("passes-*"))


@pytest.mark.parametrize(
    "text", ["", "[]", '{"plain": 0.01}', '{"plain": -1, "padded": 1}', '{"plain": 1, "padded": 0}']
)
def test_damage_is_as_if_nothing_was_known(settings: EngineSettings, text: str) -> None:
    start(settings, 1.0)
    (file,) = (paths.data_dir() / "facts").glob("passes-*")
    known = costs.read_passes(replace(settings, device="CUDA0"), -1, "CUDA0", BY_LAYER)
    assert known is not None
    assert known.padded == pytest.approx(1.0, rel=0.01)
    file.write_text(text)
    assert costs.read_passes(replace(settings, device="CUDA0"), -1, "CUDA0", BY_LAYER) is None
