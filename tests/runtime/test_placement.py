"""Layers on GPUs by default: decided once, remembered, and the CPU serves where a GPU fails.

The GPU is a fake: llama.cpp is told of no device, so what "loads" there is computed on the CPU; what fails does so
where llama.cpp is asked for a model.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.checks.doctor import examine_layers
from localspec.config import EngineSettings
from localspec.errors import ModelFileError, UsageError
from localspec.llama.library import lib
from localspec.machine import Place
from localspec.runtime import placement
from localspec.runtime.engine import Engine
from localspec.runtime.loading import load_models
from localspec.runtime.memory import gpus as listed_gpus
from tests.fake_gpus import CARD, GIB, SLOW, SOFTWARE, list_gpus


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """n_gpu_layers of each model that llama.cpp was asked for."""
    found: list[int] = []
    real = lib.api().llama_model_load_from_file

    def load(path: bytes, params: Any) -> Any:
        found.append(params.n_gpu_layers)
        return real(path, params)

    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", load)
    return found


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Parts of devices of each model that llama.cpp was asked for; [] = none were given."""
    found: list[list[float]] = []
    real = lib.api().llama_model_load_from_file

    def load(path: bytes, params: Any) -> Any:
        found.append([part for part in params.tensor_split[:16] if part] if params.tensor_split else [])
        return real(path, params)

    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", load)
    return found


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, asked: list[int]) -> list[int]:
    """As `asked`; whatever is to be on a GPU fails."""
    before = lib.api().llama_model_load_from_file

    def load(path: bytes, params: Any) -> Any:
        found = before(path, params)
        if params.n_gpu_layers:
            lib.api().llama_model_free(found)
            return None
        return found

    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", load)
    return asked


@pytest.fixture
def pair(tiny_target: Path, tiny_draft: Path) -> EngineSettings:
    return EngineSettings(tiny_target, tiny_draft, context=256, exact="off")


def kept() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (paths.data_dir() / "facts").glob("layers-*.json")]


def test_a_machine_without_a_gpu_keeps_and_says_nothing(pair: EngineSettings, caplog: pytest.LogCaptureFixture) -> None:
    found = placement.place(pair)
    assert found == placement.Placement(replace(pair, gpu_layers=0, draft_gpu_layers=0))
    load_models(pair).close()
    assert (kept(), caplog.records) == ([], [])


@pytest.mark.parametrize("gpu", [SLOW, SOFTWARE])
def test_a_gpu_that_is_not_worth_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, gpu: lib.Device
) -> None:
    list_gpus(monkeypatch, gpu)
    assert placement.place(pair) == placement.Placement(replace(pair, gpu_layers=0, draft_gpu_layers=0))
    assert kept() == []


def test_what_fits_goes_to_the_gpu(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, asked: list[int]) -> None:
    list_gpus(monkeypatch, SLOW, CARD)
    loaded = load_models(pair)
    try:
        placed = loaded.settings
        assert (placed.gpu_layers, placed.draft_gpu_layers) == (-1, -1)
        assert (placed.device, placed.draft_device) == ("CUDA0", "CUDA0")
        assert asked == [-1, -1]
        assert loaded.gpu_fault == ""
    finally:
        loaded.close()
    assert kept() == [{"layers": [-1, -1], "fault": ""}]


def test_what_is_remembered_stays(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, CARD)
    placement.place(pair)
    (file,) = (paths.data_dir() / "facts").glob("layers-*.json")
    file.write_text('{"layers": [3, 0], "fault": ""}')

    def numbers(settings: EngineSettings) -> tuple[Any, Any]:
        placed = placement.place(settings).settings
        return placed.gpu_layers, placed.draft_gpu_layers

    assert numbers(pair) == (3, 0)
    assert numbers(replace(pair, context=300)) == (-1, -1)  # other caches
    assert numbers(replace(pair, gpu_layers=2)) == (2, -1)
    file.write_text("[]")
    assert numbers(pair) == (-1, -1)


