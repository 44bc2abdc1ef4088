"""`localspec bench passes` as a command, and what is behind `localspec bench`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import Command

QUICK = ("bench", "passes", "--widths", "1,2", "--lengths", "64", "--prefill", "64", "--threads", "1", "--rounds", "1")


def test_tables(command: Command) -> None:
    result = command(*QUICK)
    assert result.code == 0, result.err
    assert "localspec tiny target, Q8_0" in result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["64"], ["prefill"])] == [
        ["64", "1"],
        ["64", "2"],
        ["prefill", "64"],
    ]
    assert "\x1b" not in result.out


def test_json(command: Command) -> None:
    result = command(*QUICK, "--json")
    data = json.loads(result.out)
    assert [(point["length"], point["width"]) for point in data["points"]] == [(64, 1), (64, 2), (0, 64)]
    assert all(point["repacked"]["ms"] > 0 and point["plain"]["ms"] > 0 for point in data["points"])
    assert ("wide" in data["points"][0]) == bool(data["wide"]["isa"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--widths", "1,x"), "--widths is '1,x'"),
        (("--widths", ""), "--widths is ''"),
        (("--widths", "0"), "widths: 0"),
        (("--lengths", "1"), "lengths: 1"),
        (("--rounds", "0"), "rounds: 0"),
        (("--threads", "-1"), "threads: -1"),
        (("--target", "/nowhere.gguf"), "/nowhere.gguf"),
    ],
)
def test_bad_values_get_one_sentence(command: Command, arguments: tuple[str, ...], words: str) -> None:
    result = command("bench", "passes", *arguments)
    assert result.code in (2, 3)
    assert words in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_without_a_word_behind_it_prompts_are_run(command: Command) -> None:
    alone, named = command("bench", "--workloads", "nonsense"), command("bench", "run", "--workloads", "nonsense")
    assert (alone.code, alone.err) == (named.code, named.err)
    assert "nonsense" in alone.err


def test_help_explains_and_imports_nothing_heavy() -> None:
    script = """
import sys
from localspec.cli import main
try:
    main(["bench", "passes", "--help"])
finally:
    print([name for name in ("llama_cpp", "numpy", "rich", "jinja2") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "three times the model's size" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminal")
def test_ctrl_c_shows_what_was_measured() -> None:
    """Progress goes to a terminal; once it is past the first round, the command is interrupted."""
    screen, terminal = os.openpty()
    arguments = [*QUICK[:-1], "1000", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments], stdout=subprocess.PIPE, stderr=terminal, text=True
    ) as process:
        os.close(terminal)
        seen = b""
        while b"round 2" not in seen:
            seen += os.read(screen, 4096)  # raises when the command has ended early
        process.send_signal(signal.SIGINT)
        while True:  # what nobody reads would block it
            try:
                if not os.read(screen, 4096):
                    break
            except OSError:
                break
        out = process.communicate(timeout=60)[0]
    os.close(screen)
    data = json.loads(out)
    assert process.returncode == 130
    assert data["interrupted"] is True
    assert 1 <= data["finished_rounds"] < 1000
