"""The model that answers where none is named: chosen, else the newest, else the bundled pair; models that went away."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localspec.errors import ModelError, ModelFileError
from localspec.models.installed import installed
from localspec.models.installed.installed import DefaultModel, adopt
from localspec.models.installed.store import Store


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has nothing yet."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv(installed.VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path, tiny_target: Path) -> Path:
    return Path(shutil.copy(tiny_target, tmp_path / "mine.gguf"))


def test_the_bundled_pair_answers_where_nothing_else_is_there() -> None:
    assert installed.default() == DefaultModel(None)
    assert installed.called(installed.default()) == "tiny"


def test_the_newest_model_answers_before_anything_was_chosen(file: Path) -> None:
    adopt(file, name="first", store=Store())
    adopt(Path(shutil.copy(file, file.with_name("later.gguf"))), name="second", store=Store())
    assert installed.default() == DefaultModel("second")


def test_a_draft_model_alone_does_not_answer(file: Path) -> None:
    adopt(file, name="small", role="draft", store=Store())
    assert installed.default() == DefaultModel(None)


def test_what_was_chosen_answers_at_the_next_start(file: Path) -> None:
    adopt(file, name="first", store=Store())
    for name, draft in (("tiny", None), ("first", None), ("first", "tiny-draft")):
        installed.choose(name, draft)
        assert installed.default() == DefaultModel(name, draft)
    installed.forget()
    installed.forget()
    assert installed.default() == DefaultModel("first")


def test_a_file_is_kept_wherever_one_stands(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    installed.choose(file.name)
    monkeypatch.chdir("/")
    assert installed.default() == DefaultModel(str(file.resolve()))


def test_a_model_that_went_away_is_named_and_another_answers(file: Path) -> None:
    installed.choose(str(file))
    file.unlink()
    found = installed.default()
    assert (found.target, "mine.gguf does not exist" in found.fault) == (None, True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"target": 1}', '{"target": "tiny", "draft": []}', '"tiny"', "null"])
def test_a_damaged_choice_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "model.json").write_text(text)
    assert installed.default() == DefaultModel(None)


def test_the_environment_beats_the_choice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.choose("tiny")
    monkeypatch.setenv(installed.VARIABLE, str(file))
    assert installed.default() == DefaultModel(str(file))
    monkeypatch.setenv(installed.VARIABLE, "nosuch")
    with pytest.raises(ModelError, match=r"LOCALSPEC_MODEL: .*nosuch"):
        installed.default()


def test_what_is_not_there_cannot_be_chosen(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nosuch"):
        installed.choose("nosuch")
    with pytest.raises(ModelFileError, match="does not exist"):
        installed.choose(str(tmp_path / "nosuch.gguf"))
    assert installed.default() == DefaultModel(None)
