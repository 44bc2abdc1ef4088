"""The commands of the model manager without a hub: what they say to names and options that lead nowhere."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from localspec.models.installed.store import Entry, Store, StoredFile
from tests.cli.conftest import Command
from tests.llama.tiny_gguf import gguf_bytes, write


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("pull", "nosuch"), 3, "'nosuch' is no model or pair"),
        (("pull", "http://[::1"), 2, "is not an address"),
        (("check", "tiny", "--slots", "0"), 2, "slots is 0"),
        (("import", "nosuch.gguf", "--copy"), 3, "nosuch.gguf does not exist"),
        (("pull", "tiny"), 3, "'tiny-target' is shipped with localspec"),
        (("pull", "http://127.0.0.1:9/model.bin"), 2, "does not end in .gguf"),
        (("pull", "http://127.0.0.1:9/m.gguf", "--revision", "v1"), 2, "has no revisions"),
        (("pull", "user/repo", "--context", "3"), 2, "--context is 3"),
        (("rm",), 2, "nothing to remove"),
        (("rm", "nosuch"), 3, "'nosuch' is not installed"),
        (("rm", "tiny"), 3, "'tiny' is shipped with localspec"),
        (("rm", "x", "--partial"), 2, "--partial takes no names"),
        (("import", "nosuch.gguf"), 3, "nosuch.gguf does not exist"),
        (("search", "x", "--limit", "0"), 2, "--limit is 0"),
        (("run", "a", "b", "c"), 2, "'c' is one word too many"),
        (("run", "tiny", "Hi", "--target", "tiny"), 2, "NAME or --target, not both"),
        (("run", "user/repo:Q4_K_M", "Hi"), 3, "Try: localspec pull user/repo:Q4_K_M"),
    ],
)
def test_bad_input_is_one_sentence(command: Command, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = command(*arguments)
    assert (done.code, words in done.err) == (code, True), done.err
    assert len(done.err.strip().splitlines()) == 1
    assert done.out == ""


def test_the_catalogue_can_be_listed(command: Command) -> None:
    catalog = json.loads(command("list", "--catalog", "--json").out)
    assert {"tiny", "qwen3-8b"} <= {pair["name"] for pair in catalog["pairs"]}
    shown = command("list", "--catalog").out
    assert all(pair["target"] in shown for pair in catalog["pairs"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_no_model(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    done = command("show", str(tmp_path / "m.gguf"))
    assert (done.code, "is a pipe or device" in done.err) == (3, True), done.err


@pytest.mark.parametrize("how", ["--link", "--copy"])
def test_a_file_taken_in_is_listed_and_removed(command: Command, tmp_path: Path, how: str) -> None:
    source = write(tmp_path / "mine.gguf", gguf_bytes())
    entry = json.loads(command("import", str(source), how, "--name", "my model", "--json").out)
    assert (entry["name"], entry["source"], entry["fault"]) == ("my model", "import", "")
    assert "my model" in command("list").out
    assert command("list", "--verify").code == 0
    source.write_bytes(source.read_bytes()[:-32])
    broken = command("list")
    assert broken.code == (1 if how == "--link" else 0)
    assert ("1 cannot be used" in broken.err) == (how == "--link")
    removed = json.loads(command("rm", "my model", "--json").out)
    assert [("your own file" in one["kept"]) for one in removed] == [how == "--link"]
    assert source.exists()
    assert [entry["source"] for entry in json.loads(command("list", "--json").out)] == ["bundled", "bundled"]


def test_a_bundled_pair_runs_by_its_name_in_front_of_the_prompt(command: Command) -> None:
    prompt = ("Repeat this text exactly: one two", "--max-tokens", "12", "--seed", "1", "--exact", "off")
    plain = command("run", *prompt)
    assert plain.code == 0, plain.err
    assert command("run", "tiny", *prompt).out == plain.out
    assert command("run", "tiny", *prompt[1:], stdin=prompt[0]).out == plain.out


def test_a_repository_that_is_not_here_is_suggested_for_by_its_name(command: Command) -> None:
    (found,) = json.loads(command("suggest", "Qwen/Qwen3-8B-GGUF", "--json").out)
    assert found["draft"] == "qwen3-0.6b-q8_0"


def test_an_older_entry_with_the_name_of_a_pair_can_be_removed(command: Command, tmp_path: Path) -> None:
    source = write(tmp_path / "mine.gguf", gguf_bytes())
    Store().add(Entry("qwen3-8b", (StoredFile.of(source, "0" * 64, "foreign"),)))
    assert command("rm", "qwen3-8b").code == 0
    assert Store().entries() == []


def test_nothing_runs(command: Command) -> None:
    assert json.loads(command("ps", "--json").out) == []
    assert command("ps").out.split() == ["PID", "COMMAND", "AT", "TARGET", "DRAFT", "CONTEXT", "MEMORY", "RUNNING"]


def test_models_of_other_programs_are_listed(
    command: Command, tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    nothing = command("import", "--find")
    assert (nothing.code, nothing.out.count("\n")) == (1, 1)
    file = tmp_path / "cache" / "llama.cpp" / "a model.gguf"
    file.parent.mkdir(parents=True)
    shutil.copy(tiny_target, file)
    found = command("import", "--find")
    assert found.code == 0
    assert f"Take one in: localspec import '{file}' --name 'a model'\n" in found.out
    (one,) = json.loads(command("import", "--find", "--json").out)
    assert (one["path"], one["program"], one["installed"]) == (str(file), "llama.cpp's cache", "")


@pytest.mark.parametrize("words", [("import",), ("import", "--find", "x.gguf")])
def test_an_import_without_a_file_or_with_two_wishes_is_one_sentence(command: Command, words: tuple[str, ...]) -> None:
    result = command(*words)
    assert (result.code, result.err.count("\n")) == (2, 1)