def test_another_device_or_more_memory_decides_anew(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    for gpu in (CARD, replace(CARD, total_bytes=48 * GIB), replace(CARD, description="another"), CARD):
        with monkeypatch.context() as patch:
            list_gpus(patch, gpu)
            placement.place(pair)
    list_gpus(monkeypatch, replace(CARD, free_bytes=1))  # what is free is no reason
    placement.place(pair)
    assert len(kept()) == 3


def test_the_cpu_serves_where_the_gpu_fails_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, broken: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    list_gpus(monkeypatch, CARD)
    with caplog.at_level(logging.WARNING, "localspec"), Engine(load_models(pair)) as engine:
        assert (engine.settings.gpu_layers, engine.settings.draft_gpu_layers, engine.settings.device) == (0, 0, None)
        assert list(engine.generate("a b c", max_tokens=4, ignore_end=True))[-1].finish == "length"
        assert "cannot load" in engine.loaded.gpu_fault
    assert broken == [-1, 0, 0]
    (record,) = caplog.records
    assert record.getMessage().startswith("The GPU (CUDA0) failed: llama.cpp cannot load ")
    assert record.getMessage().endswith(
        "The CPU serves, now and at later starts; `--gpu-layers -1` tries the GPU again."
    )
    broken.clear()
    caplog.clear()
    loaded = load_models(pair)  # a later start does not try it, and says nothing
    loaded.close()
    assert (broken, caplog.records) == ([0, 0], [])
    assert "cannot load" in loaded.gpu_fault


def test_layers_that_load_when_asked_for_end_a_fault(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, asked: list[int]
) -> None:
    list_gpus(monkeypatch, CARD)
    placement.remember(placement.on_cpu(placement.place(pair), "it broke"))
    assert placement.place(pair).fault == "it broke"
    load_models(replace(pair, gpu_layers=-1)).close()
    assert placement.place(pair).fault == ""
    assert placement.place(pair).settings.gpu_layers == -1


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("given", [{"gpu_layers": -1}, {"gpu_layers": 2}, {"device": "CUDA0"}])
def test_a_gpu_that_was_asked_for_and_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, given: dict[str, Any]
) -> None:
    list_gpus(monkeypatch, CARD)
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load"):
        load_models(replace(pair, **given))
    assert kept() == []


@pytest.mark.usefixtures("broken")
def test_more_layers_than_fit_are_said(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, replace(CARD, free_bytes=GIB))
    with pytest.raises(ModelFileError) as caught:
        load_models(replace(pair, gpu_layers=-1))
    assert "does not fit: " in caught.value.hint
    assert "too little, with a margin) on CUDA0" not in caught.value.hint
    assert caught.value.hint.endswith("Give fewer --gpu-layers, or leave them out.")


def test_a_damaged_file_is_no_fault_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, asked: list[int]
) -> None:
    list_gpus(monkeypatch, CARD)
    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", lambda path, params: None)
    with pytest.raises(ModelFileError):
        load_models(pair)
    assert [data["fault"] for data in kept()] == [""]
    assert asked == []


