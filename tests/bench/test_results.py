"""Figures of cells and what is shown of them, from runs that were made up."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from typing import Any

import pytest

from localspec.bench.contest.benchmark import BenchSettings
from localspec.bench.contest.run import Pass, Run
from localspec.bench.results import results as shown
from localspec.bench.results.cells import Cell, make_cells
from localspec.bench.results.page import as_html
from localspec.bench.results.results import Results
from tests.bench.made_runs import made_run

COUNTS: dict[str, Any] = {
    "drafted": 8, "accepted": 6, "draft_passes": 2, "passes": 4, "generated_tokens": 10,
    "accepted_per_position": [2, 2, 1, 1], "draft_seconds": 1.0, "verify_seconds": 2.0, "host_seconds": 1.0,
}  # fmt: skip
LOG = [Pass("draft", 4, 4, 0.1), Pass("draft", 4, 2, 0.1), Pass("", 0, 0, 0.1), Pass("", 0, 0, 0.1)]


def made() -> list[Run]:
    """Two prompts, two rounds: localspec twice as fast, draft 4 half again as fast, draft 2 slower than plain."""
    runs = []
    for prompt in range(2):
        for turn in range(2):
            place: dict[str, Any] = {"prompt": prompt, "turn": turn}
            runs += [
                made_run("plain", 2.0, drafted=0, log=[Pass("", 0, 0, 0.2)] * 10, **place),
                made_run("localspec", 1.0, log=LOG, **COUNTS, **place),
                made_run("draft 2", 4.0, drafted=4, **place),
                made_run("draft 4", 1.5, drafted=4, **place),
            ]
    return runs


@pytest.fixture
def cell() -> Cell:
    (cell,) = make_cells(made())
    return cell


@pytest.fixture
def results(cell: Cell) -> Results:
    pair = {"target": {"name": "big.gguf", "sha256": "x"}, "draft": {"name": "small<.gguf", "sha256": "y"}}
    machine = {"processor": "a CPU", "threads": 2, "exactness": "exact: all", "localspec": "0"}
    settings = BenchSettings((0.0,), 10, 2)
    return Results([cell], settings, pair, machine, ["The target is a padded one: 1b."], done=16, total=16)


def test_speed_leaves_the_targets_prefill_out(cell: Cell) -> None:
    assert cell.plain.tokens_per_second == pytest.approx(5.0)
    assert cell.product.tokens_per_second == pytest.approx(10.0)
    assert cell.plain.ttft_seconds == pytest.approx(1.1)
    assert cell.product.itl_seconds(0.5) == pytest.approx(0.5)


def test_ratios(cell: Cell) -> None:
    speedup = cell.speedup("localspec")
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)
    assert speedup.over == "rounds"
    over_best = cell.speedup("localspec", "draft 4")
    assert over_best is not None
    assert over_best.value == pytest.approx(1.5)
    assert cell.speedup("nobody") is None


def test_only_the_same_prompt_in_the_same_round_makes_a_pair() -> None:
    runs = [made_run("plain", 2.0), made_run("plain", 8.0, turn=1), made_run("localspec", 1.0)]
    (cell,) = make_cells(runs)
    speedup = cell.speedup("localspec")
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)


def test_a_text_that_ended_elsewhere_counts_by_the_token() -> None:
    (cell,) = make_cells([made_run("plain", 2.0), made_run("localspec", 2.0, tokens=20, text="other")])
    speedup = cell.speedup("localspec")
    assert speedup is not None
    assert speedup.value == pytest.approx(2.0)
    assert cell.forks("localspec") == (1, 1)


def test_the_best_fixed_length_may_be_plain_decoding(cell: Cell) -> None:
    assert cell.best_fixed == "draft 4"
    (slow,) = make_cells([run for run in made() if run.key.contender != "draft 4"])
    assert slow.best_fixed == "plain"
    (none,) = make_cells([made_run("plain", 1.0), made_run("server draft 3", 0.1)])
    assert none.best_fixed is None


def test_whoever_tunes_does_not_know_the_round_to_come() -> None:
    """Draft 2 and draft 4 take turns at being unlucky: in hindsight 4 is the best, by as much as noise makes it so."""
    seconds = {"plain": (2.0,) * 3, "localspec": (1.0,) * 3, "draft 2": (1.0, 1.4, 1.0), "draft 4": (1.3, 0.9, 1.0)}
    runs = [made_run(name, found, turn=turn) for name, all_ in seconds.items() for turn, found in enumerate(all_)]
    (cell,) = make_cells(runs)
    assert cell.best_fixed == "draft 4"
    best = cell.speedup("localspec", "draft 4")
    assert best is not None
    assert best.value == pytest.approx(3.2 / 3.0)
    assert cell.share_of_tuned == pytest.approx(1.3), "of 1.3 (4 before), 1.4 (2 before) and 1.0 (4 before)"
    (once,) = make_cells([run for run in runs if run.key.round == 0])
    assert once.share_of_tuned is None
    (nobody,) = make_cells([run for run in runs if not run.key.contender.startswith("draft")])
    assert nobody.share_of_tuned is None


def test_counters_are_pooled(cell: Cell) -> None:
    own = cell.product
    assert own.acceptance_rate == 0.75
    assert own.mean_accepted_length == 4.0
    assert own.tokens_per_pass == 2.5
    assert own.accepted_per_position == [1.0, 1.0, 0.5, 0.5]
    assert own.time_shares == (0.25, 0.5, 0.25)
    assert own.exact


def test_the_limit_comes_from_all_logs_of_the_text(cell: Cell) -> None:
    """Right at 0-3 and 5-6, nothing known behind; widths cost 1, 1.1, 1.3, levels 0.1."""
    limit = cell.limit
    assert limit is not None
    assert limit.plain_seconds == pytest.approx(2 * 10.0)
    assert limit.clairvoyant_seconds == pytest.approx(2 * (1.5 + 1.2 + 1.5 + 2.0))
    assert limit.known == pytest.approx(7 / 10)


def test_plain_data(results: Results) -> None:
    data = json.loads(json.dumps(shown.as_dict(results)))
    (cell,) = data["cells"]
    assert cell["best_fixed"] == "draft 4"
    assert cell["share_of_best_fixed"]["value"] == pytest.approx(1.5)
    assert cell["share_of_tuned"] == pytest.approx(1.5)
    assert cell["share_of_limit"] == pytest.approx(2.0 / cell["limit"]["speedup"])
    assert [one["contender"] for one in cell["contenders"]] == ["plain", "localspec", "draft 2", "draft 4"]
    assert data["forks_of_exact"] == 0
    assert "Student's t over rounds" in data["interval"]


def test_a_row_per_cell_and_contender(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(shown.as_csv(results))))
    assert [row["contender"] for row in rows] == ["plain", "localspec", "draft 2", "draft 4"]
    assert float(rows[1]["speedup_value"]) == pytest.approx(2.0)
    assert all(row["models"] == "The target is a padded one: 1b." for row in rows)


def test_tables_and_notes(results: Results) -> None:
    speeds, drafts, others = shown.tables(results)
    assert dict(zip(speeds.columns, speeds.rows[0], strict=True)) == {
        "workload": "copy", "temp": "0", "plain tok/s": "5.0", "localspec tok/s": "10.0", "speedup": "2.00",
        "±": "0.0%", "by prompt": "2.00-2.00", "best fixed": "draft 4", "of best": "1.50", "of tuned": "1.50",
        "limit": "≥1.61", "of limit": "124%", "text": "equal",
    }  # fmt: skip
    assert dict(zip(drafts.columns, drafts.rows[0], strict=True))["per position"] == "1.00 1.00 0.50 0.50"
    assert others.rows == (("copy", "0", "2.00", "0.50", "1.33", "none"),)
    lines = shown.notes(results)
    assert lines[0] == "The target is a padded one: 1b."
    assert any("byte-equal" in line for line in lines)
    assert "small<.gguf" in shown.heading(results)


def test_a_fork_of_an_exact_text_is_no_small_print() -> None:
    (cell,) = make_cells([made_run("plain", 1.0), made_run("localspec", 1.0, text="other")])
    results = Results([cell], BenchSettings(), {}, {"exactness": "x"}, done=2, total=4)
    assert results.forks == 1
    assert shown.tables(results)[0].rows[0][-1] == "1 of 1 differ"
    lines = shown.notes(results)
    assert any("1 of 1 differ" in line for line in lines)
    assert any("Interrupted: 2 of 4 runs" in line for line in lines)


class Page(HTMLParser):
    """Counts tags, and checks that every one that is opened is closed in turn."""

    EMPTY = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else(results: Results) -> None:
    text = as_html(results)
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert page.seen.count("svg") == 3
    assert "script" not in page.seen
    assert not page.addresses
    assert "http" not in text.replace("http-equiv", "")
    assert "small&lt;.gguf" in text
    assert "prefers-color-scheme: dark" in text
    assert "localspec without flags" in text
    assert "The target is a padded one: 1b." in text
