"""Figures of cells and what is shown of them, from runs that were made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.bench import report as shown
from localspec.bench.report import BenchCell, BenchSettings, Results, make_cells
from localspec.checks.compare import Heat
from localspec.errors import LocalspecError, UsageError
from tests.bench.made_runs import made_heat, made_run

COUNTS: dict[str, Any] = {
    "drafted": 8, "accepted": 6, "draft_passes": 2, "passes": 4, "generated_tokens": 10,
    "accepted_per_position": [2, 2, 1, 1], "draft_seconds": 1.0, "verify_seconds": 2.0, "host_seconds": 1.0,
}  # fmt: skip


def made() -> list[Heat]:
    """Two prompts, two rounds: localspec twice as fast, draft 4 half again as fast, draft 2 slower than plain."""
    return [
        made_heat(
            {
                "draft 4": made_run(1.5, drafted=4),
                "plain": made_run(2.0, drafted=0),
                "localspec": made_run(1.0, **COUNTS),
                "draft 2": made_run(4.0, drafted=4),
            },
            prompt=prompt,
            turn=turn,
        )
        for turn in range(2)
        for prompt in range(2)
    ]


@pytest.fixture
def cell() -> BenchCell:
    (cell,) = make_cells(made())
    return cell


@pytest.fixture
def results(cell: BenchCell) -> Results:
    pair = {"target": {"name": "big.gguf", "sha256": "x"}, "draft": {"name": "small<.gguf", "sha256": "y"}}
    machine = {"processor": "a CPU", "threads": 2, "exactness": "exact: all", "localspec": "0"}
    settings = BenchSettings((0.0,), 10, 2)
    return Results([cell], settings, pair, machine, ["The target is a padded one: 1b."], total=16)


def test_speed_leaves_the_targets_prefill_out(cell: BenchCell) -> None:
    assert cell.figures("plain")["tokens_per_second"] == pytest.approx(5.0)
    assert cell.figures("localspec")["tokens_per_second"] == pytest.approx(10.0)
    assert cell.figures("plain")["ttft_seconds"] == pytest.approx(1.1)
    assert cell.figures("localspec")["itl_p50_seconds"] == pytest.approx(0.5)


def test_ratios(cell: BenchCell) -> None:
    speedup = cell.speedup("localspec")
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)
    assert speedup.over == "rounds"
    assert cell.speedup("nobody") is None


def test_a_text_that_ended_elsewhere_counts_by_the_token() -> None:
    runs = {"plain": made_run(2.0), "localspec": made_run(2.0, tokens=20, text="other")}
    (cell,) = make_cells([made_heat(runs)])
    speedup = cell.speedup("localspec")
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)
    assert cell.forks("localspec") == 1


def test_counters_are_pooled(cell: BenchCell) -> None:
    own = cell.figures("localspec")
    assert own["acceptance_rate"] == 0.75
    assert own["mean_accepted_length"] == 4.0
    assert own["tokens_per_pass"] == 2.5
    assert own["accepted_per_position"] == [1.0, 1.0, 0.5, 0.5]
    assert [own[f"{part}_share"] for part in ("draft", "verify", "host")] == [0.25, 0.5, 0.25]
    assert own["exact"]


def test_plain_data(results: Results) -> None:
    data = json.loads(json.dumps(shown.as_dict(results)))
    (cell,) = data["cells"]
    assert [one["contender"] for one in cell["contenders"]] == ["plain", "localspec", "draft 2", "draft 4"]
    assert [one["speedup"]["value"] for one in cell["contenders"]] == pytest.approx([1.0, 2.0, 0.5, 4 / 3])
    assert (cell["prompts"], data["runs"], data["planned_runs"]) == (2, 16, 16)
    assert data["forks_of_exact"] == 0
    assert "Student's t over rounds" in data["interval"]


def test_tables_and_notes(results: Results) -> None:
    speeds, drafts, others = shown.tables(results)
    assert dict(zip(speeds.columns, speeds.rows[0], strict=True)) == {
        "workload": "copy", "temp": "0", "plain tok/s": "5.0", "localspec tok/s": "10.0", "speedup": "2.00",
        "±": "0.0%", "by prompt": "2.00-2.00", "text": "equal",
    }  # fmt: skip
    assert dict(zip(drafts.columns, drafts.rows[0], strict=True))["per position"] == "1.00 1.00 0.50 0.50"
    assert others.rows == (("copy", "0", "2.00", "0.50", "1.33", "none"),)
    lines = shown.notes(results)
    assert lines[0] == "The target is a padded one: 1b."
    assert any("byte-equal" in line for line in lines)
    assert "small<.gguf" in shown.heading(results)


def test_a_fork_of_an_exact_text_is_no_small_print() -> None:
    (cell,) = make_cells([made_heat({"plain": made_run(1.0), "localspec": made_run(1.0, text="other")})])
    results = Results([cell], BenchSettings(), {}, {"exactness": "x"}, total=4)
    assert results.forks == 1
    assert shown.tables(results)[0].rows[0][-1] == "1 of 1 differ"
    lines = shown.notes(results)
    assert any("1 of 1 differ" in line for line in lines)
    assert any("Interrupted: 2 of 4 runs" in line for line in lines)


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_chart_is_a_picture(results: Results, tmp_path: Path, form: str) -> None:
    pytest.importorskip("matplotlib")
    from localspec.bench.report import draw

    file = tmp_path / f"chart.{form}"
    draw(results, file)
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    if form == "svg":
        text = file.read_text(encoding="utf-8")
        assert all(f"<!-- {words} -->" in text for words in ("localspec", "draft 2", "draft 4", "copy", "0"))


def test_a_chart_that_cannot_be_written(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from localspec.bench.report import draw

    with pytest.raises(UsageError, match=r"must end in \.png"):
        draw(results, tmp_path / "chart.doc")
    with pytest.raises(LocalspecError, match="cannot be written"):
        draw(results, tmp_path / "nowhere" / "chart.png")