@pytest.mark.parametrize("listed", [(), (SOFTWARE,)])
def test_layers_without_a_gpu_are_refused(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, listed: tuple[lib.Device, ...]
) -> None:
    list_gpus(monkeypatch, *listed)
    with pytest.raises(UsageError, match=r"gpu_layers is 8, but llama\.cpp finds no GPU here"):
        placement.place(replace(pair, gpu_layers=8))


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, CARD)
    with pytest.raises(UsageError, match=r"there is no device 'CUDA7'; llama\.cpp has .*CUDA0"):
        load_models(replace(pair, device="CUDA7"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"gpu_layers": 4}, (4, -1, "Vulkan0", "Vulkan0")),  # an integrated one, as it was asked for
        ({"device": "Vulkan0"}, (-1, -1, "Vulkan0", "Vulkan0")),
        ({"device": "CPU"}, (0, 0, "CPU", None)),
        ({"draft_device": "Vulkan0"}, (0, -1, None, "Vulkan0")),
        ({"gpu_layers": 4, "draft_device": "CPU"}, (4, 0, "Vulkan0", "CPU")),
        ({"gpu_layers": 4, "draft_gpu_layers": 1}, (4, 1, "Vulkan0", "Vulkan0")),
    ],
)
def test_what_is_asked_for_is_done(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, given: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    list_gpus(monkeypatch, SLOW)
    placed = placement.place(replace(pair, **given)).settings
    assert (placed.gpu_layers, placed.draft_gpu_layers, placed.device, placed.draft_device) == expected
    assert kept() == []


def test_several_gpus_share_by_all_their_memory(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, splits: list[list[float]]
) -> None:
    small = lib.Device("CUDA1", "NVIDIA GeForce RTX 4060 Ti", "gpu", 1 * GIB, 16 * GIB)
    list_gpus(monkeypatch, CARD, small)
    loaded = load_models(pair)
    loaded.close()
    assert (loaded.settings.device, loaded.settings.draft_device) == ("CUDA0=3,CUDA1=2", "CUDA0=3,CUDA1=2")
    assert splits == [[3, 2], [3, 2]]
    assert placement.place(replace(pair, gpu_layers=-1)).settings.device == "CUDA0,CUDA1"  # --fit goes by what is free
    splits.clear()
    load_models(replace(pair, device="CUDA1=1,CUDA0=4", draft_gpu_layers=0)).close()
    load_models(replace(pair, device="CUDA1")).close()
    assert splits == [[1, 4], [], [], []]


M4 = lib.Device("MTL0", "Apple M4", "gpu", 8 * GIB, 12 * GIB)
"""An integrated GPU that the table of memory rates uses."""


def took(settings: EngineSettings, seconds: float, wide: float | None = None) -> None:
    """Has a plain pass, and one of 8 rows, have taken so long where such settings put the target."""
    loaded = load_models(settings)
    try:
        for _ in range(60):
            loaded.knowledge.costs.observe(1, 512, seconds)
            loaded.knowledge.costs.observe(8, 512, wide or 0.0)
        loaded.save_knowledge()
    finally:
        loaded.close()


@pytest.mark.parametrize(
    ("gpu", "by_table", "on_gpu", "on_cpu", "then"),
    [
        (M4, -1, 0.02, 0.01, 0),
        (M4, -1, 0.01, 0.02, -1),
        (SLOW, 0, 0.01, 0.02, -1),
        (SLOW, 0, 0.02, 0.01, 0),
    ],
    ids=["slower than the table says", "as the table says", "faster than the table says", "slow indeed"],
)
def test_real_passes_decide_about_an_integrated_gpu(
    monkeypatch: pytest.MonkeyPatch,
    pair: EngineSettings,
    caplog: pytest.LogCaptureFixture,
    gpu: lib.Device,
    by_table: int,
    on_gpu: float,
    on_cpu: float,
    then: int,
) -> None:
    list_gpus(monkeypatch, gpu)
    assert placement.place(pair).settings.gpu_layers == by_table
    took(replace(pair, gpu_layers=-1), on_gpu)
    assert placement.place(pair).settings.gpu_layers == by_table, "the CPU is not known yet"
    took(replace(pair, gpu_layers=0), on_cpu)
    caplog.clear()
    for _ in range(2):
        assert placement.place(pair).settings.gpu_layers == then
    loaded = load_models(pair)
    (where,) = examine_layers(loaded)
    loaded.close()
    assert where.value.startswith(f"target: {'all layers on' if then else 'on the CPU'}")
    assert "; while answering a plain pass took " in where.value
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (then != by_table), "once, and only if it changes"
    if said:
        gpu_ms, cpu_ms, who = f"{1e3 * on_gpu:.1f}", f"{1e3 * on_cpu:.1f}", "GPU" if then else "CPU"
        assert said == [
            f"While answering a plain pass took {gpu_ms} ms on {gpu.name} and {cpu_ms} ms on the CPU: the {who} serves "
            "from now on."
        ]
    assert placement.place(replace(pair, gpu_layers=-1 if not then else 0)).settings.gpu_layers == (
        -1 if not then else 0
    )
    assert placement.place(replace(pair, threads=7)).settings.gpu_layers == by_table, "other threads were not timed"


def test_under_strict_a_gpu_s_passes_count_with_all_their_rows(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings
) -> None:
    list_gpus(monkeypatch, M4)
    took(replace(pair, gpu_layers=-1), 0.01, 0.03)
    took(replace(pair, gpu_layers=0), 0.02)
    assert placement.place(pair).settings.gpu_layers == -1
    assert placement.place(replace(pair, exact="strict")).settings.gpu_layers == 0
    found = placement.measured(replace(pair, exact="strict"))
    assert found is not None
    assert found[1] == "a plain pass took 30.0 ms on MTL0 and 20.0 ms on the CPU"


def test_other_machines_that_are_named_are_used_whatever_an_integrated_gpu_took(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings
) -> None:
    list_gpus(monkeypatch, SLOW)
    took(replace(pair, gpu_layers=-1), 0.01)
    took(replace(pair, gpu_layers=0), 0.02)
    there = listed_gpus()
    far = Place("RPC0", "gpu", 8 * GIB, 8 * GIB, "far:50052")
    monkeypatch.setattr(placement, "gpus", lambda servers=None: [*there, far] if servers else there)
    assert placement.place(pair).settings.device == "Vulkan0"
    assert placement.place(replace(pair, rpc="far:50052")).settings.device == "RPC0"


def test_a_card_is_used_whatever_an_integrated_gpu_took(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, SLOW)
    took(replace(pair, gpu_layers=-1), 0.01)
    took(replace(pair, gpu_layers=0), 0.02)
    with monkeypatch.context() as patch:
        list_gpus(patch, CARD)
        assert placement.measured(pair) is None
        assert placement.place(pair).settings.device == "CUDA0"


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ({}, "CUDA0"),
        ({"main_gpu": 1}, "CUDA1"),
        ({"main_gpu": 1, "device": "CUDA1=1,CUDA0=4"}, "CUDA0"),
        ({"main_gpu": 1, "gpu_layers": 3}, "CUDA1"),
    ],
)
def test_one_gpu_has_all_without_a_split(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, splits: list[list[float]], given: dict[str, Any], device: str
) -> None:
    list_gpus(monkeypatch, CARD, replace(CARD, name="CUDA1"))
    loaded = load_models(replace(pair, split_mode="none", **given))
    loaded.close()
    assert (loaded.settings.device, loaded.settings.draft_device) == (device, device)
    assert splits == [[], []]
    assert placement.place(loaded.settings).settings == loaded.settings


