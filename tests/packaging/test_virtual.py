"""The benchmark on a clock that only passes move."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WANTED = ["--workloads", "copy", "--temperatures", "0", "--limit", "1", "--tokens", "48", "--seeds", "1,2"]


def test_two_runs_print_the_same_table_and_it_shows_the_copy(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LOCALSPEC_DATA": str(tmp_path), "GOMP_SPINCOUNT": "0"}
    command = [sys.executable, str(ROOT / "packaging" / "bench" / "virtual.py"), *WANTED]
    command += ["--contenders", "localspec,lookup alone"]
    done = [subprocess.run(command, env=environment, capture_output=True, text=True, check=False) for _ in range(2)]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    first, second = (one.stdout for one in done)
    assert first == second
    table, summary = first.splitlines()[1:4], first.splitlines()[4:]
    assert table[0].split() == ["workload", "temp", "localspec", "lookup", "alone", "of", "the", "best"]
    assert [row.split()[:2] for row in table[1:]] == [["copy", "0"], ["copy", "all"]]
    for row in table[1:]:
        ours, lookup, share = map(float, row.split()[2:])
        assert ours > 2.0
        assert abs(share - ours / lookup) < 0.002
    assert [line.split(":")[0] for line in summary] == ["cells", "whole workloads", "... of seed 1", "... of seed 2"]
