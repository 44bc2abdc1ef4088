"""Tensors that go to a device of their own: llama.cpp takes the overrides, and a text is what it was."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import ModelFileError, UsageError
from localspec.gguf.spread import CPU, EXPERTS, Spread, spread_of
from localspec.llama.exact import wide
from localspec.llama.exact import wide as identity
from localspec.llama.exact.choice import choose
from localspec.llama.library import devices, lib
from localspec.llama.library.lib import BufferOverride
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed
from tests.fake_gpus import CARD, list_gpus
from tests.llama.architectures import write

SETTINGS = ContextSettings(n_ctx=64, threads=1)


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small mixture of experts with random weights."""
    return write("qwen3moe", tmp_path_factory.mktemp("moe"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """(split mode, patterns of overrides) of each model that llama.cpp was asked for."""
    found: list[tuple[int, list[str]]] = []
    real = lib.api().llama_model_load_from_file

    def load(path: bytes, params: Any) -> Any:
        patterns: list[str] = []
        if params.tensor_buft_overrides:
            entries = ctypes.cast(params.tensor_buft_overrides, ctypes.POINTER(BufferOverride))
            while entries[len(patterns)].pattern:
                patterns.append(entries[len(patterns)].pattern.decode())
        found.append((params.split_mode, patterns))
        return real(path, params)

    monkeypatch.setattr(lib.api(), "llama_model_load_from_file", load)
    return found


def rows(path: Path, spread: Spread, kernels: Any) -> tuple[bytes, bool]:
    """Bytes of the logits of two passes, and whether passes are exact."""
    chosen = choose(path, SETTINGS, kernels=kernels, spread=spread)
    try:
        tokens = np.arange(20, 60, dtype=np.int32)
        feeds = [Feed(0, tokens[:30], 20), Feed(0, tokens[:31], 20, tokens[31:34], np.arange(-1, 2, dtype=np.int32))]
        found = b""
        for feed in feeds:
            (read,) = chosen.context.decode([feed])
            found += b"".join(read[index].tobytes() for index in range(len(read)))
        return found, chosen.context.exact_widths is not None
    finally:
        chosen.model.close()


@pytest.mark.parametrize("kernels", ["wide", "repacked"])
def test_experts_on_the_cpu_change_nothing_there(
    kernels: str, experts: Path, asked: list[tuple[int, list[str]]]
) -> None:
    if kernels == "wide" and not wide.available():
        pytest.skip("no wide kernels here")
    plain = rows(experts, spread_of("layer", None, 0), kernels)
    moved = rows(experts, spread_of("row", "attn_k=CPU", -1), kernels)
    assert moved == plain
    assert moved[1] == (kernels == "wide")
    layer = lib.SPLIT_MODES["layer"]
    assert asked == [(layer, []), (layer, ["attn_k", EXPERTS])]  # no layer is on a GPU that rows could be split over


def test_a_split_mode_counts_where_layers_are_on_a_gpu(experts: Path, asked: list[tuple[int, list[str]]]) -> None:
    Model.load(experts, gpu_layers=2, spread=spread_of("row", None, 2)).close()
    assert asked == [(lib.SPLIT_MODES["row"], [rf"blk\.0{EXPERTS}", rf"blk\.1{EXPERTS}"])]
    assert (lib.SPLIT_MODES["none"], lib.SPLIT_MODES["tensor"]) == (
        lib.api().LLAMA_SPLIT_MODE_NONE,
        lib.api().LLAMA_SPLIT_MODE_TENSOR,
    )


def test_the_first_override_that_fits_counts() -> None:
    spread = spread_of("layer", r"blk\.1\.ffn=CUDA1, _exps=CUDA0", -1)
    assert spread.device_of("blk.1.ffn_up_exps.weight") == "CUDA1"
    assert spread.device_of("blk.0.ffn_up_exps.weight") == "CUDA0"
    assert spread_of("layer", None, 2).device_of("blk.2.ffn_up_exps.weight") is None
    assert spread_of("layer", None, 3).device_of("blk.2.ffn_up_exps.weight") == CPU
    assert spread_of("layer", None, -1).device_of("blk.2.ffn_up_shexp.weight") is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("exps", r"override_tensor has 'exps'; it must look like REGEX=DEVICE"),
        ("=CPU", r"override_tensor has '=CPU'; it must look like"),
        ("a=CPU,", r"override_tensor has ''; it must look like"),
        ("(=CPU", r"override_tensor has '\(', which is no regular expression: missing \)"),
        ("exps=CUDA3", r"override_tensor puts exps on CUDA3; the devices of this model are CPU\."),
    ],
)
def test_overrides_that_cannot_be_are_refused(words: str, told: str, experts: Path) -> None:
    with pytest.raises(UsageError, match=told):
        Model.load(experts, spread=spread_of("layer", words, 0))


def test_the_devices_of_a_model_are_those_that_were_named() -> None:
    spread = spread_of("layer", "exps=CUDA1", 0)
    with pytest.raises(UsageError, match=r"the devices of this model are CPU, CUDA0, CUDA2\."):
        devices.overrides(spread, "CUDA0=1,CUDA2=2", -1)


def test_an_expression_that_llama_does_not_know_is_one_sentence(experts: Path) -> None:
    with pytest.raises(ModelFileError, match=r"llama\.cpp cannot load .*: .* in regular expression\."):
        Model.load(experts, spread=spread_of("layer", "(?P<name>exps)=CPU", 0))


def test_what_is_kept_on_disk_is_of_one_spread(experts: Path) -> None:
    spreads = [
        spread_of(*given) for given in (("layer", None, 0), ("row", None, 0), ("row", None, 1), ("row", None, -1))
    ]
    facts = [identity.shared_facts(experts, SETTINGS, -1, "CUDA0", one) for one in spreads]
    assert len({json.dumps(one) for one in facts}) == 4


@pytest.mark.parametrize("device", ["CUDA1", "CUDA1=3,CUDA0=1"])
def test_rows_are_split_over_gpus_in_llama_cpps_order(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    list_gpus(monkeypatch, CARD, replace(CARD, name="CUDA1"))
    params = lib.api().llama_model_default_params()
    with pytest.raises(UsageError, match="with split_mode row name GPUs in this order: CUDA0, CUDA1"):
        devices.put(params, Spread("row"), device, -1)
    devices.put(params, Spread("row"), "CUDA0=1,CUDA1=3", -1)
    assert params.split_mode == lib.SPLIT_MODES["row"]
    devices.put(params, Spread("layer"), device, -1)