def test_a_main_gpu_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, CARD)
    with pytest.raises(UsageError, match=r"main_gpu is 1, but the devices are CUDA0, counted from 0"):
        placement.place(replace(pair, split_mode="none", main_gpu=1))
    with pytest.raises(UsageError, match=r"main_gpu is 1, which needs split_mode none"):
        replace(pair, main_gpu=1)


def test_how_tensors_are_spread_reaches_the_model(monkeypatch: pytest.MonkeyPatch, pair: EngineSettings) -> None:
    list_gpus(monkeypatch, CARD)
    keys = set()
    for given in ({}, {"split_mode": "row"}, {"cpu_moe": 2}, {"override_tensor": "ffn_up=CPU"}):
        loaded = load_models(replace(pair, **given))
        loaded.close()
        assert loaded.model.spread == placement.spread(replace(pair, **given))
        keys.add(loaded.cache_key)
    assert len(keys) == 4
    assert len(kept()) == 4


def test_the_cpu_that_serves_instead_has_all_tensors(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, broken: list[int]
) -> None:
    list_gpus(monkeypatch, CARD)
    loaded = load_models(replace(pair, split_mode="row", override_tensor="ffn_up=CPU"))
    loaded.close()
    assert (str(loaded.model.spread), broken) == ("", [-1, 0, 0])


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("CUDA0=x", "the part of device CUDA0 is 'x'; it must be a number above 0"),
        ("CUDA0=0", "the part of device CUDA0 is '0'; it must be a number above 0"),
        ("CUDA0=inf", "the part of device CUDA0 is 'inf'"),
        ("CUDA0=1,CUDA1", "give all devices a part of the layers, or none"),
    ],
)
def test_parts_that_are_none_are_refused(
    monkeypatch: pytest.MonkeyPatch, pair: EngineSettings, device: str, words: str
) -> None:
    list_gpus(monkeypatch, CARD)
    with pytest.raises(UsageError, match=words):
        placement.place(replace(pair, device=device))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("split_mode", "rows", r"split_mode is 'rows'; it must be one of layer, row, tensor, none"),
        ("main_gpu", -1, r"main_gpu is -1; it must be 0 or more"),
        ("cpu_moe", -2, r"cpu_moe is -2; it must be -1 \(all\), 0 \(none\) or more"),
    ],
)
def test_spreads_that_are_none_are_refused(pair: EngineSettings, name: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        replace(pair, **{name: value})


@pytest.mark.parametrize("value", ["all", -2, 1.5])
def test_nonsense_is_refused(pair: EngineSettings, value: Any) -> None:
    make: Callable[..., Any] = replace
    with pytest.raises(
        UsageError, match=r"^draft_gpu_layers is .*; it must be (auto, )?-1 \(all\), 0 \(none\) or more"
    ):
        make(pair, draft_gpu_layers=value)
