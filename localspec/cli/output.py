"""What commands print: answers on standard output as they come, everything else on standard error.

Escape codes appear only on a terminal; nothing but the answer ever reaches standard output.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import PlainText, plain_text
from localspec.methods import NAMES

if TYPE_CHECKING:
    from rich.progress import Progress

    from localspec.bench.report import ReportTable
    from localspec.engine.stats import RequestStats
    from localspec.models.hub.download import Report
    from localspec.runtime.generation import Generation


def bars(*columns: str, **more: Any) -> Progress | None:
    """Bars on standard error, not shown yet; None where that is no terminal. After text and bar come these columns of
    rich's, or texts; `more` is rich's."""
    if not sys.stderr.isatty():
        return None
    from rich import progress
    from rich.console import Console

    shown: list[progress.ProgressColumn] = [progress.TextColumn("{task.description}", markup=False)]  # of names: [/b]
    shown += [progress.BarColumn(bar_width=24)]
    shown += [
        getattr(progress, name)() if name.isidentifier() else progress.TextColumn(name, markup=False)
        for name in columns
    ]
    return progress.Progress(*shown, console=Console(stderr=True), transient=True, **more)


@contextmanager
def _bar(what: str, total: float | None, *columns: str) -> Iterator[Callable[..., None] | None]:
    """What updates a bar; None where there is none."""
    with bars(*columns) or nullcontext() as bar:
        yield None if bar is None else partial(bar.update, bar.add_task(what, total=total))


@contextmanager
def load_progress() -> Iterator[Callable[[str, float], None] | None]:
    with _bar("Loading", 1.0, "TimeElapsedColumn") as update:
        yield update and (lambda what, share: update(description=what, completed=share))


SHOWN_AFTER = 0.3  # seconds of reading from which on it is shown: a line that comes and goes at once only flickers


@contextmanager
def reading_progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar for (tokens of the prompt that were read, all), gone before the answer comes; on a terminal only."""
    bar = bars("{task.fields[left]}", redirect_stdout=False, redirect_stderr=False)
    if bar is None:
        yield None
        return
    task, began = bar.add_task(""), list[tuple[float, int]]()

    def end() -> None:
        if bar.live.is_started:
            bar.stop()

    def heard(done: int, total: int) -> None:
        if done >= total:
            end()
            return
        began.append((time.perf_counter(), done))
        seconds, read = began[-1][0] - began[0][0], done - began[0][1]
        left = f"about {max(1, round((total - done) * seconds / read))} s" if read else ""
        bar.update(task, completed=done, total=total, description=f"reading {total:,} tokens", left=left)
        if seconds >= SHOWN_AFTER and bar.console.is_interactive:
            bar.start()

    try:
        yield heard
    finally:
        end()


@contextmanager
def count_bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for (what is being done, runs done, runs in all)."""
    with _bar("Measuring", None, "MofNCompleteColumn", "TimeRemainingColumn") as update:
        yield update and (lambda what, done, total: update(description=what, completed=done, total=total))


def report(as_json: bool, data: Any, *lines: str, ensure_ascii: bool = True) -> None:
    """What a command found: as JSON, or in lines for people, which `print_plain` prints."""
    if as_json:
        print(json.dumps(data, ensure_ascii=ensure_ascii))
    else:
        print_plain(*lines)


def print_plain(*lines: str) -> None:
    """Prints lines that quote files or a hub, which so can neither move the cursor nor reorder what is read."""
    print(plain_text("\n".join(lines)))


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines of a table whose columns are as wide as their widest cell; the last one may be of any width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    return ["  ".join([*(f"{cell:{size}}" for cell, size in zip(row, widths, strict=False)), row[-1]]) for row in rows]


def print_table(table: ReportTable) -> None:
    """On a terminal with lines and as wide as it is, else as text."""
    if not sys.stdout.isatty():
        print("\n".join(table.lines()))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)


def stream_answer(generation: Generation, parts: list[str] | None = None, channels: bool = False) -> None:
    """Writes an answer as it comes, and a newline after it; collects the text, as the model says it, in `parts`.

    With `channels` it has gpt-oss's headers, in whose place the marks of other models' thoughts are written. Ctrl-C
    cancels the answer, keeps what has come, and raises KeyboardInterrupt.
    """
    from localspec.chat.reply.harmony import Retelling

    parts, retelling = [] if parts is None else parts, Retelling(channels)
    with answer_lines() as write:
        try:
            for event in generation:
                parts.append(event.text)
                write(retelling.push(event.text))
        except BaseException as error:
            generation.cancel()
            if isinstance(error, KeyboardInterrupt):
                parts.append(generation.text())  # at most one more pass
                write(retelling.push(parts[-1]))
            raise
        finally:
            write(retelling.finish())


@contextmanager
def answer_lines() -> Iterator[Callable[[str], None]]:
    """Writes an answer's text as it is told, and ends its last line."""
    last = ""
    shown = PlainText().push if sys.stdout.isatty() else str  # a terminal obeys what a model says; a file keeps it

    def write(text: str) -> None:
        nonlocal last
        if text:
            sys.stdout.write(shown(text))
            sys.stdout.flush()
            last = text

    try:
        yield write
    finally:
        if not last.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()


