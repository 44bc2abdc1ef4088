"""Results of a benchmark as plain data, tables of text and a picture: a cell is a workload at a temperature, with every
side's runs of it.

Formulas are the glossary's (`engine.stats`), pooled over all runs: sums over sums, never a mean of ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from localspec.bench.sides import BASELINE, PRODUCT
from localspec.checks.compare import Heat, Ratio, fork, gain
from localspec.engine.stats import RequestStats, percentile
from localspec.errors import UsageError, explained

_PARTS = ("draft", "verify", "host")  # of the decode time: drafting, the target's passes, everything else
_SUMMED = ("generated_tokens", "drafted", "accepted", "passes", "draft_passes", *(f"{part}_seconds" for part in _PARTS))


@dataclass(slots=True)
class BenchCell:
    workload: str
    temperature: float
    heats: list[Heat] = field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        """In order: plain decoding, localspec, the others by name and number."""

        def order(name: str) -> tuple[int, str, int]:
            words, number = name.rpartition(" ")[::2]
            first = (BASELINE, PRODUCT).index(name) if name in (BASELINE, PRODUCT) else 2
            return (first, words, int(number)) if number.isdecimal() else (first, name, 0)

        return sorted(self.heats[0].runs, key=order)

    def figures(self, side: str) -> dict[str, Any]:
        """Everything that is reported of a side, as plain data; None where its answers' stats do not say it."""
        runs = [heat.runs[side] for heat in self.heats if side in heat.runs]
        answers = [answer for run in runs for answer in run.answers]
        sums: dict[str, Any] = {name: float(sum(one.stats.get(name, 0) for one in answers)) for name in _SUMMED}
        total = RequestStats(generated=sums.pop("generated_tokens"), **sums)
        depths = Counter[int]()
        for answer in answers:
            depths.update(dict(enumerate(answer.stats.get("accepted_per_position", ()))))
        drafts = total.draft_passes
        counted: dict[str, Any] = {
            **{name: getattr(total, name) for name in ("acceptance_rate", "mean_accepted_length", "tokens_per_pass")},
            # [d] = share of the passes with a draft whose draft was accepted at least d + 1 deep
            "accepted_per_position": [_over(depths[depth], drafts) for depth in range(max(depths, default=-1) + 1)],
            **{name: getattr(total, name) for name in ("drafted", "passes", "draft_passes")},
            **{f"{part}_share": _over(getattr(total, f"{part}_seconds"), total.decode_seconds) for part in _PARTS},
        }
        has_stats = any("drafted" in answer.stats for answer in answers)
        speedup, tokens = self.speedup(side), sum(run.tokens for run in runs)
        gaps = [gap for answer in answers for gap in answer.gaps]
        return {
            "contender": side,
            "runs": len(runs),
            "tokens": tokens,
            "tokens_per_second": _over(tokens, sum(run.decode_seconds for run in runs)),
            "speedup": speedup and asdict(speedup),
            "ttft_seconds": median(answer.ttft_seconds for answer in answers) if answers else 0.0,
            "itl_p50_seconds": percentile(gaps, 0.50),
            "itl_p99_seconds": percentile(gaps, 0.99),
            **(counted if has_stats else dict.fromkeys(counted)),
            "exact": self.exact(side),
            "forks": self.forks(side),
            "compared": len(runs),
        }

    def exact(self, side: str) -> bool | None:
        """Whether all its texts were exact by its own word; None = it does not say."""
        words = {answer.exact for heat in self.heats if side in heat.runs for answer in heat.runs[side].answers}
        return None if None in words or not words else False not in words

    def speedup(self, side: str) -> Ratio | None:
        """Over plain decoding, on the same prompts in the same rounds."""
        return gain(self.heats, side, BASELINE)

    def forks(self, side: str) -> int:
        """Conversations whose text is not plain decoding's."""
        return sum(fork(heat.runs[BASELINE], heat.runs[side]) is not None for heat in self.heats)


def make_cells(heats: Iterable[Heat]) -> list[BenchCell]:
    """Heats by workload and temperature: all workloads at the first temperature, then at the others."""
    found: dict[tuple[float, str], BenchCell] = {}
    for heat in heats:
        workload, temperature = heat.task.prompt.workload, heat.task.options.sampling.temperature
        found.setdefault((temperature, workload), BenchCell(workload, temperature)).heats.append(heat)
    temperatures = list(dict.fromkeys(temperature for temperature, _ in found))
    return sorted(found.values(), key=lambda cell: temperatures.index(cell.temperature))


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


