"""localspec beside llama-server: our side is really measured, and the table compares with the best of theirs."""

from __future__ import annotations

import subprocess
import sys

from localspec import paths
from tests.packaging.scripts import PACKAGING, imported


def test_our_side_alone_is_measured() -> None:
    model, draft = paths.bundled("tiny-target-q8_0.gguf"), paths.bundled("tiny-draft-q8_0.gguf")
    command = [sys.executable, str(PACKAGING / "bench" / "peers.py"), str(model), "--draft", str(draft)]
    command += ["--starts", "1", "--answers", "1", "--tokens", "16", "--users", "2", "--context", "512"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    head, _, *table, _ = done.stdout.splitlines()
    assert head.startswith("tiny-target-q8_0.gguf, ")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert rows[0][1:6] == ["copy", "edit", "json", "maths", "open"]
    assert [row[0] for row in rows[2:]] == [
        "*as they come*",
        "localspec serve",
        rows[4][0],
        "localspec serve",
    ]
    for row in (rows[3], rows[5]):
        for cell in row[1:6]:
            assert all(float(speed) > 0.0 for speed in cell.split(" / "))
        ready, first, memory, peak = map(float, row[6:])
        assert 0.0 < ready < first
        assert 0.0 < memory <= peak


def test_ours_is_set_beside_the_best_of_each_column() -> None:
    with imported("bench", "real", "start", "peers") as scripts:
        peers = scripts["peers"]

        def contender(name: str, rate: float, read: float, ready: float, megabytes: float) -> object:
            one = peers.Contender("group", name, [])
            one.starts, one.memory = [(ready, ready + 1.0)] * 3, [(megabytes, megabytes)] * 3
            one.answers = [
                peers.Answer(cell, 50, 0, 11, 1, 50.0 / read, 50.0 / read + 10.0 / rate, "text") for cell in peers.CELLS
            ]
            return one

        ours = contender("localspec serve", 60.0, 200.0, 2.0, 300.0)
        theirs = [contender("one", 30.0, 400.0, 1.0, 600.0), contender("two", 40.0, 100.0, 4.0, 200.0)]
        *_, best, _, note = peers.page([ours, *theirs]).splitlines()
    assert best == f"| **ours over llama-server's best** |{' 1.50 / 0.50 |' * 5} 2.00 | 1.50 | 1.50 | 1.50 |"
    assert note == "group: of 5 texts 5, 5 are ours; prompts of another length: 0"
