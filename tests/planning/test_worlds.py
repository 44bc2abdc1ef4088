"""The command that measures a plan in all worlds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.planning import worlds

ONE = "draft model right in 0.9, GPU"


def test_figures_are_printed_stored_and_set_beside_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    worlds.main(["--only", ONE, "--seeds", "7", "--out", str(first)])
    assert "of the other" not in capsys.readouterr().out
    stored = worlds.read(first)[ONE][0]
    assert stored.over_plain > 2
    assert stored.best == "draft 7"
    slower = json.loads(first.read_text())
    slower["worlds"][ONE][0]["over_plain"] /= 2
    first.write_text(json.dumps(slower))
    worlds.main(["--only", ONE, "--seeds", "7", "--out", str(second), "--against", str(first)])
    printed = capsys.readouterr().out
    assert "lowest world, of the other plan's: 2.000" in printed
    assert worlds.read(second)[ONE][0].passes == stored.passes, "the clock is virtual: the same again"


def test_a_world_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        worlds.main(["--only", "no such"])
    assert "no world has 'no such' in its name." in capsys.readouterr().err
