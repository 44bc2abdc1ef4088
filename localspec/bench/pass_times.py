"""Times passes by width, and prefill, on three kernels side by side: ours, and llama.cpp's with and without repacking;
or on devices.

The kernels take turns point by point, and the turns go round several times, so that a drifting machine hits all
alike; what counts is the quickest pass of all rounds.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from localspec.bench.report import ReportTable
from localspec.errors import UsageError
from localspec.gguf import Header, Tensor, read_header
from localspec.llama.exact import wide
from localspec.llama.exact.wide import ALL_KERNELS, LLAMA_KERNELS, Kernels, Limits, measure_limits
from localspec.llama.exact.widths import Bench
from localspec.llama.library import lib
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.machine import default_threads
from localspec.models.facts.heads import check_target

# What a pass has to read and to compute, from a model file's header alone.

_LOOKED_UP = ("token_embd", "position_embd", "per_layer_token_embd", "token_types")
"""Tables of which a pass reads a row per token; they are not multiplied."""


@dataclass(frozen=True, slots=True)
class Work:
    read_bytes: int  # weights, and keys and values of the tokens in the cache
    operations: int  # multiplications and additions of the matrix products and of attention

    def __add__(self, other: Work) -> Work:
        return Work(self.read_bytes + other.read_bytes, self.operations + other.operations)


def pass_work(header: Header, length: int, width: int) -> Work:
    """A pass of `width` rows, logits for each, whose first is token number `length` (its own K and V included)."""
    matrices = [(tensor, width) for tensor in _multiplied(header)]
    return _products(header, matrices) + _attention(header, length, width)


def prefill_work(header: Header, count: int, chunk: int) -> Work:
    """A prompt of `count` tokens in passes of `chunk`, without logits.

    The last layer's feed-forward part and the output matrix are left out: no logits need them.
    """
    last = f"blk.{header.n_layers - 1}.ffn"
    tensors = [tensor for tensor in _multiplied(header) if not tensor.name.startswith((last, "output", "token_embd"))]
    total = Work(0, 0)
    for start in range(0, count, chunk):
        rows = min(chunk, count - start)
        total += _products(header, [(tensor, rows) for tensor in tensors]) + _attention(header, start + 1, rows)
    return total


def _multiplied(header: Header) -> list[Tensor]:
    """Weight matrices that rows are multiplied with; tied embeddings are the output matrix too."""
    names = {tensor.name for tensor in header.tensors}
    tied = "output.weight" not in names
    return [
        tensor
        for tensor in header.tensors
        if len(tensor.shape) > 1
        and tensor.name.endswith(".weight")
        and "conv1d" not in tensor.name
        and (not tensor.name.startswith(_LOOKED_UP) or (tied and tensor.name == "token_embd.weight"))
    ]


def _products(header: Header, matrices: list[tuple[Tensor, int]]) -> Work:
    """Products of (matrix, rows). Of experts, a row uses a few; how many distinct ones is what chance would give."""
    experts = header.number("expert_count")
    used = header.number("expert_used_count") / experts if experts else 1.0
    read, operations = 0.0, 0.0
    for tensor, rows in matrices:
        expert = experts and len(tensor.shape) == 3
        read += tensor.size * (1 - (1 - used) ** rows if expert else 1)
        operations += 2 * math.prod(tensor.shape) * rows * (used if expert else 1)
    return Work(round(read), round(operations))


def _attention(header: Header, length: int, rows: int) -> Work:
    """Attention over an F16 cache, every layer over all tokens (sliding windows are not known here)."""
    heads, kv_heads = per_layer(header, "attention.head_count"), per_layer(header, "attention.head_count_kv")
    size = header.number("embedding_length") // max(1, *heads)
    both = (header.number("attention.key_length") or size) + (header.number("attention.value_length") or size)
    seen = rows * length + rows * (rows - 1) // 2
    cells = length + rows - 1
    attending = [(own, theirs) for own, theirs in zip(heads, kv_heads, strict=False) if theirs]
    return Work(
        sum(2 * both * theirs * cells for _, theirs in attending), sum(2 * both * own * seen for own, _ in attending)
    )


def per_layer(header: Header, key: str) -> list[int]:
    """A number of the architecture for each layer, whether the file gives one or a list."""
    numbers = header.numbers(key)
    if numbers == [0] and key == "attention.head_count_kv":
        return per_layer(header, "attention.head_count")
    return numbers if len(numbers) > 1 else numbers * header.n_layers


Progress = Callable[[str, float], None]  # (what is being done, share done from 0 to 1)

_PROMPT_CHUNK = 512
_WIDEST_PASS, _LONGEST_CONTEXT = 512, 1 << 20
_SECONDS_PER_VISIT = 0.05
"""Seconds of one point on one kernel's turn, at least two passes (the first may build its graph anew) ..."""
_LONG_PASS_SECONDS = 1.0  # ... unless one takes this long.