INTERVAL = {
    "rounds": "95 % interval, Student's t over rounds, paired by prompt and round; the prompts are what they are",
    "prompts": "95 % interval, Student's t over prompts, paired (one round: it says nothing about the machine's noise)",
    "": "no interval: one prompt in one round",
}


@dataclass(frozen=True, slots=True)
class BenchSettings:
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    tokens: int = 64
    rounds: int = 3
    seed: int = 1  # of the first prompt; each prompt and turn has its own


@dataclass(slots=True)
class Results:
    cells: list[BenchCell]
    settings: BenchSettings
    pair: dict[str, Any]  # `sides.facts_of`
    machine: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    """What a reader must know of these models: that they are padded ones."""
    total: int = 0
    servers: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(len(heat.runs) for cell in self.cells for heat in cell.heats)

    @property
    def forks(self) -> int:
        """Conversations of our engine that called themselves exact and differ from plain decoding's."""
        return sum(cell.forks(side) for cell, side in self._exact())

    @property
    def compared(self) -> int:
        return sum(len(cell.heats) for cell, _ in self._exact())

    def _exact(self) -> list[tuple[BenchCell, str]]:
        return [(cell, side) for cell in self.cells for side in cell.sides[1:] if cell.exact(side)]

    @property
    def interval(self) -> str:
        kinds = {found.over for cell in self.cells if (found := cell.speedup(PRODUCT)) is not None}
        return "; ".join(INTERVAL[kind] for kind in ("rounds", "prompts", "") if kind in kinds)


def as_dict(results: Results) -> dict[str, Any]:
    return {
        "pair": results.pair,
        "labels": results.labels,
        "machine": results.machine,
        "settings": asdict(results.settings),
        "runs": results.done,
        "planned_runs": results.total,
        "servers": results.servers,
        "interval": results.interval,
        "forks_of_exact": results.forks,
        "cells": [
            {
                "workload": cell.workload,
                "temperature": cell.temperature,
                "prompts": len({heat.number for heat in cell.heats}),
                "contenders": [cell.figures(side) for side in cell.sides],
            }
            for cell in results.cells
        ],
    }


def heading(results: Results) -> str:
    target, draft = results.pair["target"], results.pair["draft"]
    pair = target["name"] + (f" with {draft['name']}" if draft else ", no draft model")
    settings, machine = results.settings, results.machine
    return (
        f"{pair}; {machine['processor']}, {machine['threads']} threads; answers of at most {settings.tokens} tokens, "
        f"{settings.rounds} rounds"
    )


def notes(results: Results) -> list[str]:
    lines = [*results.labels, f"Passes: {results.machine['exactness']}."]
    lines.append("Speed is generated tokens over decode time: a draft model's reading counts, the target's does not.")
    if results.interval:
        lines.append(f"±: {results.interval}. By prompt: the slowest and the fastest prompt.")
    lines.append(
        f"Texts: {results.forks} of {results.compared} differ from plain decoding's although every pass was exact."
        if results.forks
        else f"Texts: all {results.compared} of exact passes are byte-equal to plain decoding's."
    )
    if results.done < results.total:
        lines.append(f"Interrupted: {results.done} of {results.total} runs.")
    return lines


def tables(results: Results) -> list[ReportTable]:
    """Speeds, then what drafts brought, then every contender's speedup."""
    found = [_speeds(results), _drafts(results)]
    others = list(dict.fromkeys(side for cell in results.cells for side in cell.sides if side != BASELINE))
    if len(others) > 1:
        rows = tuple(
            (
                *_place(cell),
                *(_speedup(cell, name) for name in others),
                ", ".join(f"{name} {cell.forks(name)}" for name in others if cell.forks(name)) or "none",
            )
            for cell in results.cells
        )
        columns = ("workload", "temp", *others, "forks")
        found.append(
            ReportTable("Speedup over plain decoding, and texts that differ from plain decoding's", columns, rows)
        )
    return found


