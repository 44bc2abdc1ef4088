"""A trained draft model is listed with its target and found with it, by name and by file; others only by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localspec import Engine
from localspec.errors import ModelError, UsageError
from localspec.models.installed.installed import (
    LOCK,
    NO_DRAFT,
    adopt,
    check_name,
    find,
    forget_training,
    keep,
    work_folder,
)
from localspec.models.installed.store import Store
from localspec.processes import Claim


def test_it_goes_with_its_target(tiny_target: Path, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    own, store = Path(shutil.copy(tiny_target, tmp_path / "own.gguf")), Store()
    assert keep(own, "mine", cut, store, drafts=False) == "`--draft mine` drafts with it."
    assert find(str(own)) == (own, None)
    assert keep(own, "mine", cut, store, drafts=True) == "It drafts for own from now on."
    draft = store.find("mine")
    assert draft is not None
    assert draft.path.read_bytes() == cut.read_bytes()
    assert find("own")[1] == find(str(own))[1] == draft.path
    assert keep(tiny_target, "mine", cut, store, drafts=True) == "`--draft mine` drafts with it.", "it is bundled"
    check_name("mine", store)
    with pytest.raises(UsageError, match="--out is 'own', which another model is called"):
        check_name("own", store)


def test_one_that_is_not_worth_it_drafts_no_longer(
    tiny_target: Path, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    own, store = Path(shutil.copy(tiny_target, tmp_path / "own.gguf")), Store()
    keep(own, "mine", cut, store, drafts=True)
    with Engine.load(own) as drafted, Engine.load(own, NO_DRAFT) as alone:
        assert drafted.loaded.settings.draft is not None
        assert alone.loaded.settings.draft is None, "a comparison with what there was before has none"
    assert keep(own, "mine", cut, store, drafts=False) == "`--draft mine` drafts with it."
    assert find("own")[1] is find(str(own))[1] is None


def test_a_target_whose_name_is_taken_gets_another(
    tiny_target: Path, cut: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    (tmp_path / "a").mkdir()
    other, store = Path(shutil.copy(tiny_target, tmp_path / "a" / "model.gguf")), Store()
    adopt(other, store)
    own = Path(shutil.copy(tiny_target, tmp_path / "model.gguf"))
    assert keep(own, "mine", cut, store, drafts=True) == "It drafts for mine-target from now on."
    assert find("model")[1] is None


def test_what_is_being_trained_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    work_folder("mine").mkdir(parents=True)
    claim = Claim(work_folder("mine") / LOCK)
    with pytest.raises(ModelError, match="'mine' is being trained by another process"):
        forget_training("mine")
    claim.release()
    assert forget_training("mine") == 0
    assert not work_folder("mine").exists()


def test_its_folder_goes_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    work_folder("mine").mkdir(parents=True)
    (work_folder("mine") / "checkpoint.pt").write_bytes(b"12345")
    (tmp_path / "models.sqlite").write_bytes(b"1")
    assert forget_training("..") == forget_training(".") == forget_training("other") == 0
    assert (tmp_path / "models.sqlite").exists()
    assert forget_training("mine") == 5
    assert not work_folder("mine").exists()
