"""Results of a benchmark as plain data, rows for a spreadsheet, and tables of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from localspec.bench.contest.benchmark import BenchSettings
from localspec.bench.contest.run import BASELINE, PRODUCT
from localspec.bench.results.cells import Cell, Figures, names_of
from localspec.checks.interval import Ratio

INTERVAL = {
    "rounds": "95 % interval, Student's t over rounds, paired by prompt and round; the prompts are what they are",
    "prompts": "95 % interval, Student's t over prompts, paired (one round: it says nothing about the machine's noise)",
    "": "no interval: one prompt in one round",
}


@dataclass(slots=True)
class Results:
    """What was measured, as far as it went."""

    cells: list[Cell]
    settings: BenchSettings
    pair: dict[str, Any]
    """`contenders.pair_facts`."""
    machine: dict[str, Any]
    """What ran it: processor, threads, configuration."""
    labels: list[str] = field(default_factory=list)
    """What a reader must know of these models: that they are padded ones."""
    done: int = 0
    """Runs there are, ..."""
    total: int = 0
    """... and runs there should be."""
    session: str = ""
    """The file the runs are kept in."""

    @property
    def forks(self) -> int:
        """Conversations of our engine that called themselves exact and differ from plain decoding's."""
        return sum(differing for differing, _ in self._compared())

    @property
    def compared(self) -> int:
        """Conversations of our engine that called themselves exact."""
        return sum(compared for _, compared in self._compared())

    def _compared(self) -> list[tuple[int, int]]:
        return [
            cell.forks(name)
            for cell in self.cells
            for name, figures in cell.contenders.items()
            if (figures.fixed or name == PRODUCT) and figures.exact
        ]

    @property
    def interval(self) -> str:
        """What the intervals are, in words."""
        kinds = {found.over for cell in self.cells if (found := cell.speedup(PRODUCT)) is not None}
        return "; ".join(INTERVAL[kind] for kind in ("rounds", "prompts", "") if kind in kinds)


def as_dict(results: Results) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        "pair": results.pair,
        "labels": results.labels,
        "machine": results.machine,
        "settings": asdict(results.settings),
        "runs": results.done,
        "planned_runs": results.total,
        "session": results.session,
        "interval": results.interval,
        "forks_of_exact": results.forks,
        "cells": [_cell(cell) for cell in results.cells],
    }


def _cell(cell: Cell) -> dict[str, Any]:
    best, limit, speedup = cell.best_fixed, cell.limit, cell.speedup(PRODUCT)
    share = None if best is None else cell.speedup(PRODUCT, best)
    return {
        "workload": cell.workload,
        "temperature": cell.temperature,
        "prompts": len(cell.plain.by_prompt()),
        "best_fixed": best,
        "share_of_best_fixed": None if share is None else asdict(share),
        "share_of_tuned": cell.share_of_tuned,
        "limit": None if limit is None else {"speedup": limit.speedup, "known": limit.known},
        "share_of_limit": speedup.value / limit.speedup if speedup and limit else None,
        "contenders": [_figures(cell, figures) for figures in cell.contenders.values()],
    }


def _figures(cell: Cell, figures: Figures) -> dict[str, Any]:
    speedup, (forks, compared) = cell.speedup(figures.name), cell.forks(figures.name)
    draft, verify, host = figures.time_shares
    counted = {
        "acceptance_rate": figures.acceptance_rate,
        "mean_accepted_length": figures.mean_accepted_length,
        "tokens_per_pass": figures.tokens_per_pass,
        "accepted_per_position": figures.accepted_per_position,
        "drafted": figures.total("drafted"),
        "passes": figures.total("passes"),
        "draft_passes": figures.total("draft_passes"),
        "draft_share": draft,
        "verify_share": verify,
        "host_share": host,
    }
    return {
        "contender": figures.name,
        "runs": len(figures.runs),
        "tokens": sum(run.tokens for run in figures.runs),
        "tokens_per_second": figures.tokens_per_second,
        "speedup": None if speedup is None else asdict(speedup),
        "ttft_seconds": figures.ttft_seconds,
        "itl_p50_seconds": figures.itl_seconds(0.50),
        "itl_p99_seconds": figures.itl_seconds(0.99),
        **(counted if figures.has_stats else dict.fromkeys(counted)),
        "exact": figures.exact,
        "forks": forks,
        "compared": compared,
    }


