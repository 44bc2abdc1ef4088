"""What `doctor` says of devices: which are used, where layers are, and how to build llama.cpp for a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.checks.doctor import backend, examine_devices, examine_layers
from localspec.config import EngineSettings
from localspec.llama.library import lib
from localspec.llama.library.lib import Bindings
from localspec.runtime.loading import load_models
from tests.fake_gpus import CARD, SLOW, list_gpus


def missing(_: str) -> None:
    return None


def finder(*names: str) -> Callable[[str], str | None]:
    return lambda name: name if name in names else None


def card(root: Path, address: str, vendor: str, kind: str = "0x030000", vram: int = 0) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in (("vendor", vendor), ("class", kind), ("mem_info_vram_total", str(vram))):
        (folder / name).write_text(f"{text}\n")


def test_the_command_is_the_one_for_the_card_that_is_seen(tmp_path: Path) -> None:
    assert backend(tmp_path, missing) is None
    card(tmp_path, "0000:00:02.0", "0x8086")
    assert backend(tmp_path, missing) is None
    card(tmp_path, "0000:0a:00.0", "0x1002", vram=512 << 20)  # of a processor
    assert backend(tmp_path, missing) is None
    card(tmp_path, "0000:03:00.0", "0x8086")
    assert backend(tmp_path, missing) == ("Intel", "VULKAN")
    card(tmp_path, "0000:0b:00.0", "0x1002", vram=16 << 30)
    assert backend(tmp_path, missing) == ("AMD", "VULKAN")
    assert backend(tmp_path, finder("hipcc")) == ("AMD", "VULKAN")  # its driver is not here
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert backend(tmp_path, finder("hipcc")) == ("AMD", "HIP")
    card(tmp_path, "0000:0c:00.1", "0x10de", kind="0x040300")  # sound
    assert backend(tmp_path, missing) == ("AMD", "VULKAN")
    card(tmp_path, "0000:0c:00.0", "0x10de")
    assert backend(tmp_path, missing) == ("NVIDIA", "CUDA")


def test_a_driver_alone_is_enough(tmp_path: Path) -> None:
    assert backend(tmp_path, finder("nvidia-smi")) == ("NVIDIA", "CUDA")


def test_a_build_without_a_gpu_gets_the_command_only_where_a_card_is(tmp_path: Path) -> None:
    info = replace(lib.info(), gpu_offload=False, bindings=Bindings("llama-cpp-python", "0.3.36"))
    found = list(examine_devices(info, tmp_path, missing))[-1]
    assert (found.value, found.advice, found.command) == (
        "this llama-cpp-python was built without GPU support",
        "",
        "",
    )
    found = list(examine_devices(info, tmp_path, finder("nvidia-smi")))[-1]
    assert found.advice == "This machine seems to have a GPU of NVIDIA; build llama-cpp-python for it."
    assert found.command == (
        "CMAKE_ARGS=-DGGML_CUDA=on pip install --force-reinstall --no-deps --no-cache-dir "
        "--no-binary llama-cpp-python llama-cpp-python==0.3.36"
    )


def test_devices_say_whether_they_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    list_gpus(monkeypatch, SLOW, CARD)
    found = {one.name: one.value for one in examine_devices(replace(lib.info(), gpu_offload=True), tmp_path, missing)}
    assert found["device CUDA0"] == "NVIDIA GeForce RTX 4090, 20.0 of 24.0 GiB free; used by default"
    assert found["device Vulkan0"].endswith("; not used by default: there is a GPU with memory of its own")
    assert "used" not in found["device CPU"]
    assert "GPU" not in found


def test_a_kernel_that_is_on_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    list_gpus(monkeypatch, SLOW, CARD)
    monkeypatch.setenv("LOCALSPEC_CUDA_KERNEL", "1")
    found = {one.name: one.value for one in examine_devices(replace(lib.info(), gpu_offload=True), tmp_path, missing)}
    assert found["device CUDA0"].endswith("; used by default; it lists logits, by a kernel that is tried out")
    assert "kernel" not in found["device Vulkan0"]


def test_where_layers_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    settings = EngineSettings(tiny_target, tiny_draft, context=256, exact="off")
    loaded = load_models(settings)
    try:
        assert list(examine_layers(loaded)) == []
    finally:
        loaded.close()
    list_gpus(monkeypatch, CARD)
    loaded = load_models(replace(settings, draft_gpu_layers=2))
    try:
        (found,) = examine_layers(loaded)
        assert (found.value, found.advice) == ("target: all layers on CUDA0; draft model: 2 layers on CUDA0", "")
        loaded.gpu_fault = "it broke."
        (found,) = examine_layers(loaded)
        assert found.value.endswith("; the GPU failed: it broke.")
        assert found.command == "--gpu-layers -1"
    finally:
        loaded.close()


def test_a_build_whose_driver_shows_no_card_is_not_to_be_built_again(tmp_path: Path) -> None:
    info = replace(lib.info(), gpu_offload=False, gpu_backends=("CUDA",))
    found = list(examine_devices(info, tmp_path, finder("nvidia-smi")))[-1]
    assert found.value.endswith("was built for CUDA, and finds no GPU")
    assert (found.advice, found.command) == (
        "Its driver shows no card to this user: this command must list it, in a container, too.",
        "nvidia-smi",
    )
    assert lib.info().gpu_backends == () or lib.info().gpu_offload