@dataclass(frozen=True, slots=True)
class PassSettings:
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    lengths: tuple[int, ...] = (128, 3584)
    prefill: int = 512  # prompt tokens; 0 = none
    threads: int = 0  # 0 = one per physical core
    rounds: int = 5
    device: str | None = None  # as for `devices.read`; None = the CPU

    def __post_init__(self) -> None:
        for name, values, low, high in (
            ("widths", self.widths, 1, _WIDEST_PASS),
            ("lengths", self.lengths, 2, _LONGEST_CONTEXT),
            ("prefill", (self.prefill,), 0, _LONGEST_CONTEXT),
            ("threads", (self.threads,), 0, 512),
            ("rounds", (self.rounds,), 1, 1000),
        ):
            if not values:
                raise UsageError(f"{name} is empty; give at least one number.")
            for value in values:
                if not low <= value <= high:
                    raise UsageError(f"{name}: {value} is not between {low} and {high}.")


@dataclass(slots=True)
class Point:
    """One pass, or one prefill, and how long it took."""

    kind: Literal["pass", "prefill"]
    length: int  # tokens of context; of a prefill 0
    width: int  # rows; of a prefill all its tokens
    work: Work
    seconds: dict[Kernels, list[float]] = field(default_factory=dict)
    """Of each kernel, one of every round: the quickest of its turn."""

    def best(self, kernels: Kernels) -> float | None:
        """The quickest of all rounds; None = not measured."""
        return min(self.seconds.get(kernels, []), default=None)

    @property
    def llama_best(self) -> float | None:
        """The quicker of llama.cpp's two."""
        return min((one for kernels in LLAMA_KERNELS for one in self.seconds.get(kernels, ())), default=None)

    @property
    def speedup(self) -> float | None:
        """llama.cpp's time over ours; None = not both measured."""
        ours, theirs = self.best("wide"), self.llama_best
        return theirs / ours if ours and theirs else None


@dataclass(slots=True)
class PassReport:
    header: Header
    settings: PassSettings
    points: list[Point]
    wide_isa: str = ""  # instruction set of our kernels; "" = they are not used
    wide_reason: str = ""
    limits: Limits | None = None
    splits: dict[Kernels, str] = field(default_factory=dict)
    """Parts llama.cpp cuts a pass into, as it reports them ("98", or "98 / 66": prefill / one row)."""
    rounds: int = 0
    interrupted: bool = False

    @property
    def kernels(self) -> tuple[Kernels, ...]:
        if self.settings.device is not None:
            return ("repacked",)
        return ALL_KERNELS if self.wide_isa else LLAMA_KERNELS

    def name(self, kernels: Kernels) -> str:
        return self.settings.device or NAMES[kernels]

    def narrow(self, point: Point) -> Point | None:
        """The point of width 1 at the same length; None for prefill or if there is none."""
        found = (other for other in self.points if (other.kind, other.length, other.width) == ("pass", point.length, 1))
        return next(found, None) if point.kind == "pass" else None


