"""What `show`, `check` and `doctor` say of GPUs, on devices that llama.cpp is made to list."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.config import EngineSettings
from localspec.gguf.spread import BY_LAYER
from localspec.planning.costs import PassCosts
from localspec.runtime import costs, placement
from tests.cli.conftest import Command
from tests.fake_gpus import CARD, SLOW, SOFTWARE, list_gpus
from tests.models.made_models import Made, write_model


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))


@pytest.mark.parametrize("words", [("show", "tiny"), ("check", "tiny")])
def test_without_a_gpu_none_is_named(command: Command, words: tuple[str, ...]) -> None:
    told = command(*words).out
    assert "GPU" not in told
    assert "not used" not in told


def test_check_says_what_runs_where(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, SLOW, CARD)
    lines = command("check", "tiny").out.splitlines()
    assert "CUDA0 (NVIDIA GeForce RTX 4090): 7 layers of the target, 3 layers of the draft" in lines
    assert "Vulkan0 (Intel(R) UHD Graphics 770): not used, there is a GPU with memory of its own" in lines
    assert any(line.startswith("target on CUDA0: ") for line in lines)
    lines = command("check", "tiny", "--gpu-layers", "2").out.splitlines()
    assert "CUDA0 (NVIDIA GeForce RTX 4090): 2 layers of the target, 3 layers of the draft" in lines
    lines = command("check", "tiny", "--gpu-layers", "0").out.splitlines()
    assert "CUDA0 (NVIDIA GeForce RTX 4090): not used" in lines
    assert not any("on CUDA0: " in line for line in lines)


def test_devices_that_are_named_are_judged(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, SLOW, CARD)
    lines = command("check", "tiny", "--device", "Vulkan0").out.splitlines()
    assert "Vulkan0 (Intel(R) UHD Graphics 770): 7 layers of the target, 3 layers of the draft" in lines
    assert "CUDA0 (NVIDIA GeForce RTX 4090): not used" in lines
    assert "7 layers of the target" in command("show", "tiny-target", "--device", "Vulkan0").out
    done = command("check", "tiny", "--device", "CUDA7")
    assert (done.code, done.err) == (2, "localspec: there is no device 'CUDA7'; llama.cpp has CPU, Vulkan0, CUDA0.\n")


def test_experts_on_the_cpu_are_counted_there(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = Made("qwen3moe", layers=2, experts=64, metadata={"expert_feed_forward_length": 1024})
    model = write_model(tmp_path / "moe.gguf", made)
    list_gpus(monkeypatch, replace(CARD, total_bytes=1174 << 20))
    told = command("show", str(model)).out
    assert "2 layers of the target" in told
    told = command("show", str(model), "--cpu-moe", "-1").out
    assert "3 layers of the target" in told


def test_fit_takes_one_gpu_without_a_split(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, CARD, replace(CARD, name="CUDA1"))
    words = ("run", "--fit", "--context", "256", "--exact", "off", "--max-tokens", "1", "--split-mode")
    assert "on CUDA0, " in command(*words, "layer", "hi").err
    told = command(*words, "none", "--main-gpu", "1", "hi").err
    assert re.search(r"free on CUDA1[.,]", told)
    assert "CUDA0" not in told


def test_two_gpus_share_the_layers(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, CARD, replace(CARD, name="CUDA1"))
    lines = command("check", "tiny").out.splitlines()
    for name in ("CUDA0", "CUDA1"):
        assert any(re.match(rf"{name} .*: 7 layers of the target.* between the GPUs$", line) for line in lines)


def test_show_says_what_runs_where(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, SOFTWARE)
    told = command("show", "tiny-target").out
    assert re.search(r"^GPU +Vulkan0 \(llvmpipe .*\): not used, the CPU computes in its name$", told, re.MULTILINE)
    list_gpus(monkeypatch, CARD)
    told = command("show", "tiny-target").out
    assert re.search(r"^GPU +.*\n +CUDA0 \(NVIDIA GeForce RTX 4090\): 7 layers of the target$", told, re.MULTILINE)


def test_doctor_says_what_runs_where(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, CARD)
    told = command("doctor", "--exact", "off").out
    assert re.search(r"^layers +target: all layers on CUDA0; draft model: all layers on CUDA0$", told, re.MULTILINE)
    assert re.search(r"^device CUDA0 +.*; used by default$", told, re.MULTILINE)


def test_what_passes_took_is_told_where_it_decides(
    command: Command, monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tiny_draft: Path
) -> None:
    apple = replace(CARD, name="MTL0", description="Apple M4")
    pair = EngineSettings(tiny_target, tiny_draft)
    with monkeypatch.context() as patch:
        list_gpus(patch, apple)
        assert "MTL0 (Apple M4): 7 layers of the target, 3 layers of the draft" in command("check", "tiny").out
        for layers, device, seconds in ((-1, "MTL0", 0.02), (0, None, 0.01)):
            costs.write_passes(pair, PassCosts({100: {1: seconds}}), layers, device, BY_LAYER)
        line = "MTL0 (Apple M4): not used, a plain pass took 20.0 ms on MTL0 and 10.0 ms on the CPU"
        assert line in command("check", "tiny").out.splitlines()
        assert line in command("show", "tiny").out
    list_gpus(monkeypatch, SLOW)
    for layers, device, seconds in ((-1, "Vulkan0", 0.01), (0, None, 0.02)):
        costs.write_passes(pair, PassCosts({100: {1: seconds}}), layers, device, BY_LAYER)
    assert "Vulkan0 (Intel(R) UHD Graphics 770): 7 layers of the target" in command("check", "tiny").out


def test_a_gpu_that_failed_is_told_until_it_is_asked_for(
    command: Command, monkeypatch: pytest.MonkeyPatch, tiny_target: Path, tiny_draft: Path
) -> None:
    list_gpus(monkeypatch, CARD)
    pair = EngineSettings(tiny_target, tiny_draft)
    placement.remember(placement.on_cpu(placement.place(pair), "no memory."))
    line = "CUDA0 (NVIDIA GeForce RTX 4090): not used, it failed at an earlier start: no memory."
    assert line in command("check", "tiny").out.splitlines()
    assert line in command("show", "tiny").out
    assert line not in command("check", "tiny", "--gpu-layers", "-1").out
    assert line not in command("check", "tiny", "--context", "300").out  # other caches were never tried