def print_stats(stats: RequestStats, seed: int | None, configuration: str) -> None:
    """Figures of one answer, what the plan says of it, and the configuration of passes, on standard error."""
    depth = " ".join(str(count) for count in stats.accepted_per_position) or "-"
    by_drafter = ", ".join(
        f"{name} {stats.accepted_by_drafter[name]}/{drafted}" for name, drafted in stats.drafted_by_drafter.items()
    )
    lines = [
        f"{stats.generated} tokens in {stats.passes} passes, {stats.tokens_per_second:.1f} tokens/s "
        f"({stats.tokens_per_pass:.2f} tokens a pass)",
        f"prompt {stats.prompt_tokens} tokens ({stats.reused_tokens} reused), TTFT {stats.ttft_seconds * 1e3:.1f} ms, "
        f"ITL p50 {stats.itl_p50_seconds * 1e3:.1f} ms, p99 {stats.itl_p99_seconds * 1e3:.1f} ms",
        f"drafted {stats.drafted}, accepted {stats.accepted} (acceptance rate {stats.acceptance_rate:.2f}, "
        f"mean accepted length {stats.mean_accepted_length:.2f} with the next token)",
        f"accepted per position {depth}; by drafter {by_drafter or '-'}",
        f"time: draft {stats.draft_seconds:.3f} s, verify {stats.verify_seconds:.3f} s, "
        f"host {stats.host_seconds:.3f} s, prefill {stats.prefill_seconds:.3f} s",
    ]
    if not stats.drafted:
        lines.append("plain decoding: nothing was drafted")
    elif stats.plain_seconds:
        lines.append(
            f"about {stats.estimated_speedup:.2f}x plain decoding, which would take some {stats.plain_seconds:.3f} s"
        )
    if stats.undrafted:
        reasons = ", ".join(f"{passes} {words}" for words, passes in stats.undrafted_reasons)
        lines.append(f"no draft in {stats.undrafted.total()} of {stats.passes} passes: {reasons}")
    if stats.guarded_passes:
        lines.append(f"{stats.guarded_passes} of {stats.passes} passes drafted because settings say so; none would pay")
    lines.append(f"seed {seed}, exact: {'yes' if stats.exact else 'no'} ({configuration})")
    print("\n".join(lines), file=sys.stderr)


def collect(generation: Generation, configuration: str) -> dict[str, Any]:
    """Waits for the end; everything about the answer as plain data. `configuration`: of the target's passes."""
    text, log_probs = "", []
    for event in generation:
        text += event.text
        log_probs += [
            {"token": found.token, "log_prob": found.log_prob, "top": [list(pair) for pair in found.top]}
            for found in event.log_probs
        ]
    answer: dict[str, Any] = {
        "text": text,
        "finish_reason": generation.finish.value if generation.finish else None,
        "seed": generation.request.seed,
        "tokens": generation.tokens,
        "stats": generation.stats.as_dict(),
        "configuration": configuration,
    }
    if generation.request.top_log_probs is not None:
        answer["log_probs"] = log_probs
    return answer


def not_used(method: str) -> str:
    """What localspec does not do with a draft of this method (`heads.DraftKind.method`); "" = it uses it in full."""
    if method in NAMES:
        return ""
    return "localspec cannot draft with such a file yet: it is kept and not used, prompt lookup drafts alone"


_SECONDS_PER_LINE = 10.0


@contextmanager
def transfer_progress(total: int) -> Iterator[Report]:
    """On a terminal bars for each file and all, of `total` bytes still to come; elsewhere lines now and then."""
    with bars("DownloadColumn", "TransferSpeedColumn", "TimeRemainingColumn") or nullcontext() as shown:
        yield _line_report() if shown is None else _bar_report(shown, total)


def _bar_report(bars: Progress, total: int) -> Report:
    lock, tasks = threading.Lock(), dict[str, Any]()
    started, loaded = dict[str, int](), dict[str, int]()
    in_all = bars.add_task("in all", total=total) if total else None

    def report(file: str, done: int, size: int, what: str) -> None:
        with lock:
            if file not in tasks:
                tasks[file] = bars.add_task("", total=size)
            short = plain_text(file.rsplit("/", 1)[-1])[-44:]
            shown = short if what == "loading" else f"{what} {short}"
            if what == "waiting":
                bars.update(tasks[file], description=shown)
                return
            bars.update(tasks[file], completed=done, description=shown)
            if what == "loading" and in_all is not None:
                started.setdefault(file, done)
                loaded[file] = max(done, loaded.get(file, 0))  # a total that never goes back
                bars.update(in_all, completed=sum(loaded[name] - started[name] for name in loaded))

    return report


def _line_report() -> Report:
    lock, last, finished = threading.Lock(), dict[tuple[str, str], float](), set[tuple[str, str]]()

    def report(file: str, done: int, size: int, what: str) -> None:
        with lock:
            key, now = (file, what), time.monotonic()
            if key in finished or (what == "waiting" and key in last):
                return
            if done == size:
                finished.add(key)
            elif now - last.setdefault(key, now) < _SECONDS_PER_LINE and what != "waiting":
                return
            last[key] = now
            share = f"{done / 1e6:.1f} of {size / 1e6:.1f} MB"
            words = {"loading": f"loaded {share}", "checking": f"checked {share}"}
            text = words.get(what, "waiting for another program that loads it")
            print(f"{plain_text(file)}: {text}", file=sys.stderr, flush=True)

    return report
