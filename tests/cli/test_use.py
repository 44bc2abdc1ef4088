"""`localspec use`, and the commands that take what it chose."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Command

ASK = ("--max-tokens", "4", "--temperature", "0", "--seed", "1")


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a model file of their own and nothing installed."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("LOCALSPEC_MODEL", raising=False)
    return Path(shutil.copy(tiny_draft, tmp_path / "mine.gguf"))


def test_it_says_what_answers(command: Command) -> None:
    assert command("use").out == "tiny answers where no model is named.\n"


def test_run_takes_what_was_chosen(command: Command, mine: Path) -> None:
    named = command("run", "--target", str(mine), "Once upon", *ASK)
    assert command("use", str(mine)).out == f"{mine} answers where no model is named.\n"
    assert command("run", "Once upon", *ASK) == named
    assert command("chat", "--plain", *ASK, stdin="Once upon\n").out.startswith(named.out.rstrip("\n"))
    assert command("use", "--forget").out == "tiny answers where no model is named.\n"


def test_a_word_beats_it(command: Command, mine: Path) -> None:
    command("use", str(mine))
    assert command("run", "tiny", "Once upon", *ASK) == command("run", "--target", "tiny", "Once upon", *ASK)


def test_an_imported_model_answers_before_the_bundled_pair(command: Command, mine: Path) -> None:
    named = command("run", "--target", str(mine), "Once upon", *ASK)
    command("import", str(mine), "--name", "own")
    assert command("run", "Once upon", *ASK) == named
    assert "default; good" in next(line for line in command("list").out.splitlines() if line.startswith("own "))


def test_a_model_that_is_gone_is_one_line(command: Command, mine: Path) -> None:
    command("use", str(mine))
    mine.unlink()
    gone = command("run", "Once upon", *ASK)
    assert (gone.code, gone.out) == (0, command("run", "tiny", "Once upon", *ASK).out)
    assert gone.err == (
        f"localspec: The model you chose cannot answer: {mine} does not exist. tiny answers. "
        "`localspec use NAME` chooses another.\n"
    )


def test_a_changed_link_is_said_by_the_users_own_path_and_taken_in_again(
    command: Command, mine: Path, tiny_target: Path
) -> None:
    command("import", str(mine), "--name", "own")
    command("use", "own")
    shutil.copy(tiny_target, mine)
    changed = command("run", "Once upon", *ASK)
    assert changed.err.startswith(f"localspec: The model you chose cannot answer: own cannot be used: {mine} has ")
    again = f"localspec import {mine} --name own"
    assert changed.err.endswith(f"tiny answers. Try: {again}\n")
    assert command(*again.split()[1:]).code == 0
    assert command("run", "Once upon", *ASK).err == ""
    moved = mine.rename(mine.with_name("moved.gguf"))
    gone = command("run", "Once upon", *ASK)
    assert f"{mine} is gone. tiny answers. Try: localspec import FILE --name own" in gone.err
    assert command("import", str(moved), "--name", "own").code == 0
    assert command("run", "Once upon", *ASK).err == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nosuch",), 3, "nosuch"),
        (("tiny", "--draft", "nosuch"), 3, "nosuch"),
        (("--draft", "tiny-draft"), 2, "--draft goes with a model"),
        (("tiny", "--forget"), 2, "not both"),
    ],
)
def test_what_cannot_be_is_one_sentence(command: Command, words: tuple[str, ...], code: int, said: str) -> None:
    result = command("use", *words)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert said in result.err


def test_a_draft_goes_with_it(command: Command) -> None:
    said = command("use", "tiny", "--draft", "tiny-draft").out
    assert said == "tiny with tiny-draft answers where no model is named.\n"
    assert json.loads(command("run", "Once upon", "--json", *ASK).out)["text"]
