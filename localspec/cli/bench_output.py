"""What the commands that measure share: lists in options, tables, progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.bench.report import Table


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers between commas, each once, in the order given."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(
            f"--{name} is {text!r}; it must be whole numbers with commas between, such as 1,2,4."
        ) from None


def numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers between commas, each once, in the order given."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--{name} is {text!r}; it must be numbers with commas between, such as 0,0.7,1.") from None


def words(text: str) -> tuple[str, ...]:
    """Words between commas, each once, in the order given."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def print_table(table: Table) -> None:
    """On a terminal with lines and as wide as it is, else as text."""
    if not sys.stdout.isatty():
        print("\n".join(table.lines()))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    for column in table.columns:
        shown.add_column(column, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    Console().print(shown)


@contextmanager
def count_bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar for (what is being done, runs done, runs in all); nothing when standard error is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("Measuring", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
