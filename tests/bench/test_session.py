"""The session's file: whatever ends the program, at most one run is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localspec.bench.contest.run import Pass, Session
from localspec.errors import UsageError
from tests.bench.made_runs import made_run

RUNS = [
    made_run("plain", 1.0, drafted=0),
    made_run("localspec", 0.5, turn=1, log=[Pass("draft", 4, 2, 0.25), Pass("", 0, 0, 0.125)], drafted=4),
]


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "session.jsonl"
    with Session.open(path) as session:
        for run in RUNS:
            session.add(run)
        session.note("facts", {"threads": 2})
        session.note("facts", {"threads": 2})
    with Session.open(path) as session:
        assert list(session.runs.values()) == RUNS
        assert session.notes == {"facts": [{"threads": 2}]}
        assert session.damaged == 0


def test_a_run_is_on_disk_before_the_next_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Session.open(path) as session:
        session.add(RUNS[0])
        assert json.loads(path.read_text().splitlines()[-1])["run"]["key"]["contender"] == "plain"


@pytest.mark.parametrize("lost", [1, 2, 40])
def test_a_line_that_was_cut_off_costs_that_run_only(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "session.jsonl"
    with Session.open(path) as session:
        for run in RUNS:
            session.add(run)
    path.write_bytes(path.read_bytes()[:-lost])
    with Session.open(path) as session:
        assert list(session.runs.values()) == (RUNS if lost == 1 else RUNS[:1])
        session.add(RUNS[1])
    with Session.open(path) as session:
        assert list(session.runs.values()) == RUNS


def test_lines_of_another_form_are_counted_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Session.open(path) as session:
        session.add(RUNS[0])
    with path.open("a") as file:
        file.write('[]\n{"run": {"key": {}}}\n{"run": 3}\n')
    with Session.open(path) as session:
        assert session.damaged == 3
        assert list(session.runs.values()) == RUNS[:1]


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    with Session.open(path) as session:
        session.add(RUNS[0])
    with Session.open(path, fresh=True) as session:
        assert not session.runs
    assert len(path.read_text().splitlines()) == 1


def test_another_file_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text('{"prompt": "mine"}\n')
    with pytest.raises(UsageError, match="is not a session"):
        Session.open(path)
    assert path.read_text() == '{"prompt": "mine"}\n'
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        Session.open(path)
    with pytest.raises(UsageError, match="Cannot"):
        Session.open(tmp_path)
