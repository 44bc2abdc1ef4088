"""A session of the benchmark by median rounds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from localspec.bench.session import Session
from tests.bench.made_runs import made_run

ROOT = Path(__file__).resolve().parents[2]


def rows(path: Path) -> list[list[str]]:
    """What it prints of a session."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "packaging" / "bench" / "medians.py"), str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [row.split() for row in done.stdout.splitlines()[2:]]


def test_a_round_that_stalled_moves_nothing(tmp_path: Path) -> None:
    seconds = {
        "plain": (2.0, 2.0, 2.0),
        "localspec": (1.0, 9.0, 1.0),
        "draft 2": (8.0, 1.2, 1.2),
        "draft 4": (1.6,) * 3,
    }
    path = tmp_path / "runs.jsonl"
    with Session.open(path) as session:
        for name, rounds in seconds.items():
            for turn, found in enumerate(rounds):
                session.add(made_run(name, found, turn=turn))
    (row,) = rows(path)
    # Of other: draft 4 is best in rounds 1 and 3, 1.6 / 9.0 in round 2; draft 2 in round 2, 4.6 / 1.0 in the others.
    assert row[2:] == ["3", "2.000", "draft", "2", "1.667", "1.200", "0.904"]


def test_of_all_temperatures_one_length_is_the_best(tmp_path: Path) -> None:
    """Each is the best of one of them; one is missing where the session was interrupted, and none of those."""
    seconds = {
        "plain": (2.0, 2.0),
        "localspec": (1.0, 1.0),
        "draft 2": (0.8, 3.0),
        "draft 4": (1.5, 0.9),
        "draft 7": (0.1,),
    }
    path = tmp_path / "runs.jsonl"
    with Session.open(path) as session:
        for name, each in seconds.items():
            for temperature, found in enumerate(each):
                run = made_run(name, found)
                session.add(replace(run, key=replace(run.key, temperature=float(temperature))))
    *cells, whole = rows(path)
    assert [row[4:8] for row in cells] == [["draft", "7", "20.000", "0.100"], ["draft", "4", "2.222", "0.900"]]
    assert whole[1:] == ["all", "1", "2.000", "draft", "4", "1.667", "1.200", "-"]