def as_csv(results: Results) -> str:
    """A row per cell and contender."""
    rows = [row for cell in results.cells for row in _csv_rows(cell, "; ".join(results.labels))]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["workload"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _csv_rows(cell: Cell, label: str) -> Iterator[dict[str, Any]]:
    own = _cell(cell)
    limit = own["limit"] or {"speedup": None, "known": None}
    for figures in own["contenders"]:
        speedup = figures.pop("speedup") or {}
        positions = figures.pop("accepted_per_position") or []
        yield {
            "models": label,
            "workload": cell.workload,
            "temperature": cell.temperature,
            **figures,
            **{f"speedup_{name}": speedup.get(name) for name in ("value", "low", "high", "smallest", "largest")},
            "accepted_per_position": " ".join(f"{share:.4f}" for share in positions),
            "best_fixed": own["best_fixed"],
            "limit_speedup": limit["speedup"],
            "limit_known": limit["known"],
        }


def heading(results: Results) -> str:
    """What was measured, in a line."""
    target, draft = results.pair["target"], results.pair["draft"]
    pair = target["name"] + (f" with {draft['name']}" if draft else ", no draft model")
    settings, machine = results.settings, results.machine
    return (
        f"{pair}; {machine['processor']}, {machine['threads']} threads; answers of at most {settings.tokens} tokens, "
        f"{settings.rounds} rounds"
    )


def notes(results: Results) -> list[str]:
    """What a reader of the tables should know."""
    lines = [*results.labels, f"Passes: {results.machine['exactness']}."]
    lines.append("Speed is generated tokens over decode time: a draft model's reading counts, the target's does not.")
    if results.interval:
        lines.append(f"±: {results.interval}. By prompt: the slowest and the fastest prompt.")
    if any(cell.share_of_tuned is not None for cell in results.cells):
        lines.append(
            "Best fixed: of all rounds, the very ones it is compared on. Of tuned: localspec over the fixed length "
            "that was fastest in the other rounds; median over rounds, kind to localspec where they are few."
        )
    if any(cell.limit for cell in results.cells):
        lines.append(
            "Limit: a clairvoyant's drafts at what passes cost here, from the log; ≥ where guesses of some positions "
            "were never made."
        )
    lines.append(
        f"Texts: {results.forks} of {results.compared} differ from plain decoding's although every pass was exact."
        if results.forks
        else f"Texts: all {results.compared} of exact passes are byte-equal to plain decoding's."
    )
    if results.done < results.total:
        lines.append(f"Interrupted: {results.done} of {results.total} runs. The same command goes on with it.")
    return lines


def tables(results: Results) -> list[Table]:
    """Speeds, then what drafts brought, then every contender's speedup."""
    found = [_speeds(results), _drafts(results)]
    others = [name for name in names_of(results.cells) if name != BASELINE]
    if len(others) > 1:
        rows = tuple(
            (*_place(cell), *(_ratio(cell.speedup(name)) for name in others), *_fork_counts(cell, others))
            for cell in results.cells
        )
        columns = ("workload", "temp", *others, "forks")
        found.append(Table("Speedup over plain decoding, and texts that differ from plain decoding's", columns, rows))
    return found


def _speeds(results: Results) -> Table:
    columns = (
        "workload", "temp", "plain tok/s", "localspec tok/s", "speedup", "±", "by prompt", "best fixed", "of best",
        "of tuned", "limit", "of limit", "text",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        speedup, limit, best = cell.speedup(PRODUCT), cell.limit, cell.best_fixed
        reached = speedup.value / limit.speedup if speedup and limit else None
        rows.append(
            (
                *_place(cell),
                f"{cell.plain.tokens_per_second:.1f}",
                f"{cell.product.tokens_per_second:.1f}",
                _ratio(speedup),
                _doubt(speedup),
                "-" if speedup is None else f"{speedup.smallest:.2f}-{speedup.largest:.2f}",
                best or "-",
                "-" if best is None else _ratio(cell.speedup(PRODUCT, best)),
                "-" if cell.share_of_tuned is None else f"{cell.share_of_tuned:.2f}",
                "-" if limit is None else f"{'≥' if limit.known < 0.95 else ''}{limit.speedup:.2f}",
                "-" if reached is None else f"{reached:.0%}",
                _verdict(cell),
            )
        )
    return Table("Speed of localspec without flags against plain decoding", columns, tuple(rows))


def _drafts(results: Results) -> Table:
    columns = (
        "workload", "temp", "accepted", "length", "tok/pass", "per position", "TTFT plain", "TTFT ms", "ITL p50",
        "p99 ms", "draft", "verify", "host",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        own, some = cell.product, cell.product.total("drafted") > 0
        rows.append(
            (
                *_place(cell),
                f"{own.acceptance_rate:.2f}" if some else "-",
                f"{own.mean_accepted_length:.2f}" if some else "-",
                f"{own.tokens_per_pass:.2f}",
                " ".join(f"{share:.2f}" for share in own.accepted_per_position) or "-",
                f"{cell.plain.ttft_seconds * 1e3:.0f}",
                f"{own.ttft_seconds * 1e3:.0f}",
                f"{own.itl_seconds(0.50) * 1e3:.1f}",
                f"{own.itl_seconds(0.99) * 1e3:.1f}",
                *(f"{share:.0%}" for share in own.time_shares),
            )
        )
    title = "What localspec's drafts brought (length: mean accepted length, next token included)"
    return Table(title, columns, tuple(rows))


def _place(cell: Cell) -> tuple[str, str]:
    return cell.workload, f"{cell.temperature:g}"


def _ratio(found: Ratio | None) -> str:
    return "-" if found is None else f"{found.value:.2f}"


def _doubt(found: Ratio | None) -> str:
    """Half the width of the interval."""
    if found is None or not found.over:
        return "-"
    return f"{found.half_width:.1%}" if found.half_width < 1.0 else "> 100%"


def _verdict(cell: Cell) -> str:
    """Whether localspec's text is plain decoding's."""
    if PRODUCT not in cell.contenders:
        return "-"
    forks, compared = cell.forks(PRODUCT)
    if forks:
        return f"{forks} of {compared} differ"
    return "equal" if cell.product.exact else "equal, inexact"


def _fork_counts(cell: Cell, names: list[str]) -> tuple[str]:
    differing = [f"{name} {cell.forks(name)[0]}" for name in names if name in cell.contenders and cell.forks(name)[0]]
    return (", ".join(differing) or "none",)


# A table of text.


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; every cell but the first is a number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def lines(self) -> Iterator[str]:
        """Title, columns and rows, aligned with spaces."""
        yield self.title
        cells = (self.columns, *self.rows)
        widths = [max(len(row[index]) for row in cells) for index in range(len(self.columns))]
        for row in cells:
            yield "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
