"""What models are called, and files that are one model with two names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from localspec.cli import main
from localspec.gguf import read_header
from localspec.models.installed.installed import adopt, same_files, title_of, twin_sentence
from localspec.models.installed.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name in ("LOCALSPEC_DATA", "LOCALSPEC_CONFIG", "LOCALSPEC_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return Store()


def test_a_model_is_called_as_in_the_list(tmp_path: Path, tiny_target: Path, store: Store) -> None:
    file = tmp_path / "localspec-tiny-target-q8_0.gguf"
    shutil.copy(tiny_target, file)
    adopt(file, store, name="SmolLM2-135M-Instruct")
    assert title_of(file, store) == "SmolLM2-135M-Instruct"
    adopt(file, store, name="smol")
    assert [title_of(file, store, name) for name in ("smol", "SmolLM2-135M-Instruct", "bundled")] == [
        "smol",
        "SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct",
    ]


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("localspec-tiny-target-q8_0", "localspec tiny target"),
        ("Localspec_Tiny.Target", "localspec tiny target"),
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("tiny", "tiny"),
    ],
)
def test_the_name_inside_a_file_counts_if_it_is_like_the_files_own(
    file: str, title: str, tmp_path: Path, tiny_target: Path, store: Store
) -> None:
    assert read_header(tiny_target).text("general.name") == "localspec tiny target"
    shutil.copy(tiny_target, tmp_path / f"{file}.gguf")
    assert title_of(tmp_path / f"{file}.gguf", store) == title


def test_what_cannot_be_read_is_called_by_its_file(tmp_path: Path, store: Store) -> None:
    (tmp_path / "page.gguf").write_text("<html>")
    assert title_of(tmp_path / "page.gguf", store) == "page"


def test_the_same_file_twice_is_one_model_with_two_names(
    tmp_path: Path, tiny_target: Path, tiny_draft: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(tiny_target, tmp_path / "own.gguf")
    shutil.copy(tiny_draft, tmp_path / "other.gguf")
    assert main(["import", str(tmp_path / "own.gguf"), "--name", "one"]) == 0
    assert main(["import", str(tmp_path / "other.gguf"), "--name", "other"]) == 0
    assert "same file" not in capsys.readouterr().out
    assert main(["import", str(tmp_path / "own.gguf"), "--name", "two"]) == 0
    assert "two is the same file as one: one model with 2 names." in capsys.readouterr().out
    entries = {entry.name: entry for entry in store.entries()}
    assert same_files(entries["one"], entries.values()) == ["two"]
    assert twin_sentence(entries["other"], entries.values()) == ""
    assert main(["list"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert "the same file as two" in rows["one"]
    assert "the same file as one" in rows["two"]
    assert "the same file" not in rows["other"]
