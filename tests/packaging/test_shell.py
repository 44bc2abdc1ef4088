"""The man page and the completion scripts hold what the parser has, and bash completes with them."""

from __future__ import annotations

import argparse
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.cli import COMMANDS, build_parser
from localspec.cli.commands.program import SHELLS
from tests.cli.conftest import Command, command
from tests.packaging.scripts import imported

__all__ = ["command"]
OPTION = {
    "localspec.bash": r"(?<![\w-])(--[a-z][\w-]*)",
    "_localspec": r"\"?(--[a-z][\w-]*)[\[,+\"}]",
    "localspec.fish": r" -l (?:')?([a-z][\w-]*)",
    "localspec.1": r"(\\-\\-[a-z](?:\w|\\-)*)",
}
"""By file, how an option stands in it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the files of a .deb or an .rpm for shells and man, as this environment makes them."""
    found = tmp_path_factory.mktemp("shell")
    with imported("channels", "release", "program", "system") as modules:
        for name, content in modules["system"].shell_files(Path(sys.executable)).items():
            packed = name.endswith(".gz")
            (found / name.removesuffix(".gz")).write_bytes(gzip.decompress(content) if packed else content)
    return found


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Long options of a parser and of all below it that help shows."""
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        yield from (name for name in action.option_strings if name.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from options_of(one)


@pytest.mark.parametrize("name", OPTION)
def test_every_command_and_option_is_in_it(name: str, folder: Path) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    wanted = {*options_of(build_parser(*COMMANDS))} - {"--help"}
    found = {f"--{one.replace(chr(92), '').lstrip('-')}" for one in re.findall(OPTION[name], text)} - {"--help"}
    assert wanted <= found, f"{sorted(wanted - found)}"
    assert all(re.search(rf"\b{command}\b", text) for command in COMMANDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_it(command: Command, shell: str) -> None:
    done = command("completion", shell)
    assert (done.code, done.err) == (0, "")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    checked = subprocess.run([shell, "-n"], input=done.out, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_only_the_command_itself_imports_shtab() -> None:
    build = "import sys; from localspec.cli import COMMANDS, build_parser; build_parser(*COMMANDS)"
    program = f"{build}; print('shtab' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def completed(script: Path, *words: str, folder: Path) -> list[str]:
    """What bash offers for the last of the words, with our program on the path."""
    program = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _shtab_localspec; printf '%s\\n' "${COMPREPLY[@]}"
    """
    arguments = ["bash", "-c", program, "bash", str(script), *words]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_files(folder: Path, tmp_path: Path) -> None:
    script = folder / "localspec.bash"
    (tmp_path / "big.gguf").touch()
    assert completed(script, "localspec", "se", folder=tmp_path) == ["serve", "search"]
    assert set(completed(script, "localspec", "", folder=tmp_path)) == set(COMMANDS)
    assert completed(script, "localspec", "run", "--temp", folder=tmp_path) == ["--temperature", "--temp"]
    assert completed(script, "localspec", "bench", "pas", folder=tmp_path) == ["passes"]
    assert "strict" in completed(script, "localspec", "run", "--exact", "", folder=tmp_path)
    assert completed(script, "localspec", "run", "--target", "bi", folder=tmp_path) == ["big.gguf"]
    assert completed(script, "localspec", "connect", "cl", folder=tmp_path) == ["claude"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_names_of_models(folder: Path, tmp_path: Path) -> None:
    script = folder / "localspec.bash"
    (tmp_path / "tiny.gguf").touch()
    for words in (("use",), ("rm",), ("run",), ("chat", "--target"), ("verify", "--draft")):
        found = completed(script, "localspec", *words, "tin", folder=tmp_path)
        assert sorted(found) == ["tiny", "tiny-draft", "tiny-target", "tiny.gguf"], words
    assert completed(script, "localspec", "chats", "rm", "tin", folder=tmp_path) == []


def test_the_man_page_is_shown(folder: Path) -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "-l", folder / "localspec.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "localspec serve" in done.stdout
    assert re.search(r"localspec\s+-\s+Local\s+LLM\s+text", done.stdout)  # what whatis and apropos find
    assert ".gguf file; of a split model" in done.stdout  # a line that begins with a dot is no macro