def _speeds(results: Results) -> ReportTable:
    columns = (
        "workload", "temp", "plain tok/s", "localspec tok/s", "speedup", "±", "by prompt", "text",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        found, forks = cell.speedup(PRODUCT), cell.forks(PRODUCT)
        doubt = "-"  # half the width of the interval
        if found is not None and found.over:
            doubt = f"{found.half_width:.1%}" if found.half_width < 1.0 else "> 100%"
        equal = "equal" if cell.exact(PRODUCT) else "equal, inexact"
        speeds = (f"{cell.figures(side)['tokens_per_second']:.1f}" for side in (BASELINE, PRODUCT))
        by_prompt = "-" if found is None else f"{found.smallest:.2f}-{found.largest:.2f}"
        verdict = f"{forks} of {len(cell.heats)} differ" if forks else equal
        rows.append((*_place(cell), *speeds, _speedup(cell, PRODUCT), doubt, by_prompt, verdict))
    return ReportTable("Speed of localspec without flags against plain decoding", columns, tuple(rows))


def _drafts(results: Results) -> ReportTable:
    columns = (
        "workload", "temp", "accepted", "length", "tok/pass", "per position", "TTFT plain", "TTFT ms", "ITL p50",
        "p99 ms", "draft", "verify", "host",
    )  # fmt: skip
    rows = []
    for cell in results.cells:
        plain, own = cell.figures(BASELINE), cell.figures(PRODUCT)
        rates = ("acceptance_rate", "mean_accepted_length")
        rows.append(
            (
                *_place(cell),
                *(f"{own[name]:.2f}" if own["drafted"] else "-" for name in rates),
                f"{own['tokens_per_pass'] or 0.0:.2f}",
                " ".join(f"{share:.2f}" for share in own["accepted_per_position"] or ()) or "-",
                *(f"{one['ttft_seconds'] * 1e3:.0f}" for one in (plain, own)),
                *(f"{own[name] * 1e3:.1f}" for name in ("itl_p50_seconds", "itl_p99_seconds")),
                *(f"{own[f'{part}_share'] or 0.0:.0%}" for part in _PARTS),
            )
        )
    title = "What localspec's drafts brought (length: mean accepted length, next token included)"
    return ReportTable(title, columns, tuple(rows))


def _place(cell: BenchCell) -> tuple[str, str]:
    return cell.workload, f"{cell.temperature:g}"


def _speedup(cell: BenchCell, side: str) -> str:
    found = cell.speedup(side)
    return "-" if found is None else f"{found.value:.2f}"


@dataclass(frozen=True, slots=True)
class ReportTable:
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


_INCHES_A_BAR, _HEIGHT = 0.28, 4.5


def figure_type() -> Callable[..., Any]:
    """Matplotlib's `Figure`, which may not be installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        hint = 'pip install "localspec[chart]"'
        raise UsageError("A chart needs matplotlib, which is not installed.", hint) from None
    return Figure


def draw(results: Results, file: Path) -> None:
    """Writes a picture of a format that the file's name says: .png, .svg, .pdf."""
    sides = list(dict.fromkeys(side for cell in results.cells for side in cell.sides if side != BASELINE))
    width = 0.8 / max(1, len(sides))
    inches = 3 + _INCHES_A_BAR * len(results.cells) * (1 + len(sides))
    figure = figure_type()(figsize=(inches, _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    for number, side in enumerate(sides):
        found = [(place, cell.speedup(side)) for place, cell in enumerate(results.cells)]
        bars = [(place + (number - (len(sides) - 1) / 2) * width, one) for place, one in found if one is not None]
        doubts = [[one.value - one.low for _, one in bars], [one.high - one.value for _, one in bars]]
        axes.bar([at for at, _ in bars], [one.value for _, one in bars], width, yerr=doubts, capsize=2, label=side)
    top = max((one.largest for cell in results.cells if (one := cell.speedup(sides[0]))), default=1.0) if sides else 1.0
    axes.set_ylim(0.0, max(1.5, 1.3 * top))  # an interval of few rounds may be wider than all that was seen
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(results.cells)), [f"{cell.workload}\n{cell.temperature:g}" for cell in results.cells])
    axes.set_ylabel("speed over plain decoding")
    axes.set_xlabel("workload, temperature")
    axes.legend()
    axes.set_title("\n".join((heading(results), *results.labels)), fontsize="small", loc="left")
    try:
        with explained(f"{file} cannot be written"):
            figure.savefig(file)
    except ValueError:
        raise UsageError(f"--chart is {str(file)!r}; it must end in .png, .svg or .pdf.") from None
