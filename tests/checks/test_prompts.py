"""Prompts by workload: the shipped file, a user's own, and what is wrong with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from localspec import paths
from localspec.chat.turn import Message
from localspec.checks.prompts import BenchPrompt, load_workloads
from localspec.errors import UsageError

NAMES = ["maths", "code-edit", "json", "copy", "chat", "multi-turn", "random", "long-code", "long-chat"]
NAMES += ["code-twice", "rewrite", "again"]


def test_the_shipped_workloads() -> None:
    found = load_workloads()
    assert list(found) == NAMES
    assert all(len(prompts) >= 4 for prompts in found.values())
    assert all(prompt.index == place for prompts in found.values() for place, prompt in enumerate(prompts))
    assert all(len(prompt.questions) == 4 for prompt in found["multi-turn"])
    apart = {"code-twice", "rewrite", "again"}
    assert {prompt.workload for prompts in found.values() for prompt in prompts if prompt.apart} == apart
    assert all(len(prompt.questions) == 2 for name in apart for prompt in found[name])
    once = set(NAMES) - {"multi-turn", *apart}
    assert all(len(prompt.questions) == 1 for name in once for prompt in found[name])
    assert all(prompt.ignore_end and prompt.text for prompt in found["random"])


def test_the_shipped_file_is_what_its_script_writes(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "packaging" / "tiny-pair" / "workloads.py"
    out = tmp_path / "workloads.jsonl"
    done = subprocess.run([sys.executable, str(script), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == paths.bundled("workloads.jsonl").read_bytes()
    long = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("long")]
    assert len(long) == 8
    assert all(1850 <= tokens <= 1960 for tokens in long)


def test_names_and_limits() -> None:
    found = load_workloads(["json", "copy"], limit=2)
    assert {name: len(prompts) for name, prompts in found.items()} == {"json": 2, "copy": 2}
    with pytest.raises(UsageError, match="no workload called 'poetry'; there are: maths"):
        load_workloads(["poetry"])
    with pytest.raises(UsageError, match="prompts is 0"):
        load_workloads(limit=0)


def test_a_users_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows: list[dict[str, object]] = [
        {"prompt": "Hi"},
        {"text": "Once upon", "ignore_end": True},
        {"workload": "talk", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "A"}]},
    ]
    path.write_text("\n\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    found = load_workloads(path=path)
    assert found == {
        "own": [
            BenchPrompt("1", (Message("user", "Hi"),)),
            BenchPrompt("3", index=1, text="Once upon", ignore_end=True),
        ],
        "talk": [BenchPrompt("5", (Message("system", "Be kind."), Message("user", "A")), "talk")],
    }
    assert found["own"][1].questions == [()]
    assert [len(question) for question in found["talk"][0].questions] == [2]


def test_answers_that_stand_there_are_not_asked_for() -> None:
    roles = ("user", "assistant", "user", "user")
    prompt = BenchPrompt("own", tuple(Message(role, role[0]) for role in roles))
    assert [tuple(message.role for message in said) for said in prompt.questions] == [
        ("user", "assistant", "user"),
        ("user",),
    ]


@pytest.mark.parametrize(
    "row",
    [
        "{",
        "[]",
        "{}",
        '{"prompt": 3}',
        '{"text": ""}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "fine"}\n' + row, encoding="utf-8")
    with pytest.raises(UsageError, match=r"own\.jsonl, line 2"):
        load_workloads(path=path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Cannot read"):
        load_workloads(path=tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="has no prompts"):
        load_workloads(path=tmp_path / "empty.jsonl")
