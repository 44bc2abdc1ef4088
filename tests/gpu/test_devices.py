"""What is found and where layers go, on a real device: what `fake_gpus` lists elsewhere is llama.cpp's own here."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from localspec.bench import pass_times as reports
from localspec.bench.pass_times import PassSettings, measure_passes
from localspec.config import EngineSettings
from localspec.errors import UsageError
from localspec.gguf import read_header
from localspec.llama.library import lib
from localspec.runtime import memory, placement
from localspec.runtime.loading import load_models
from tests.gpu.conftest import LAYER, NAME, Run
from tests.llama.architectures import write

pytestmark = pytest.mark.trial


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))


@pytest.fixture
def pair(tiny_target: Path, tiny_draft: Path) -> EngineSettings:
    return EngineSettings(tiny_target, tiny_draft, context=256, exact="off")


def buffers(settings: EngineSettings) -> dict[str, float]:
    """MiB of weights and caches of both models on each device, as llama.cpp reports them while it loads."""
    mark = lib.log.mark()
    load_models(settings).close()
    found: dict[str, float] = {}
    for _, line in lib.log.since(mark):
        if (match := re.search(r"(\w+) (?:model|KV) buffer size = +([\d.]+) MiB", line)) is not None:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found


def test_it_is_listed_and_known_as_software(device: lib.Device) -> None:
    assert "llvmpipe" in device.description
    (gpu,) = memory.gpus()
    assert (gpu.name, gpu.total_bytes) == (NAME, device.total_bytes)
    assert memory.is_software(gpu)
    assert 0 < gpu.free_bytes <= gpu.total_bytes
    assert memory.used_gpus([gpu]) == []


def test_it_is_not_used_unless_it_is_named(pair: EngineSettings) -> None:
    placed = placement.place(pair).settings
    assert (placed.gpu_layers, placed.draft_gpu_layers) == (0, 0)
    with pytest.raises(UsageError, match=r"llama\.cpp finds no GPU here"):
        placement.place(replace(pair, gpu_layers=3))
    with pytest.raises(UsageError, match=rf"there is no device 'Vulkan7'; llama\.cpp has .*{NAME}"):
        load_models(replace(pair, device="Vulkan7"))


def test_weights_are_where_they_were_put(pair: EngineSettings) -> None:
    """Each model alone on the device takes what it takes beside the other; its weights are there but for the table of
    embeddings, which llama.cpp looks up on the CPU."""
    target = buffers(replace(pair, device=NAME, draft_device="CPU"))[NAME]
    draft = buffers(replace(pair, draft_device=NAME))[NAME]
    assert buffers(replace(pair, device=NAME))[NAME] == pytest.approx(target + draft, abs=0.1)
    assert NAME not in buffers(replace(pair, device=NAME, gpu_layers=0, draft_gpu_layers=0))
    tensors = read_header(pair.target).tensors
    assert target * 2**20 > sum(tensor.size for tensor in tensors if not tensor.name.startswith("token_embd"))
    assert 0 < draft < target / 2


def test_some_layers_and_tensors_stay_on_the_cpu(pair: EngineSettings) -> None:
    whole = buffers(replace(pair, device=NAME))[NAME]
    assert 0 < buffers(replace(pair, device=NAME, gpu_layers=3))[NAME] < 0.7 * whole
    assert 0 < buffers(replace(pair, device=NAME, override_tensor="ffn_=CPU"))[NAME] < 0.7 * whole


def test_experts_stay_on_the_cpu(tmp_path: Path) -> None:
    """To the byte: what the device has less of is the matrices of the experts."""
    model = write("qwen3moe", tmp_path)
    experts = [tensor.size / 2**20 for tensor in read_header(model).tensors if "_exps." in tensor.name]
    settings = EngineSettings(model, context=256, exact="off", device=NAME)
    whole = buffers(settings)[NAME]
    for layers, count in ((1, len(experts) // 2), (-1, len(experts))):
        there = buffers(replace(settings, cpu_moe=layers))[NAME]
        assert whole - there == pytest.approx(sum(experts[:count]), abs=0.02)


def test_commands_say_what_runs_where(program: Run) -> None:
    text = program("doctor", "--exact", "off", "--device", NAME).stdout
    assert re.search(
        rf"^device {NAME} +llvmpipe .* GiB free; not used by default: the CPU computes", text, re.MULTILINE
    )
    assert re.search(rf"^layers +target: all layers on {NAME}; draft model: all layers on {NAME}$", text, re.MULTILINE)
    for command, name in (("check", "tiny"), ("show", "tiny-target")):
        assert re.search(rf"{NAME} \(llvmpipe .*\): not used, the CPU comput", program(command, name).stdout)


def test_a_card_is_used_by_default(program: Run) -> None:
    text = program("doctor", "--exact", "off", as_a_card=True).stdout
    assert re.search(rf"^device {NAME} .*; used by default$", text, re.MULTILINE)
    assert re.search(rf"^layers +target: all layers on {NAME}; draft model: all layers on {NAME}$", text, re.MULTILINE)
    assert ("tok/s" in program("list").stdout, "tok/s" in program("list", as_a_card=True).stdout) == (True, False)
    text = program("check", "tiny", as_a_card=True).stdout
    assert re.search(rf"^{NAME} \(llvmpipe .*\): 7 layers of the target, 3 layers of the draft$", text, re.MULTILINE)


def test_as_many_layers_as_its_memory_holds(program: Run) -> None:
    """The driver says that there are 10 MiB besides the margin: `auto` puts three layers there, and the text is theirs.
    Where more is used than the driver allows, nothing is free."""
    small = LAYER | {"HEAP_MIB": "1034"}
    words = ("--exact", "off", "--context", "256")
    text = program("doctor", *words, as_a_card=True, **small).stdout
    assert re.search(rf"^layers +target: 3 layers on {NAME}; draft model: on the CPU$", text, re.MULTILINE)
    asked = (
        "run",
        "--raw",
        *words,
        "--drafter",
        "none",
        "--temperature",
        "0",
        "--max-tokens",
        "16",
        "Once upon a time",
    )
    found = program(*asked, as_a_card=True, **small)
    assert len(found.stdout) > 16, found.stderr
    assert found.stdout == program(*asked, "--gpu-layers", "0").stdout
    text = program("check", "tiny", "--device", NAME, "--gpu-layers", "-1", **LAYER, HEAP_MIB="1").stdout
    assert re.search(rf"does not fit: .* of 1 bytes? free on {NAME} \(.* too little, with a margin\)", text)


def test_its_passes_are_timed(tiny_target: Path) -> None:
    report = measure_passes(tiny_target, PassSettings((1, 8), (64,), prefill=64, rounds=1, device=NAME))
    assert reports.tables(report)[0].columns[2] == f"{NAME} ms"
    assert all(point.best("repacked") for point in report.points)


def test_two_devices_share(program: Run) -> None:
    words = ("doctor", "--exact", "off", "--device")
    text = program(*words, "Vulkan0=1,Vulkan1=3", GGML_VK_VISIBLE_DEVICES="0,0").stdout
    assert "target: all layers on Vulkan0=1,Vulkan1=3; draft model: all layers on Vulkan0=1,Vulkan1=3" in text
    text = program(*words, "Vulkan1", "--draft-device", "Vulkan0", GGML_VK_VISIBLE_DEVICES="0,0").stdout
    assert "target: all layers on Vulkan1; draft model: all layers on Vulkan0" in text
    done = program(*words, "Vulkan0,Vulkan1", "--split-mode", "row", GGML_VK_VISIBLE_DEVICES="0,0")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "device Vulkan0 does not support split buffers" in done.stderr


def test_a_device_that_gives_no_memory(program: Run) -> None:
    """One that was named is an error; where it was not, the CPU serves, now and later, and it is said once."""
    words, limit = ("run", "--exact", "off", "--max-tokens", "2", "Hello"), {"GGML_VK_FORCE_MAX_BUFFER_SIZE": "1000000"}
    done = program(*words, "--device", NAME, **limit)
    assert done.returncode == 3
    assert "failed to allocate Vulkan0 buffer of size" in done.stderr.splitlines()[-1]
    done = program(*words, as_a_card=True, **limit)
    assert done.returncode == 0
    assert f"The GPU ({NAME}) failed: llama.cpp cannot load" in done.stderr
    done = program(*words, as_a_card=True, **limit)
    assert (done.returncode, "failed" in done.stderr) == (0, False)
