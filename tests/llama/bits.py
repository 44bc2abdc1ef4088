"""Compares real passes bit by bit, and as a program does so for tiny models of all architectures: two formats each.

    python -m tests.llama.bits [--only TEXT] [--out FILE]

The program prints what is said of each file (`by_construction`) beside what was found. Every file has a process of its
own, so that one which ends in llama.cpp costs one row. It ends with 1 if something called exact is not.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.exact.choice import by_construction
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Float32Array, Tokens
from tests.llama import architectures
from tests.llama.conftest import chain, same_bits
from tests.llama.recipes import NOT_MADE, RECIPES
from tests.quantised import quantize

LENGTHS, WIDTHS = (60, 300, 1500), (2, 3, 4, 8, 16, 33)
"""Tokens of context, and rows of the passes after them."""
CACHED, GRIDS = (60, 300, 700), (64, 17)
"""Tokens of a prompt, and the chunks in which it is read, besides those of `ContextSettings.grid`."""
WIDEST = 34
FORMATS, THREADS = ("F16", "Q4_K_M"), 2
"""Of the program."""
LIMIT = 240.0
"""Seconds for one file."""
_ROOT = Path(__file__).parents[2]


def settings(model: Model, threads: int, grid: int = 512) -> ContextSettings:
    """With drafts of up to `WIDEST` tokens, where the model takes drafts."""
    rollback = 0 if model.can_trim else WIDEST
    return ContextSettings(n_ctx=1700, threads=threads, max_rows=64, grid=grid, rollback=rollback)


def other_widths(context: Context) -> list[tuple[int, int]]:
    """(length, width) of the passes in which a row has other bits than in a pass of its own.

    A model that takes no drafts has no such passes.
    """
    tokens, found = _ordinary(context), []
    widths = [width for width in WIDTHS if width - 1 <= context.most_nodes]
    for length in LENGTHS if widths else ():
        context.forget(0)
        context.prefill(0, tokens[:length], length)
        prompt = bytes(context.save(0))
        alone = [_row_after(context, tokens[: length + i], length) for i in range(max(widths))]
        for width in widths:
            if not context.can_trim:  # or the prompt would be read again
                assert context.restore(0, prompt, tokens[: length - 1], length)
            draft = tokens[length : length + width - 1]
            (rows,) = context.decode([Feed(0, tokens[:length], length, draft, chain(width - 1))])
            if not all(same_bits(rows[i], alone[i]) for i in range(width)):
                found.append((length, width))
    return found


def other_caches(model: Model, threads: int) -> list[tuple[int, int]]:
    """(length, chunk) of the prompts that leave another cache or logits than in the widest passes; 1 = decoded."""
    expected, found = _after_prompts(model, settings(model, threads), one_by_one=False), []
    for chunk in (*GRIDS, 1):
        one_by_one = chunk == 1
        options = settings(model, threads, 512 if one_by_one else chunk)
        got = _after_prompts(model, options, one_by_one)
        found += [(length, chunk) for length in CACHED if got[length] != expected[length]]
    return found


def other_threads(model: Model, counts: Sequence[int]) -> list[tuple[int, int]]:
    """(length, threads) of the prompts that leave another cache or logits than with one thread, read or decoded."""
    found = []
    for one_by_one in (False, True):
        expected = _after_prompts(model, settings(model, 1), one_by_one)
        for count in counts:
            got = _after_prompts(model, settings(model, count), one_by_one)
            found += [(length, count) for length in CACHED if got[length] != expected[length]]
    return found


def _ordinary(context: Context) -> Tokens:
    """int32[1700] tokens, the same for every model of this vocabulary."""
    return np.random.default_rng(1).integers(64, context.n_vocab - 64, 1700).astype(np.int32)


def _after_prompts(model: Model, options: ContextSettings, one_by_one: bool) -> dict[int, tuple[bytes, bytes]]:
    """By length: the logits behind a prompt, and the cache."""
    found: dict[int, tuple[bytes, bytes]] = {}
    with closing(Context(model, options)) as context:
        tokens, done = _ordinary(context), 0
        for length in CACHED:
            if one_by_one:
                for count in range(done + 1, length):
                    context.decode([Feed(0, tokens[:count], 1)])
            else:
                context.forget(0)
            row = _row_after(context, tokens[:length], 1 if one_by_one else length)
            found[length], done = (row.tobytes(), bytes(context.save(0))), length
    return found


def _row_after(context: Context, tokens: Tokens, prompt_length: int) -> Float32Array:
    """The logits after these tokens, from a pass of one row behind the cached ones."""
    row = np.array(context.decode([Feed(0, tokens, prompt_length)])[0][0])
    assert np.isfinite(row).all(), "logits that are no numbers would all look equal"
    return row


# -- the program --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What was said of a file, and what was found."""

    name: str
    kind: str
    widths_said: bool = False
    widths_found: bool | None = None
    """None = it takes no drafts, or was not tried."""
    prefill_said: bool = False
    prefill_found: bool | None = None
    reason: str = ""
    """Why not, as `Exactness` says it."""
    other: Sequence[Sequence[int]] = ()
    """(length, width) of passes with other bits."""
    other_prompts: Sequence[Sequence[int]] = ()
    """(length, chunk) of prompts with another cache or logits."""
    seconds: float = 0.0
    error: str = ""
    """Why the file was not tried to the end."""

    @property
    def wrong(self) -> bool:
        """Whether it was called exact and is not."""
        return (self.widths_said and self.widths_found is False) or (self.prefill_said and self.prefill_found is False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the list; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.llama.bits")
    parser.add_argument("--only", default="", metavar="TEXT", help="recipes with this text in their names")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON, too")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "FORMAT"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        name, kind = options.one
        print(json.dumps(asdict(_tried(name, kind, options.folder))))
        return 0
    print(_LINE.format("name", "format", "widths", "", "prefill", "", "s", "why not"))
    print(_LINE.format("", "", "said", "found", "said", "found", "", ""))
    rows = []
    for name in [name for name in RECIPES if options.only in name]:
        with tempfile.TemporaryDirectory() as folder:
            for kind in FORMATS:
                rows.append(run(name, kind, Path(folder)))
                print(_in_words(rows[-1]), flush=True)
    print(_summary(rows))
    if options.out:
        options.out.write_text(_as_json(rows))
    return int(any(row.wrong or row.error for row in rows))


def run(name: str, kind: str, folder: Path) -> Row:
    """Tries one file in a process of its own.

    Args:
        name: of a recipe.
        kind: its number format; a second one is made of the F16 file in the folder.
        folder: where files are written.
    """
    command = [sys.executable, "-m", "tests.llama.bits", "--one", name, kind, "--folder", str(folder)]
    environment = {**os.environ, wide.TILES_VARIABLE: "0"}
    began = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Row(name, kind, error=f"took more than {LIMIT:.0f} s", seconds=LIMIT)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        took = round(time.perf_counter() - began, 1)
        return Row(name, kind, error=f"ended with {done.returncode}: {last}", seconds=took)
    return Row(**json.loads(done.stdout.splitlines()[-1]))


def _tried(name: str, kind: str, folder: Path) -> Row:
    """What is said and found of one file, which this writes."""
    began, path = time.perf_counter(), folder / f"{name}.gguf"
    if not path.exists():
        architectures.write(name, folder)
    if kind != "F16":
        path = quantize(path, folder / f"{name}-{kind}.gguf", kind, threads=1)
    with Model.load(path, kernels="wide") as model:
        with closing(Context(model, settings(model, THREADS))) as context:
            said, drafts = by_construction(context, WIDEST), context.most_nodes > 0
            other = other_widths(context)
        other_prompts = other_caches(model, THREADS)
    return Row(
        name,
        kind,
        widths_said=said.widths,
        widths_found=not other if drafts else None,
        prefill_said=said.prefill,
        prefill_found=not other_prompts,
        reason=said.reason,
        other=other,
        other_prompts=other_prompts,
        seconds=round(time.perf_counter() - began, 1),
    )


_LINE = "{:16} {:7} {:4} {:5} {:>7} {:5} {:>5}  {}"


def _in_words(row: Row) -> str:
    words = {True: "yes", False: "NO", None: "-"}
    said = [words[found] for found in (row.widths_said, row.widths_found, row.prefill_said, row.prefill_found)]
    why = row.error or row.reason
    return _LINE.format(row.name, row.kind, *said, f"{row.seconds:.1f}", f"WRONG: {why}" if row.wrong else why)


def _as_json(rows: Sequence[Row]) -> str:
    """With one row a line."""
    head = {
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "isa": wide.status().isa,
        "threads": THREADS,
        "lengths": LENGTHS,
        "widths": WIDTHS,
        "prompts": CACHED,
        "chunks": (512, *GRIDS, 1),
        "not_made": NOT_MADE,
    }
    lines = ",\n  ".join(json.dumps(asdict(row)) for row in rows)
    return f'{json.dumps(head)[:-1]},\n "rows": [\n  {lines}\n ]}}\n'


def _summary(rows: Sequence[Row]) -> str:
    tried = [row for row in rows if not row.error]
    drafting = [row for row in tried if row.widths_found is not None]
    lines = [
        f"{len(rows)} files of {len({row.name for row in rows})} recipes, {len(rows) - len(tried)} ended too early.",
        f"Widths: {sum(row.widths_said for row in tried)} called exact; of {len(drafting)} that take drafts "
        f"{sum(bool(row.widths_found) for row in drafting)} are.",
        f"Prompts: {sum(row.prefill_said for row in tried)} called exact, "
        f"{sum(bool(row.prefill_found) for row in tried)} are.",
        f"Called exact and not exact: {', '.join(f'{row.name} {row.kind}' for row in rows if row.wrong) or 'none'}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