def measure_passes(path: Path, settings: PassSettings, progress: Progress | None = None) -> PassReport:
    """Loads the model once per kernel and times every point; Ctrl-C after the first turn keeps what there is. Raises
    ModelFileError, ModelError, PairError: the model cannot be used, or is a head or no language model."""
    settings = replace(settings, threads=settings.threads or default_threads())
    header, status = read_header(path), wide.status()
    isa, reason = (status.isa, status.reason) if settings.device is None else ("", "")
    check_target(header)
    sizes = product(settings.lengths, settings.widths)
    points = [Point("pass", length, width, pass_work(header, length, width)) for length, width in sizes]
    if settings.prefill:
        points.append(Point("prefill", 0, settings.prefill, prefill_work(header, settings.prefill, _PROMPT_CHUNK)))
    report = PassReport(header, settings, points, isa, reason)
    layers = 0 if settings.device is None else -1
    with contextlib.ExitStack() as stack:
        runners = {}
        for index, kernels in enumerate(report.kernels):
            if progress is not None:
                progress(f"loading ({kernels})", index / len(report.kernels))
            model = stack.enter_context(Model.load(path, gpu_layers=layers, device=settings.device, kernels=kernels))
            runners[kernels] = stack.enter_context(contextlib.closing(_Runner(model, kernels, settings)))
        report.splits = {kernels: runner.splits for kernels, runner in runners.items() if runner.splits}
        order, steps = list(runners.values()), settings.rounds * len(points)
        try:
            for turn in range(settings.rounds):
                if report.wide_isa:
                    report.limits = measure_limits(settings.threads, report.limits)
                for index, point in enumerate(points):
                    if progress is not None:
                        what = f"prefill of {point.width}" if point.kind == "prefill" else f"width {point.width}"
                        progress(f"round {turn + 1}: {what} at {point.length}", (turn * len(points) + index) / steps)
                    for runner in order:
                        point.seconds.setdefault(runner.kernels, []).append(runner.visit(point))
                order = order[1:] + order[:1]  # another one is first in the next round
                report.rounds += 1
        except KeyboardInterrupt:
            if not any(point.seconds for point in points):
                raise
            report.interrupted = True
    return report


def needed_bytes(header: Header, settings: PassSettings, copies: int) -> int:
    """Memory of so many copies of the weights and caches, roughly."""
    cells = _context_length(settings)
    return copies * (header.tensor_bytes + pass_work(header, cells, 1).read_bytes - pass_work(header, 0, 1).read_bytes)


class _Runner(Bench):
    """A model on one kind of kernels, with a context of any length."""

    def __init__(self, model: Model, kernels: Kernels, settings: PassSettings) -> None:
        self.kernels, mark = kernels, lib.log.mark()
        super().__init__(
            model,
            ContextSettings(
                n_ctx=_context_length(settings),
                threads=settings.threads,
                grid=_PROMPT_CHUNK,
                flash_attention=True,
                max_rows=max(64, *settings.widths),
            ),
            observed=False,
        )
        lines = "\n".join(line for _, line in lib.log.since(mark))
        self.splits = "".join(re.findall(r"graph.*splits = (\d+(?: / \d+)?)", lines)[-1:])

    def visit(self, point: Point) -> float:
        times: list[float] = []
        while not times or (sum(times) < _LONG_PASS_SECONDS and (len(times) < 2 or sum(times) < _SECONDS_PER_VISIT)):
            if point.kind == "pass":
                times.append(self.seconds(point.length, point.width))
                continue
            self.context.forget(0)
            start = time.perf_counter()
            self.context.prefill(0, self._tokens[: point.width + 1], point.width + 1)
            times.append(time.perf_counter() - start)
        return min(times)


