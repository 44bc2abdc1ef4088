"""`localspec run --batch`: every line answered once, in several slots; a bad line harms no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def _write(path: Path, lines: list[object]) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


def test_all_lines_are_answered_and_match_single_runs(command: Command, tmp_path: Path) -> None:
    prompts = [f"Repeat this text exactly: number {n} of the list" for n in range(5)]
    lines: list[object] = [{"id": f"p{n}", "prompt": text, "seed": n} for n, text in enumerate(prompts)]
    lines[4] = {"messages": [{"role": "user", "content": prompts[4]}], "seed": 4}
    file = _write(tmp_path / "batch.jsonl", lines)
    result = command("run", "--batch", file, "--slots", "3", "--max-tokens", "16", "--exact", "strict")
    assert result.code == 0, result.err
    found = {row["id"]: row for row in map(json.loads, result.out.splitlines())}
    assert set(found) == {"p0", "p1", "p2", "p3", 5}
    assert "5 answered, 0 failed" in result.err
    single = command("run", prompts[1], "--seed", "1", "--max-tokens", "16", "--exact", "strict", "--json")
    assert found["p1"]["stats"]["exact"]
    assert found["p1"]["tokens"] == json.loads(single.out)["tokens"]


def test_one_impossible_line_is_reported_in_its_result(command: Command, tmp_path: Path) -> None:
    file = _write(tmp_path / "batch.jsonl", [{"prompt": "word " * 5000}, {"prompt": "hi"}])
    result = command("run", "--batch", file, "--max-tokens", "4")
    assert result.code == 1
    rows = {row["id"]: row for row in map(json.loads, result.out.splitlines())}
    assert "context holds" in rows[1]["error"]
    assert rows[2]["tokens"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1: not JSON"),
        ({"id": 1}, "either prompt or messages"),
        ({"prompt": "a", "messages": []}, "either prompt or messages"),
        ({"prompt": "a", "temperatur": 1}, "'temperatur'"),
        ({"prompt": "a", "seed": 1.5}, "seed is 1.5"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens is '5'"),
        ({"prompt": 5}, "prompt must be a text"),
        ({"messages": 5}, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, "messages must be a list"),
    ],
)
def test_a_malformed_file_is_refused_before_anything_runs(
    command: Command, tmp_path: Path, line: object, words: str
) -> None:
    result = command("run", "--batch", _write(tmp_path / "batch.jsonl", [line]))
    assert result.code == 2
    assert words in result.err
    assert result.out == ""


def test_more_slots_than_a_pass_of_a_draft_context_once_held(command: Command, tmp_path: Path) -> None:
    lines: list[object] = [{"prompt": f"Repeat exactly: one two three {n}"} for n in range(40)]
    result = command(
        "run", "--batch", _write(tmp_path / "b.jsonl", lines), "--slots", "40", "--max-tokens", "3", "--exact", "off"
    )
    assert result.code == 0, result.out[:300]
    assert "40 answered, 0 failed" in result.err
