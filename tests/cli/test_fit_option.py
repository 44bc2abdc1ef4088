"""`--fit`: the context and the GPU layers that memory has room for, the draft counted in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localspec.cli import shared
from localspec.errors import ModelError
from localspec.machine import Place
from tests.cli.conftest import Command

ROOM = [Place("CPU", "cpu", 8 << 30, 8 << 30)]


def test_run_says_what_it_chose(command: Command) -> None:
    result = command("run", "--fit", "--exact", "off", "--raw", "--max-tokens", "3", "--temperature", "0", "one two")
    assert result.code == 0
    assert "A context of 2048 tokens with F16 cache fits: " in result.err
    assert "fits" not in result.out


def test_run_does_not_start_what_cannot_fit(command: Command) -> None:
    result = command("run", "--fit", "--context", "100000000", "one two")
    assert (result.code, result.out) == (3, "")
    assert "does not fit" in result.err
    assert "Take a smaller quantisation" in result.err


@pytest.mark.parametrize(
    ("room", "settings", "expected"),
    [
        (ROOM, {}, {"context": 2048, "gpu_layers": 0, "draft_gpu_layers": 0}),
        (ROOM, {"context": 700}, {"context": 700, "gpu_layers": 0, "draft_gpu_layers": 0}),
        (
            [*ROOM, Place("CUDA0", "gpu", 8 << 30, 8 << 30)],
            {},
            {"context": 2048, "gpu_layers": 7, "draft_gpu_layers": 3},
        ),
    ],
)
def test_settings_that_fit(
    monkeypatch: pytest.MonkeyPatch, room: list[Place], settings: dict[str, Any], expected: dict[str, int]
) -> None:
    monkeypatch.setattr(shared, "places", lambda *_: room)
    assert shared.fitted({"target": "tiny", **settings}) == expected


def test_a_smaller_cache_is_taken_before_a_shorter_context(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    needed = [
        json.loads(command("check", "tiny", "--json", "--cache-type", kind).out)["memory"]["total_bytes"]
        for kind in ("f16", "q8_0")
    ]
    tight = [Place("CPU", "cpu", sum(needed) // 2 + (512 << 20), 8 << 30)]
    monkeypatch.setattr(shared, "places", lambda *_: tight)
    expected = {"context": 2048, "cache": "q8_0", "gpu_layers": 0, "draft_gpu_layers": 0}
    assert shared.fitted({"target": "tiny"}) == expected
    assert shared.fitted({"target": "tiny", "cache": "q8_0"})["context"] == 2048
    for fixed in ({"cache": "f16"}, {"cache": "bf16"}, {"kernels": "wide"}):
        with pytest.raises(ModelError, match="does not fit"):
            shared.fitted({"target": "tiny", **fixed})
    result = command("run", "--fit", "--exact", "off", "--raw", "--max-tokens", "2", "one two")
    assert result.code == 0
    assert "A context of 2048 tokens with Q8_0 cache fits: " in result.err


def test_the_draft_is_counted(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    memory = json.loads(command("check", "tiny", "--json", "--cache-type", "q8_0").out)["memory"]
    alone = sum(s["weights"] + s["cache"] + s["compute"] for s in memory["shares"] if s["model"] == "target")
    tight = [Place("CPU", "cpu", alone + (512 << 20) + 1000, 8 << 30)]
    monkeypatch.setattr(shared, "places", lambda *_: tight)
    assert shared.fitted({"target": "tiny-target"})["context"] == 2048
    with pytest.raises(ModelError, match="does not fit"):
        shared.fitted({"target": "tiny"})
