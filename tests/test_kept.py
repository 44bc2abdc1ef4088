"""The store of small facts: written whole, read back or absent, and deleted when nobody asks for them any more."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.kept import KINDS, NOWHERE, PLACES, FactStore, facts


def age(path: Path, days: float) -> None:
    moment = time.time() - days * 86_400
    os.utime(path, (moment, moment))


def test_a_fact_is_found_again_under_its_kind_and_key(tmp_path: Path) -> None:
    store = FactStore(tmp_path / "new" / "folder")
    assert store.read("limits", ["cpu", 2], dict) is None
    assert store.write("limits", ["cpu", 2], {"rate": 1.5}) == ""
    assert store.read("limits", ["cpu", 2], dict) == {"rate": 1.5}
    assert store.read("limits", ["cpu", 3], dict) is None
    assert store.read("kernels", ["cpu", 2], dict) is None
    store.write("limits", ["cpu", 2], {"rate": 2.5})
    assert store.read("limits", ["cpu", 2], dict) == {"rate": 2.5}
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 1
    assert store.remove("limits", ["cpu", 2])
    assert not store.remove("limits", ["cpu", 2])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b'{"rate": 1e999}'])
def test_what_cannot_be_used_is_left_out_with_a_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def made(data: Any) -> int:
        return int(data["rate"])

    store = FactStore(tmp_path)
    store.write("limits", 1, {"rate": 7})
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    assert store.read("limits", 1, made) is None
    assert [str(path) in line for line in caplog.messages] == [True]
    store.write("limits", 1, {"rate": 8})
    assert store.read("limits", 1, made) == 8


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    store = FactStore(tmp_path / "file" / "facts")
    assert "file" in store.write("limits", 1, {})
    assert store.read("limits", 1, dict) is None
    assert not store.remove("limits", 1)
    assert NOWHERE.write("limits", 1, {})
    assert NOWHERE.read("limits", 1, dict) is None
    assert not NOWHERE.remove("limits", 1)
    assert not caplog.messages


def test_what_was_not_used_for_long_goes_and_what_the_user_keeps_stays(tmp_path: Path) -> None:
    store = FactStore(tmp_path)
    for kind in KINDS:
        store.write(kind, "a", {})
    (tmp_path / "stranger-1.json").touch()
    for path in tmp_path.iterdir():
        age(path, 100)
    store.read("limits", "a", dict)
    store.write("costs", "b", {})
    left = sorted(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert left == ["costs", "layers", "limits", "serves", "stranger", "tools", "tuning", "widths"]
    for path in tmp_path.iterdir():
        age(path, 400)
    store.write("costs", "b", {})
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == ["costs", "tools", "tuning"]


def test_widths_of_an_earlier_version_are_taken_over_once_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    monkeypatch.setenv("LOCALSPEC_DATA", str(data))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(cache))
    key = {"model": ["/a.gguf", 1, 2], "build": "b"}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    old = {
        cache / "machine" / f"{name}.json": '{"by_length": {"250": [2, 3]}, "exact": [1, 2, 3]}',
        cache / "machine" / "limits-1234.json": '{"memory_rate": 1.0, "int8_rate": 2.0}',
        cache / "machine" / "damaged.json": "{",
        cache / "plans" / "costs-1234.json": '{"key": "x", "content": {}}',
        data / "layers" / "1234.json": '{"layers": [3, 0], "fault": ""}',
    }
    for path, text in old.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    data.joinpath("facts").write_text("in the way")
    assert facts().read("widths", key, dict) is None
    assert all(path.exists() for path in old), "nothing is lost where nothing can be written"
    data.joinpath("facts").unlink()
    assert facts().read("widths", key, dict) == {"exact": [1, 2, 3]}
    assert [path.name for path in data.joinpath("facts").iterdir()] == [f"widths-{name}.json"]
    assert sorted(tmp_path.rglob("*.json")) == [data / "facts" / f"widths-{name}.json"]
    assert not any(path.parent.exists() for path in old)


def test_a_folder_that_no_disk_can_have_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / ("x" * 300)))
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path / ("y" * 300)))
    assert facts().write("limits", 1, {}).endswith("File name too long")
    assert facts().read("limits", 1, dict) is None
    assert not facts().remove("limits", 1)
    assert {place.size()[1] for place in PLACES if place.files.startswith("data/facts")} == {0}
