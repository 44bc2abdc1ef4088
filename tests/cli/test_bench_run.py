"""`localspec bench run` as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

QUICK = (
    "bench", "run", "--workloads", "copy,maths", "--limit", "1", "--temperature", "0", "--tokens", "12", "--rounds",
    "2", "--lengths", "2", "--drafters", "draft", "--threads", "1",
)  # fmt: skip


def test_tables(command: Command) -> None:
    result = command(*QUICK)
    assert result.code == 0, result.err
    assert "\x1b" not in result.out
    rows = [line.split() for line in result.out.splitlines()]
    assert [row[:2] for row in rows if row[:1] in (["copy"], ["maths"])] == [["copy", "0"], ["maths", "0"]] * 3
    assert "are byte-equal to plain decoding's" in result.out


def test_a_chart(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "speeds.png"
    result = command(*QUICK, "--chart", str(file))
    assert result.code == 0, result.err
    assert file.read_bytes().startswith(b"\x89PNG")


def test_a_chart_without_matplotlib_says_what_to_install() -> None:
    script = """
import sys
sys.modules["matplotlib"] = None
from localspec.cli import main
sys.exit(main(["bench", "run", "--chart", "speeds.png"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "localspec[chart]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_users_own_prompts(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "Sort: 3, 1, 2"}\n{"text": "one two", "workload": "raw"}\n', encoding="utf-8")
    result = command(
        "bench", "run", "--prompts", str(path), "--temperature", "0.7", "--tokens", "8", "--rounds", "1",
        "--threads", "1", "--json",
    )  # fmt: skip
    data = json.loads(result.out)
    assert [(cell["workload"], cell["temperature"]) for cell in data["cells"]] == [("own", 0.7), ("raw", 0.7)]
    assert [one["contender"] for one in data["cells"][0]["contenders"]] == ["plain", "localspec"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workloads", "poetry"), "no workload called 'poetry'"),
        (("--temperature", "warm"), "--temperature is 'warm'"),
        (("--temperature", "-1"), "temperature is -1"),
        (("--tokens", "0"), "tokens is 0"),
        (("--rounds", "0"), "rounds is 0"),
        (("--limit", "0"), "number of prompts is 0"),
        (("--lengths", "0,2"), "--lengths has 0"),
        (("--lengths", "two"), "--lengths is 'two'"),
        (("--prompts", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("--drafter", "lookup"), "--drafters and --lengths"),
        (("one", "--target", "two"), "not both"),
    ],
)
def test_bad_values_get_one_sentence(command: Command, arguments: tuple[str, ...], words: str) -> None:
    result = command("bench", "run", *arguments)
    assert result.code == 2
    assert words in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_a_prompt_that_does_not_fit_is_named(command: Command) -> None:
    result = command("bench", "run", "--workloads", "long-code", "--limit", "1", "--context", "256", "--threads", "1")
    assert result.code == 4
    assert "Prompt 0 of the workload long-code: " in result.err
    assert "--context" in result.err
    assert result.err.count("\n") == 1


def test_an_unknown_drafter_is_named(command: Command) -> None:
    result = command(*QUICK, "--drafters", "oracle")
    assert result.code == 2
    assert "--drafters has 'oracle'; there are: draft, lookup, suffix, habits, auto" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminal")
def test_ctrl_c_ends_with_what_was_measured() -> None:
    """Progress goes to a terminal; once a few runs are done the command is interrupted."""
    arguments = [sys.executable, "-m", "localspec", *QUICK[:-6], "--lengths", "none", "--threads", "1"]
    arguments[arguments.index("--rounds") + 1] = "400"
    screen, terminal = os.openpty()
    with subprocess.Popen([*arguments, "--json"], stdout=subprocess.PIPE, stderr=terminal, text=True) as process:
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
    assert data["planned_runs"] == 2 * 400 * 2
    assert 4 <= data["runs"] < data["planned_runs"]
    assert data["runs"] % 2 == 0, "only what both sides have answered is compared"
