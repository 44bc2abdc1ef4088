"""A model in several files: every command takes any of them, and says which is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.llama.rewritten_gguf import rewritten

SHORT = ("--max-tokens", "8", "--seed", "7", "--temperature", "0")
NAMES = tuple(f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    """The bundled target in three files."""
    folder = tmp_path_factory.mktemp("split")
    rewritten(tiny_target, folder / "m.gguf", files=3)
    assert sorted(path.name for path in folder.iterdir()) == [*NAMES]
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_any_part_is_the_whole_model(command: Command, folder: Path, name: str) -> None:
    part = str(folder / name)
    expected = command("run", "tiny-target", "Repeat: red house", *SHORT)
    assert expected.code == 0
    assert command("run", part, "Repeat: red house", *SHORT) == expected
    assert command("run", "Repeat: red house", "--target", part, *SHORT) == expected
    assert command("chat", part, *SHORT, stdin="Say: red\n").code == 0
    facts = json.loads(command("show", part, "--json").out)
    assert (facts["parts"], facts["file"]) == (3, str(folder / NAMES[0]))
    assert command("check", part, "tiny-draft").code == 0
    assert "tiny-draft" in command("suggest", part).out


@pytest.mark.parametrize("name", NAMES)
def test_any_part_can_be_taken_in(command: Command, folder: Path, name: str) -> None:
    assert command("import", str(folder / name), "--name", "split").code == 0
    try:
        (entry,) = (one for one in json.loads(command("list", "--json").out) if one["name"] == "split")
        assert [Path(file["path"]).name for file in entry["files"]] == [*NAMES]
        assert command("run", "split", "hi", *SHORT).code == 0
    finally:
        assert command("rm", "split").code == 0


@pytest.mark.parametrize(
    "words", [("run", "FILE", "hi"), ("show", "FILE"), ("import", "FILE"), ("check", "FILE", "tiny")]
)
@pytest.mark.parametrize(("given", "missing"), [(0, 1), (1, 0), (2, 1)])
def test_a_missing_part_is_one_sentence(
    command: Command, folder: Path, tmp_path: Path, words: tuple[str, ...], given: int, missing: int
) -> None:
    for index, name in enumerate(NAMES):
        if index != missing:
            (tmp_path / name).symlink_to(folder / name)
    result = command(*(str(tmp_path / NAMES[given]) if word == "FILE" else word for word in words))
    assert (result.code, result.out) == (3, "")
    said = f"{tmp_path / NAMES[missing]} is missing; {NAMES[given]} is one of 3 parts. All parts belong in one folder."
    assert result.err == f"localspec: {said}\n"


def test_a_part_with_another_name_is_one_sentence(command: Command, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "first.gguf").symlink_to(folder / NAMES[0])
    result = command("run", str(tmp_path / "first.gguf"), "hi")
    assert result.code == 3
    assert "first.gguf is one of 3 parts, and its name does not say so." in result.err
