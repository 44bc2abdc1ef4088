"""`localspec corpus`: what is kept, from the command line."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from localspec.cli import build_parser
from localspec.cli.commands.chat import _load
from localspec.cli.shared import engine_settings
from localspec.native.indexes import SuffixIndex
from localspec.runtime.engine import Engine
from localspec.runtime.kept.corpus import CorpusFile
from tests.cli.conftest import Command
from tests.native.guesses import guess


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A folder with two texts among other things."""
    folder = tmp_path / "code"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config").write_text("hidden")
    (folder / "one.py").write_text("def one():\n    return 1\n")
    (folder / "inner").mkdir()
    (folder / "inner" / "two.py").write_text("def two():\n    return 2\n")
    (folder / "picture.png").write_bytes(b"\x89PNG\x00\xff")
    (folder / "empty.txt").write_text("")
    return folder


def test_nothing_there_yet(command: Command) -> None:
    assert "is empty" in command("corpus", "stats").out
    assert json.loads(command("corpus", "stats", "--json").out)["texts"] == 0
    assert "was empty" in command("corpus", "clear").out
    assert json.loads(command("corpus", "clear", "--all", "--json").out) == {"cleared": 0}
    assert command("corpus").code == 2


def test_files_are_added_counted_and_cleared(command: Command, code: Path) -> None:
    added = command("corpus", "add", str(code))
    assert (added.code, added.err) == (0, "")
    assert added.out.startswith("Added 2 files, ")
    assert "2 that are empty, too large or no UTF-8 text were left out" in added.out
    stats = json.loads(command("corpus", "stats", "--json").out)
    assert (stats["texts"], stats["models"], stats["budget_bytes"]) == (2, {"added by hand": 2}, 16_000_000)
    index = SuffixIndex()
    with closing(CorpusFile(Path(stats["path"]), 10**6)) as file:
        sequences = file.read()
    index.add([one.tokens for one in sequences])
    whole = sequences[0].tokens
    assert guess(index, whole[:6], 4, 4).tokens.tolist() == whole[6:10].tolist()

    (code / "one.py").write_text("def one():\n    return 'another'\n")
    assert command("corpus", "add", str(code / "one.py")).out.startswith("Added 1 files, ")
    assert json.loads(command("corpus", "stats", "--json").out)["texts"] == 2, (
        "a file's new text takes the old one's place"
    )
    said = command("corpus", "stats").out
    assert "2 texts of " in said
    assert "From: added by hand 2." in said
    assert command("corpus", "clear").out == "Cleared the corpus.\n"
    assert json.loads(command("corpus", "stats", "--json").out)["texts"] == 0


def test_trim_cuts_to_the_room_it_is_given(command: Command, code: Path) -> None:
    assert command("corpus", "trim").out == "0 texts were removed; 0 bytes of 16.0 MB.\n"
    for name in ("large", "larger"):
        (code / f"{name}.txt").write_text(f"{name} " * 12_000)
        assert command("corpus", "add", str(code / f"{name}.txt")).code == 0
    assert "`localspec corpus trim` cuts it to yours." in command("corpus", "stats", "--corpus-mb", "0.1").out
    found = json.loads(command("corpus", "trim", "--corpus-mb", "0.1", "--json").out)
    assert found["removed"] == 2 - json.loads(command("corpus", "stats", "--json").out)["texts"] > 0
    assert found["bytes"] <= found["budget_bytes"] == 100_000


def test_what_cannot_be_added_is_said(command: Command, code: Path) -> None:
    for name, why in (
        ("none.py", "there is no such file"),
        ("picture.png", "it is no file of UTF-8 text of 4.0 MB at most"),
    ):
        result = command("corpus", "add", str(code / name))
        assert result.code == 2
        assert result.err.startswith(f"localspec: Cannot add {code / name}: {why}.")
    (code / "large.txt").write_text("word " * 40_000)
    result = command("corpus", "add", "--corpus-mb", "0.1", str(code))
    assert result.code == 2
    assert "more than 75.0 kB of tokens" in result.err
    assert "--corpus-mb is 0" in command("corpus", "stats", "--corpus-mb", "0").err
    assert json.loads(command("corpus", "stats", "--json").out)["texts"] == 0, "nothing is added by halves"


@pytest.mark.parametrize(
    ("words", "corpus"), [((), "auto"), (("--corpus",), "on"), (("--corpus", "--no-corpus"), "off")]
)
def test_answers_are_kept_only_where_that_is_asked_for(words: tuple[str, ...], corpus: str) -> None:
    for name in ("run", "serve", "chat"):
        options = build_parser(name).parse_args([name, *words])
        assert engine_settings(options).get("corpus", "auto") == corpus


@pytest.mark.parametrize(("liked", "corpus"), [({}, "on"), ({"corpus": "off"}, "off")])
def test_the_terminal_chat_keeps_its_answers_unless_settings_say_otherwise(liked: dict[str, str], corpus: str) -> None:
    options = build_parser("chat").parse_args(["chat", "--context", "128", "--drafter", "none", "--kernels", "plain"])
    with _load(options, liked, lambda what, share: None) as engine:
        assert engine.settings.corpus == corpus
        assert _has_corpus(engine) == (corpus == "on")


def _has_corpus(engine: Engine) -> bool:
    return engine.loaded.corpus is not None
