"""doctor: the report for an issue, and that nothing is asked of the net unless it is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.checks import doctor
from localspec.checks.doctor import Remark
from localspec.kept import PLACES
from tests.cli.conftest import Command


def test_the_bundle_holds_what_doctor_found_and_the_settings(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> Remark:
        raise AssertionError("PyPI was asked")

    monkeypatch.setattr(doctor, "examine_updates", ask)
    monkeypatch.setenv("LOCALSPEC_API_KEY", "sk-very-secret")
    file = tmp_path / "report.json"
    result = command("doctor", "--json", "--bundle", str(file), "--context", "512")
    assert result.code in (0, 1), result.err
    text = file.read_text(encoding="utf-8")
    found = json.loads(text)
    assert "sk-very-secret" not in text
    assert [one["name"] for one in found["findings"]] == [one["name"] for one in json.loads(result.out)]
    assert found["settings"]["context"] == 512


def test_updates_are_looked_for_when_asked(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine_updates", lambda: Remark("updates", "none"))
    assert "updates" in [one["name"] for one in json.loads(command("doctor", "--json", "--check-updates").out)]


def test_a_bundle_that_cannot_be_written_is_a_sentence(command: Command, tmp_path: Path) -> None:
    result = command("doctor", "--bundle", str(tmp_path / "none" / "report.json"))
    assert result.code == 1
    assert "No such file or directory" in result.err
    assert "Traceback" not in result.err


def test_the_chosen_model_is_examined(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_MODEL", "tiny-draft")
    found = {one["name"]: one["value"] for one in json.loads(command("doctor", "--json").out)}
    assert "tiny-draft" in found["target"]
    assert found["draft model"] == "none"
    named = json.loads(command("doctor", "--json", "--target", "tiny-target").out)
    assert "tiny-target" in next(one["value"] for one in named if one["name"] == "target")


def test_all_that_is_kept_is_listed_with_its_size(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"LOCALSPEC_{name}", str(tmp_path / name))
    for place, size in (("CACHE/chats/a.kv", 1000), ("CACHE/chats/b/c.kv", 500), ("DATA/chats.sqlite3-wal", 7000)):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(bytes(size))
    (tmp_path / "CACHE/chats/link").symlink_to(tmp_path / "DATA/chats.sqlite3-wal")
    found = [one["value"] for one in json.loads(command("doctor", "--json", "--disk").out) if one["name"] == "disk"]
    assert len(found) == len(PLACES)
    assert f"    1.5 kB  {tmp_path / 'CACHE/chats'}: KV caches of chats" in found
    assert any(line.startswith(f"    7.0 kB  {tmp_path / 'DATA/chats.sqlite3*'}: ") for line in found)


def test_nothing_is_kept_that_the_table_does_not_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATA", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"LOCALSPEC_{name}", str(tmp_path / name))
    command("use", "tiny")
    command("run", "tiny", "Copy: a b c", "--max-tokens", "4", "--corpus")
    command("doctor")
    patterns = [one.files.split("/", 1) for one in PLACES]
    named = {found for root, files in patterns for found in (tmp_path / root.upper()).glob(files)}
    kept = [path for path in tmp_path.glob("*/*") if path.name != "facts"]
    assert kept, "something is"
    assert set(kept) <= named
    assert set(tmp_path.glob("DATA/facts/*")) <= named


@pytest.mark.parametrize("name", ["data", "cache"])
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(f"LOCALSPEC_{name.upper()}", str(tmp_path / "file" / "below"))
    (found,) = [one for one in doctor.examine_machine() if one.name == name]
    assert found.advice == f"Set LOCALSPEC_{name.upper()} to a folder that can be written."
