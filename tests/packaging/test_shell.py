"""The man page and the completion scripts hold what the parser has, and bash completes with them."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import paths
from localspec.cli import COMMANDS, build_parser
from localspec.cli.completion import SCRIPTS
from tests.cli.conftest import Command, command

__all__ = ["command"]
FOLDER = paths.bundled("shell")
AGAIN = "Out of date: python packaging/shell/generate.py (it needs the extra `shell`)"
OPTION = {
    "localspec.bash": r"(?<![\w-])(--[a-z][\w-]*)",
    "_localspec": r"\"?(--[a-z][\w-]*)[\[,+\"}]",
    "localspec.fish": r" -l (?:')?([a-z][\w-]*)",
    "localspec.1": r"(\\-\\-[a-z](?:\w|\\-)*)",
}
"""By file, how an option stands in it."""


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Long options of a parser and of all below it."""
    for action in parser._actions:
        yield from (name for name in action.option_strings if name.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from options_of(one)


@pytest.mark.parametrize("name", OPTION)
def test_every_command_and_option_is_in_it(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    wanted = {*options_of(build_parser(*COMMANDS))} - {"--help"}
    found = {f"--{one.replace(chr(92), '').lstrip('-')}" for one in re.findall(OPTION[name], text)} - {"--help"}
    assert wanted <= found, f"{sorted(wanted - found)}: {AGAIN}"
    assert all(re.search(rf"\b{command}\b", text) for command in COMMANDS), AGAIN


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_file(command: Command, shell: str) -> None:
    done = command("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert done.out == (FOLDER / SCRIPTS[shell]).read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_shell_can_read_it(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    checked = subprocess.run([shell, "-n", FOLDER / SCRIPTS[shell]], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def completed(*words: str, folder: Path) -> list[str]:
    """What bash offers for the last of the words."""
    script = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _shtab_localspec; printf '%s\\n' "${COMPREPLY[@]}"
    """
    arguments = ["bash", "-c", script, "bash", str(FOLDER / "localspec.bash"), *words]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=folder)
    return [word.strip() for word in done.stdout.splitlines() if word.strip()]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_files(tmp_path: Path) -> None:
    (tmp_path / "big.gguf").touch()
    assert completed("localspec", "se", folder=tmp_path) == ["serve", "search"]
    assert set(completed("localspec", "", folder=tmp_path)) == set(COMMANDS)
    assert completed("localspec", "run", "--temp", folder=tmp_path) == ["--temperature"]
    assert completed("localspec", "bench", "mak", folder=tmp_path) == ["make-pair"]
    assert "strict" in completed("localspec", "run", "--exact", "", folder=tmp_path)
    assert completed("localspec", "run", "--target", "bi", folder=tmp_path) == ["big.gguf"]
    assert completed("localspec", "connect", "cl", folder=tmp_path) == ["claude"]


def test_the_man_page_is_shown() -> None:
    if shutil.which("man") is None:
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "-l", FOLDER / "localspec.1"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "localspec serve" in done.stdout
    assert re.search(r"localspec\s+-\s+Local\s+LLM\s+text", done.stdout)  # what whatis and apropos find
    assert ".gguf file; of a split model" in done.stdout  # a line that begins with a dot is no macro
