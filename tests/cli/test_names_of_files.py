"""Names of files that are no UTF-8: every command takes them, and prints them as they are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.runtime.pool import Pool
from tests.cli.conftest import Result

SHORT = ("--max-tokens", "4", "--seed", "7")


def command(*words: str) -> Result:
    """A command in a process of its own, whose output may hold any bytes."""
    line = [sys.executable, "-m", "localspec", *words]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=120)
    return Result(done.returncode, os.fsdecode(done.stdout), os.fsdecode(done.stderr))


def name_in(folder: Path, name: bytes) -> Path:
    """A path that the file system holds, or a skip."""
    path = Path(os.fsdecode(os.fsencode(folder) + b"/" + name))
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"this file system holds no such names: {error.strerror}")
    return path


@pytest.fixture
def target(tmp_path: Path, tiny_target: Path) -> Path:
    path = Path(name_in(tmp_path, b"k\xe4se"), os.fsdecode(b"z\xe4hl.gguf"))
    shutil.copyfile(tiny_target, path)
    return path


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache, data and configuration in a folder with such a name."""
    folder = name_in(tmp_path, b"h\xf6me")
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"LOCALSPEC_{name}", str(folder / name.lower()))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("run", "TARGET", "hi", *SHORT),
        ("run", "hi", "--target", "TARGET", "--json", "--stats", *SHORT),
        ("show", "TARGET"),
        ("show", "TARGET", "--json"),
        ("check", "TARGET", "tiny-draft"),
        ("check", "TARGET", "tiny-draft", "--json"),
        ("suggest", "TARGET"),
        ("suggest", "TARGET", "--json"),
        ("corpus", "stats", "--target", "TARGET"),
        ("verify", "TARGET", "--limit", "1", "--max-tokens", "4"),
        ("ps",),
        ("ps", "--json"),
        ("chats", "list"),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("own_folders")
def test_commands_take_them(target: Path, words: tuple[str, ...]) -> None:
    result = command(*(str(target) if word == "TARGET" else word for word in words))
    assert result.code == 0, result.err
    assert "internal error" not in result.err


def test_an_import_is_listed_used_and_removed(target: Path, own_folders: Path) -> None:
    for copy in ((), ("--copy",)):
        assert command("import", str(target), "--name", "odd", *copy).code == 0
        (entry,) = (one for one in json.loads(command("list", "--json").out) if one["name"] == "odd")
        assert Path(entry["path"]).name == target.name
        assert Path(entry["path"]).is_relative_to(own_folders)
        assert command("list", "--verify").code == 0
        assert command("run", "odd", "hi", *SHORT).code == 0
        removed = command("rm", "odd")
        assert removed.code == 0, removed.err
        assert not Path(entry["path"]).exists()
        assert target.exists()


def test_states_are_written_with_names_that_readers_can_decode(target: Path) -> None:
    text, out = target.with_name(os.fsdecode(b"t\xe4xt.txt")), target.with_name(os.fsdecode(b"\xf6ut.safetensors"))
    text.write_text("red house")
    assert command("extract", str(text), "-o", str(out), "--target", str(target)).code == 0
    data = out.read_bytes()
    facts = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")].decode())["__metadata__"]
    assert facts["model"] == "z\ufffdhl.gguf"
    assert json.loads(facts["pieces"])[0][0].endswith("t\ufffdxt.txt")


def test_a_server_calls_the_model_what_json_can_hold(target: Path) -> None:
    pool = Pool(str(target))
    assert pool.default == "z\ufffdhl"
    assert [name for name in pool.names() if name == pool.default]


def test_a_pipe_gets_the_bytes_of_a_name(target: Path) -> None:
    assert f"{target} (" in command("show", str(target)).out


@pytest.mark.parametrize(
    "words", [("search", "WORD"), ("run", "hi", "--override-tensor", "WORD=CPU"), ("show", "WORD")]
)
def test_what_must_be_text_and_is_not_is_one_sentence(words: tuple[str, ...]) -> None:
    word = os.fsdecode(b"k\xe4se")
    result = command(*(one.replace("WORD", word) for one in words))
    assert result.code in (2, 3)
    assert "internal error" not in result.err
    assert len(result.err.splitlines()) == 1
