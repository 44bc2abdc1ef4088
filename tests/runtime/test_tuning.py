"""What `localspec tune` stored: kept, found again, applied where it fits, and never in the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from localspec import Engine, paths
from localspec.checks.doctor import examine_engine
from localspec.config import EngineSettings
from localspec.runtime.kept import tuning
from localspec.runtime.kept.tuning import Tuning
from tests.fake_gpus import CARD, SLOW, list_gpus

FOUND = Tuning({"threads": 1, "min_ngram": 3, "max_ngram": 6, "draft_cap": 5}, 1.2, 1.1, 1.3, "auto", "2026-11-21", "x")
CONFIGURED = replace(FOUND, settings={"kernels": "repacked", "cache": "bf16", "threads": 1})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


@pytest.fixture
def copy(tiny_target: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_target, tmp_path / "other.gguf"))


def test_it_is_found_again_for_this_pair_only(tiny_target: Path, tiny_draft: Path) -> None:
    assert tuning.read(tiny_target, tiny_draft) is None
    assert tuning.write(tiny_target, tiny_draft, FOUND) == ""
    assert tuning.read(tiny_target, tiny_draft) == FOUND
    assert tuning.read(tiny_target, None) is None
    assert tuning.read(tiny_draft, tiny_target) is None
    assert tuning.read(Path("/nowhere.gguf"), None) is None


def test_a_file_that_moved_is_the_same_model_and_no_model_is_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.write(copy, None, FOUND)
    monkeypatch.setattr("localspec.llama.model._sha256", None)
    moved = copy.rename(copy.with_name("moved.gguf"))
    assert tuning.read(moved, None) == FOUND
    moved.write_bytes(moved.read_bytes())
    assert tuning.read(moved, None) is None, "a file that was changed is another model"


def test_another_machine_has_its_own(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.write(tiny_target, None, FOUND)
    with monkeypatch.context() as patch:
        patch.setattr("localspec.runtime.kept.tuning.cpu_name", lambda: "another processor")
        assert tuning.read(tiny_target, None) is None
        other = replace(FOUND, settings={"threads": 3})
        tuning.write(tiny_target, None, other)
        assert tuning.read(tiny_target, None) == other
    assert tuning.read(tiny_target, None) == FOUND


def test_what_an_earlier_version_found_is_taken_over(tiny_target: Path) -> None:
    folder, status = paths.data_dir() / "tuning", tiny_target.stat()
    folder.mkdir(parents=True)
    old = {
        "version": 1,
        "files": [[str(tiny_target), status.st_size, status.st_mtime_ns]],
        "sha256": ["0" * 64],
        "machine": tuning._machine(),
        "tuning": asdict(FOUND),
    }
    (folder / "1234.json").write_text(json.dumps(old))
    for _ in range(2):
        assert tuning.read(tiny_target, None) == FOUND
        assert not folder.exists()


def test_forgetting(tiny_target: Path) -> None:
    assert not tuning.forget(tiny_target, None)
    tuning.write(tiny_target, None, FOUND)
    assert tuning.forget(tiny_target, None)
    assert tuning.read(tiny_target, None) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(version=99),
        lambda data: data.pop("gain"),
        lambda data: data["settings"].update(threads=0),
        lambda data: data["settings"].update(nonsense=1),
        lambda data: data.update(settings=7),
    ],
)
def test_a_damaged_file_is_as_if_there_were_none(tiny_target: Path, change: Any) -> None:
    tuning.write(tiny_target, None, FOUND)
    (path,) = (paths.data_dir() / "facts").glob("tuning-*.json")
    data = json.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    assert tuning.read(tiny_target, None) is None
    path.write_text("{", encoding="utf-8")
    assert tuning.read(tiny_target, None) is None
    tuning.write(tiny_target, None, FOUND)
    assert tuning.read(tiny_target, None) == FOUND


def test_a_folder_that_cannot_be_written_is_said(tiny_target: Path) -> None:
    paths.data_dir().parent.mkdir(parents=True, exist_ok=True)
    paths.data_dir().write_text("a file where the folder should be")
    assert tuning.write(tiny_target, None, FOUND).startswith(str(paths.data_dir()))
    assert tuning.read(tiny_target, None) is None


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ({}, set()),
        ({"exact": "auto", "wide": True, "gpu_layers": 0, "device": None, "slots": 1}, set()),
        ({"threads": 2}, {"threads"}),
        ({"kernels": "wide"}, {"kernels", "cache"}),
        ({"cache": "q8_0"}, {"kernels", "cache"}),
        ({"exact": "strict"}, {"kernels", "cache"}),
        ({"gpu_layers": "auto"}, set()),
        ({"gpu_layers": -1}, {"kernels", "cache"}),
        ({"wide": False}, {"kernels", "cache"}),
        ({"max_ngram": 3}, {"min_ngram", "max_ngram"}),
        ({"slots": 4}, {"draft_cap"}),
        ({"draft_cap": 2}, {"draft_cap"}),
    ],
)
def test_what_is_given_wins_and_takes_along_what_belongs_to_it(given: dict[str, Any], out: set[str]) -> None:
    everything = replace(FOUND, settings={**FOUND.settings, **CONFIGURED.settings})
    applied = everything.applied(given)
    assert applied == {name: value for name, value in everything.settings.items() if name not in out} | given
    EngineSettings(Path("x"), **applied)


@pytest.fixture
def _stored(tiny_target: Path, tiny_draft: Path) -> Iterator[None]:
    tuning.write(tiny_target, tiny_draft, FOUND)
    yield
    tuning.forget(tiny_target, tiny_draft)


@pytest.mark.usefixtures("_stored")
def test_engines_use_it_unless_told_otherwise(tiny_target: Path, tiny_draft: Path) -> None:
    loading: dict[str, Any] = {"exact": "off", "context": 256, "wide": False}
    with Engine.load(tiny_target, tiny_draft, max_ngram=9, **loading) as engine:
        settings = engine.settings
        assert (settings.threads, settings.draft_cap, settings.longest_draft) == (1, 5, 5)
        assert engine.loaded.context.threads == 1
        assert (settings.min_ngram, settings.max_ngram) == (2, 9)
        (finding,) = [one for one in examine_engine(engine) if one.name == "tuning"]
        assert "threads 1" in finding.value
        assert finding.value.endswith("not in use: min_ngram, max_ngram")
        assert not finding.advice
    with Engine.load(tiny_target, tiny_draft, tuned=False, **loading) as engine:
        assert (engine.settings.threads, engine.settings.draft_cap) == (None, None)


def test_a_pinned_configuration_is_what_runs(tiny_target: Path, tiny_draft: Path) -> None:
    tuning.write(tiny_target, tiny_draft, CONFIGURED)
    with Engine.load(tiny_target, tiny_draft, context=256) as engine:
        assert engine.loaded.configuration == "F16 keys, BF16 values, repacked weights"
        assert engine.generate("Copy: a b c", max_tokens=4, seed=1).text() is not None


def test_with_a_gpu_that_is_used_by_default_kernels_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    configured = replace(FOUND, settings={**FOUND.settings, **CONFIGURED.settings})
    list_gpus(monkeypatch, SLOW)
    assert "kernels" in configured.applied({})
    list_gpus(monkeypatch, CARD)
    assert "kernels" not in configured.applied({})
    assert "kernels" in configured.applied({"gpu_layers": 0})
