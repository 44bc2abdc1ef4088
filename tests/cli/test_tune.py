"""`localspec tune` as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.checks.compare import Ratio
from localspec.checks.gain import TuneReport
from localspec.runtime.kept import tuning
from localspec.runtime.kept.tuning import Tuning
from tests.cli.conftest import Command
from tests.drafters.shipped_heads import SHIPPED

QUICK = (
    "tune",
    "--only",
    "length",
    "--limit",
    "4",
    "--max-tokens",
    "6",
    "--rounds",
    "2",
    "--threads",
    "1",
    "--no-wide",
    "--exact",
    "off",
)


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    """Short ones, to search with and to check with."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Repeat: {word}"}) + "\n" for word in ("sea", "sun", "sky", "sand")))
    return str(path)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))


def test_a_search_reports_every_trial_and_stores_only_what_is_surely_faster(
    command: Command, tmp_path: Path, prompts: str
) -> None:
    result = command(*QUICK, "--json", "--context", "256", "--prompts", prompts)
    assert result.code == 0, result.err
    data = json.loads(result.out)
    assert [trial["settings"] for trial in data["trials"]] == [{"draft_cap": 3}, {"draft_cap": 15}]
    assert data["finished"] is True
    assert data["defaults"]["threads"] == 1
    stored = list((tmp_path / "data").rglob("tuning-*.json"))
    assert bool(stored) == bool(data["settings"])


@pytest.mark.parametrize("full", [False, True])
def test_what_cannot_be_stored_is_said_after_the_report(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    def found(*given: Any) -> None:
        report: TuneReport = given[-1]
        report.settings, report.gain = {"draft_cap": 3}, Ratio(1.5, 1.4, 1.6, "rounds", 1.4, 1.6)

    monkeypatch.setattr("localspec.checks.gain.tune", found)
    if full:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "facts").write_text("in the way")
    result = command("tune")
    assert result.code == (1 if full else 0)
    assert "draft_cap 3: 1.500x" in result.out
    last = result.out.splitlines()[-1]
    assert last.startswith(f"Not stored, nothing can be kept: {tmp_path}") if full else last == "Stored."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "luck"), "'luck'"),
        (("--limit", "1"), "--limit is 1"),
        (("--rounds", "1"), "--rounds is 1"),
        (("--minutes", "0"), "--minutes is 0"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("--temperature", "-1"), "temperature is -1"),
        (("--prompts", "/nowhere.jsonl"), "/nowhere.jsonl"),
        (("--cache", "q2"), "cache is 'q2'"),
        (("--kernels", "wide", "--no-wide"), "wide is off"),
        (("--draft-cap", "0"), "--draft-cap is 0"),
        (("nothing-like-this",), "nothing-like-this"),
        (("tiny", "--target", "tiny"), "PAIR or --target"),
    ],
)
def test_bad_values_get_one_sentence(command: Command, arguments: tuple[str, ...], words: str) -> None:
    result = command("tune", *arguments)
    assert result.code in (2, 3)
    assert words in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


def test_forgetting(command: Command) -> None:
    result = command("tune", "--forget")
    assert result.code == 0
    assert "Nothing is stored" in result.err


def test_a_head_given_as_a_draft_is_no_part_of_the_pair(command: Command, tiny_target: Path) -> None:
    tuning.write(tiny_target, None, Tuning({"threads": 1}, 1.2, 1.1, 1.3, "auto", "2026-01-01", "the shipped prompts"))
    result = command("tune", "--target", str(tiny_target), "--draft", str(SHIPPED["medusa"]), "--forget")
    assert "Removed the tuning" in result.err


def test_help_says_what_changes_a_text_and_imports_nothing_heavy() -> None:
    script = """
import sys
from localspec.cli import main
try:
    main(["tune", "--help"])
finally:
    print([name for name in ("llama_cpp", "numpy", "rich", "jinja2") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "may read differently after tuning" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminal")
def test_ctrl_c_shows_what_was_tried_and_stores_nothing(tmp_path: Path, prompts: str) -> None:
    screen, terminal = os.openpty()
    arguments = [*QUICK, "--rounds", "1000", "--context", "256", "--prompts", prompts]
    with subprocess.Popen(
        [sys.executable, "-m", "localspec", *arguments], stdout=subprocess.PIPE, stderr=terminal, text=True
    ) as process:
        os.close(terminal)
        seen = b""
        while b"draft_cap 3: " not in seen:  # its engine is still to be loaded
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
    assert process.returncode == 130
    assert "draft_cap 3" in out
    assert "Interrupted; nothing was stored." in out
    assert not list((tmp_path / "data").rglob("tuning-*.json"))
