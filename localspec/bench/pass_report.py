"""A pass report as plain data, and as tables of text."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

from localspec.bench.pass_times import PassReport, Point
from localspec.bench.report import Table
from localspec.llama.exact.configuration import Kernels

NAMES: dict[Kernels, str] = {"wide": "localspec", "repacked": "llama.cpp", "plain": "not repacked"}


def as_dict(report: PassReport) -> dict[str, Any]:
    """Plain data for JSON. Rates and shares are of the quickest time (`ms`)."""
    header, settings = report.header, report.settings
    limits = None
    if report.limits is not None:
        limits = {"memory_gb_s": report.limits.memory_rate / 1e9, "int8_gops": report.limits.int8_rate / 1e9}
    return {
        "model": header.path.name,
        "quantisation": header.quantisation,
        "weight_bytes": header.tensor_bytes,
        "parameters": header.parameters,
        **{name: value for name, value in asdict(settings).items() if name in ("threads", "rounds", "prefill")},
        "finished_rounds": report.rounds,
        "interrupted": report.interrupted,
        "kernels": list(report.kernels),
        "wide": {"isa": report.wide_isa, "reason": report.wide_reason},
        "limits": limits,
        "splits": dict(report.splits),
        "points": [_point(report, point) for point in report.points],
    }


def _point(report: PassReport, point: Point) -> dict[str, Any]:
    return {
        "kind": point.kind,
        "length": point.length,
        "width": point.width,
        "read_bytes": point.work.read_bytes,
        "operations": point.work.operations,
        "speedup": point.speedup,
        **{kernels: _times(report, point, kernels) for kernels in report.kernels if point.seconds.get(kernels)},
    }


def _times(report: PassReport, point: Point, kernels: Kernels) -> dict[str, Any]:
    samples = point.seconds[kernels]
    best = min(samples)
    found: dict[str, Any] = {
        "ms": best * 1e3,
        "median_ms": statistics.median(samples) * 1e3,
        "gb_s": point.work.read_bytes / best / 1e9,
        "gops": point.work.operations / best / 1e9,
    }
    if report.limits is not None:
        found["memory_share"] = point.work.read_bytes / best / report.limits.memory_rate
        found["int8_share"] = point.work.operations / best / report.limits.int8_rate
    narrow = report.narrow(point)
    one = narrow.best(kernels) if narrow is not None else None
    if one:
        found["cost"] = best / one
    return found


def tables(report: PassReport) -> list[Table]:
    """Times side by side, then what they mean for memory and arithmetic."""
    return [_time_table(report), _rate_table(report)]


def heading(report: PassReport) -> str:
    """What was measured, in a line."""
    header, settings = report.header, report.settings
    kernels = f", our kernels: {report.wide_isa}" if report.wide_isa else ""
    return (
        f"{header.name}, {header.quantisation}, {header.tensor_bytes / 1e9:.2f} GB of weights, "
        f"{settings.threads} threads, best of {report.rounds or 1} rounds{kernels}"
    )


def notes(report: PassReport) -> list[str]:
    """What a reader of the tables should know."""
    lines = []
    if not report.wide_isa:
        lines.append(f"Only llama.cpp's kernels were measured: {report.wide_reason}")
    if report.limits is not None:
        lines.append(
            f"Limits measured in the same run: memory {report.limits.memory_rate / 1e9:.1f} GB/s, "
            f"int8 {report.limits.int8_rate / 1e9:,.0f} GOPS."
        )
    if report.splits:
        parts = ", ".join(f"{NAMES[kernels]} {splits}" for kernels, splits in report.splits.items())
        lines.append(f"Parts a pass is cut into (prefill / one row where they differ): {parts}.")
    if report.interrupted:
        lines.append(f"Interrupted after {report.rounds} of {report.settings.rounds} rounds.")
    return lines


def _place(point: Point) -> tuple[str, str]:
    return ("prefill" if point.kind == "prefill" else str(point.length), str(point.width))


def _time_table(report: PassReport) -> Table:
    columns = ["context", "width", *(f"{NAMES[kernels]} ms" for kernels in report.kernels)]
    columns += ["speedup", "localspec cost"] if report.wide_isa else []
    rows = []
    for point in report.points:
        narrow = report.narrow(point)
        row = [*_place(point), *(_number(point.best(kernels), 1e3, ".2f") for kernels in report.kernels)]
        if report.wide_isa:
            ours = _ratio(point.best("wide"), narrow.best("wide") if narrow else None)
            row += [_number(point.speedup, 1, ".2f"), _number(ours, 1, ".2f")]
        theirs = _ratio(point.llama_best, narrow.llama_best if narrow else None)
        rows.append((*row, _number(theirs, 1, ".2f")))
    title = "Time of a pass (cost: in passes of width 1"
    title += "; speedup: over llama.cpp's better)" if report.wide_isa else ")"
    return Table(title, (*columns, "llama.cpp cost"), tuple(rows))


def _rate_table(report: PassReport) -> Table:
    columns = ["kernels", "context", "width", "GB/s", "GOPS"]
    columns += ["of memory", "of int8"] if report.limits is not None else []
    rows = []
    for kernels in report.kernels:
        for point in report.points:
            if not point.seconds.get(kernels):
                continue
            found = _times(report, point, kernels)
            row = [NAMES[kernels], *_place(point), f"{found['gb_s']:.1f}", f"{found['gops']:.0f}"]
            if report.limits is not None:
                row += [f"{found['memory_share']:.0%}", f"{found['int8_share']:.0%}"]
            rows.append(tuple(row))
    title = "Bytes of weights, keys and values read, and operations (a multiply-add is two)"
    title += "; shares of the limits" if report.limits is not None else ""
    return Table(title, tuple(columns), tuple(rows))


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def _number(value: float | None, scale: float, form: str) -> str:
    return "-" if value is None else format(value * scale, form)
