"""`localspec verify` and `localspec doctor` as commands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from localspec.checks import compare
from localspec.checks.compare import AskedTurn, TimedAnswer
from localspec.runtime.engine import Engine
from tests.cli.conftest import Command
from tests.fake_gpus import CARD, list_gpus


def test_the_bundled_pair_passes(command: Command) -> None:
    result = command("verify", "--limit", "2", "--max-tokens", "12", "--temperature", "0.7")
    assert result.code == 0, result.out + result.err
    assert "byte-equal" in result.out


def test_on_a_gpu_whose_passes_have_one_width_chains_are_tried(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    list_gpus(monkeypatch, CARD)
    options = ("--limit", "2", "--max-tokens", "12", "--temperature", "0.7", "--gpu-layers", "-1", "--exact", "strict")
    result = command("verify", *options)
    assert result.code == 0, result.err
    assert "all passes have 8 rows" in result.out
    assert "tree" not in result.out
    assert "byte-equal" in result.out


def test_a_fork_is_shown_with_both_logits_and_exit_code_1(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a speculative run is tampered with: the command must notice."""
    honest = compare.ask

    def tampered(engine: Engine, turn: AskedTurn) -> TimedAnswer:
        answer = honest(engine, turn)
        if engine.settings.drafter == "lookup":
            answer.ids[2] += 1
        return answer

    monkeypatch.setattr(compare, "ask", tampered)
    arguments = ("--limit", "1", "--max-tokens", "8", "--temperature", "0", "--drafter", "lookup")
    result = command("verify", *arguments)
    assert result.code == 1
    assert "fork: prompt" in result.out
    assert "margin" in result.out
    assert "token 2:" in result.out


def test_ctrl_c_ends_with_what_was_found(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, left = compare.ask, 30

    def interrupted(engine: Engine, turn: AskedTurn) -> TimedAnswer:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return honest(engine, turn)

    monkeypatch.setattr(compare, "ask", interrupted)
    arguments = ("--limit", "20", "--max-tokens", "4", "--temperature", "0", "--drafter", "lookup")
    result = command("verify", *arguments)
    assert result.code == 130
    runs = int(result.out.splitlines()[-1].split()[0])
    assert 1 < runs <= 15 < 20
    assert "Interrupted" in result.err
    assert "byte-equal" in result.out


def test_json_report(command: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "Sort: 3, 1, 2"}\n', encoding="utf-8")
    result = command("verify", "--prompts", str(prompts), "--max-tokens", "8", "--temperature", "0", "--json")
    report = json.loads(result.out)
    assert report["forks"] == 0
    assert report["runs"] == len(report["settings"]) > 3


def test_a_prompt_that_the_context_does_not_hold_is_left_out(command: Command, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    lines = [json.dumps({"prompt": text}) for text in ("a long story " * 200, "Sort: 3, 1, 2")]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    options = ("verify", "--prompts", str(prompts), "--max-tokens", "8", "--temperature", "0", "--context", "128")
    result = command(*options)
    assert result.code == 0, result.out + result.err
    assert "1 prompts are longer than the context and were left out." in result.out
    assert json.loads(command(*options, "--json").out)["prompts_too_long"] == 1


@pytest.mark.parametrize(
    ("content", "words"), [("", "has no prompts"), ("{", "line 1"), ('{"text": 3}', "line 1"), (None, "Cannot read")]
)
def test_bad_prompt_files(command: Command, tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    result = command("verify", "--prompts", str(file))
    assert result.code == 2
    assert words in result.err


def test_doctor_says_what_is_there(command: Command) -> None:
    result = command("doctor", "--json")
    findings = {row["name"]: row for row in json.loads(result.out)}
    assert {"localspec", "kernels", "CPU features", "llama.cpp", "exact widths", "passes"} <= set(findings)
    assert result.code == int(any(row["advice"] for row in findings.values()))
    assert any(name.startswith("pass at") for name in findings)
    if sys.platform == "linux":
        assert re.fullmatch(
            r"takes [\d,]+ MiB of memory now, [\d,]+ at most since it began", findings["process"]["value"]
        )
    kernels, library = findings["target's kernels"]["value"], findings["wide kernels"]["value"]
    assert kernels in ("wide", "repacked", "plain")
    assert kernels != "wide" or not library.startswith("not used")
    assert f"{kernels} " in findings["passes"]["value"]
    result = command("doctor", "--json", "--no-wide")
    findings = {row["name"]: row for row in json.loads(result.out)}
    assert "--no-wide" in findings["wide kernels"]["value"]
    assert findings["target's kernels"]["value"] != "wide"