def _context_length(settings: PassSettings) -> int:
    return max(*settings.lengths, settings.prefill + 1, 8) + max(settings.widths)


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
        **{name: getattr(settings, name) for name in ("prefill", "threads", "rounds", "device")},
        "finished_rounds": report.rounds,
        "interrupted": report.interrupted,
        "kernels": list(report.kernels),
        "wide": {"isa": report.wide_isa, "reason": report.wide_reason},
        "limits": limits,
        "splits": dict(report.splits),
        "points": [
            {name: getattr(point, name) for name in ("kind", "length", "width")}
            | asdict(point.work)
            | {"speedup": point.speedup}
            | {kernels: _times(report, point, kernels) for kernels in report.kernels if point.seconds.get(kernels)}
            for point in report.points
        ],
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


def tables(report: PassReport) -> list[ReportTable]:
    """Times side by side, then what they mean for memory and arithmetic: shares of the limits, if these are known."""
    columns = ["context", "width", *(f"{report.name(kernels)} ms" for kernels in report.kernels)]
    columns += ["speedup", "localspec cost"] if report.wide_isa else []
    times = []
    for point in report.points:
        narrow = report.narrow(point)
        row = [*_place(point), *(_number(point.best(kernels), 1e-3) for kernels in report.kernels)]
        if report.wide_isa:
            row += [_number(point.speedup), _number(point.best("wide"), narrow.best("wide") if narrow else None)]
        times.append((*row, _number(point.llama_best, narrow.llama_best if narrow else None)))
    title = "Time of a pass (cost: in passes of width 1"
    title += "; speedup: over llama.cpp's better)" if report.wide_isa else ")"
    first = ReportTable(title, (*columns, "llama.cpp cost"), tuple(times))
    title = "Bytes of weights, keys and values read, and operations (a multiply-add is two)"
    columns = ["kernels", "context", "width", "GB/s", "GOPS"]
    if report.limits is not None:
        title, columns = f"{title}; shares of the limits", [*columns, "of memory", "of int8"]
    rows = []
    for kernels, point in product(report.kernels, report.points):
        if point.seconds.get(kernels):
            found = _times(report, point, kernels)
            row = [report.name(kernels), *_place(point), f"{found['gb_s']:.1f}", f"{found['gops']:.0f}"]
            rows.append((*row, *(f"{found[name]:.0%}" for name in ("memory_share", "int8_share") if name in found)))
    return [first, ReportTable(title, tuple(columns), tuple(rows))]


def heading(report: PassReport) -> str:
    header, settings = report.header, report.settings
    kernels = f", our kernels: {report.wide_isa}" if report.wide_isa else ""
    return (
        f"{header.name}, {header.quantisation}, {header.tensor_bytes / 1e9:.2f} GB of weights, "
        f"{settings.threads} threads, best of {report.rounds or 1} rounds{kernels}"
    )


def notes(report: PassReport) -> list[str]:
    lines = []
    if report.wide_reason:
        lines.append(f"Only llama.cpp's kernels were measured: {report.wide_reason}")
    if report.limits is not None:
        lines.append(
            f"Limits measured in the same run: memory {report.limits.memory_rate / 1e9:.1f} GB/s, "
            f"int8 {report.limits.int8_rate / 1e9:,.0f} GOPS."
        )
    if report.splits:
        parts = ", ".join(f"{report.name(kernels)} {splits}" for kernels, splits in report.splits.items())
        lines.append(f"Parts a pass is cut into (prefill / one row where they differ): {parts}.")
    if report.interrupted:
        lines.append(f"Interrupted after {report.rounds} of {report.settings.rounds} rounds.")
    return lines


def _place(point: Point) -> tuple[str, str]:
    return ("prefill" if point.kind == "prefill" else str(point.length), str(point.width))


def _number(value: float | None, over: float | None = 1.0) -> str:
    return "-" if value is None or not over else f"{value / over:.2f}"
