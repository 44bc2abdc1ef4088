"""The report's tables and verdicts, from the runs of each stage. Every ratio is of times a token on the same prompts in
the same rounds, with its 95 % interval; what an interval was taken over is said below each table.

The best llama-server setting of a cell is chosen on the other rounds than those it is scored on (with a single round on
that one, which favours llama-server). The same goes for llama.cpp's own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from peer_server import NAMES, NGRAMS
from report_stages import BARE, BARE_UNFUSED, BY_NAME, OFF, OFF_PLAIN, USELESS, Stage, alone

from localspec.bench.cells import Cell, make_cells
from localspec.bench.results import INTERVAL
from localspec.bench.run import BASELINE, PRODUCT, Run
from localspec.bench.table import Table
from localspec.checks.interval import Ratio, ratio

DRAFT_SIMPLE = ("server draft 3", "server draft 8")
NO_RATIO = "-"


@dataclass(frozen=True)
class Against:
    """A ratio to the best of several contenders."""

    found: Ratio
    names: tuple[str, ...]
    """Those that were best in the choosing rounds."""


def latest(runs: Iterable[Run]) -> list[Run]:
    """Of each contender the runs with the settings it ran with last: an older build's do not count."""
    runs = list(runs)
    last = {run.key.contender: run.key.settings for run in runs}
    return [run for run in runs if run.key.settings == last[run.key.contender]]


def against_best(cell: Cell, name: str, rivals: Sequence[str]) -> Against | None:
    """How much faster `name` is than the best of `rivals`, chosen on other rounds."""
    ours = cell.contenders[name].by_prompt() if name in cell.contenders else {}
    theirs = {rival: cell.contenders[rival].by_prompt() for rival in rivals if rival in cell.contenders}
    rounds = sorted({turn for found in ours.values() for turn in found})
    best: dict[int, str] = {}
    for turn in rounds:
        others = [one for one in rounds if one != turn] or [turn]
        paces = {rival: pace for rival, found in theirs.items() if (pace := _pace(found, others)) is not None}
        if paces:
            best[turn] = min(paces, key=lambda rival: paces[rival])
    pairs = []
    for prompt, found in ours.items():
        both = [
            (theirs[best[turn]][prompt][turn], run)
            for turn, run in found.items()
            if turn in best and turn in theirs[best[turn]].get(prompt, {})
        ]
        tokens = sum(run.tokens for _, run in both) / max(1, len(both))
        pairs.append([(tokens * _run_pace(slow), tokens * _run_pace(fast)) for slow, fast in both])
    value = ratio(pairs)
    return None if value is None else Against(value, tuple(dict.fromkeys(best.values())))


def _pace(found: dict[int, dict[int, Run]], rounds: Sequence[int]) -> float | None:
    """Seconds a token over all prompts in these rounds."""
    runs = [several[turn] for several in found.values() for turn in rounds if turn in several]
    tokens = sum(run.tokens for run in runs)
    return sum(run.decode_seconds for run in runs) / tokens if tokens else None


def _run_pace(run: Run) -> float:
    return run.decode_seconds / max(1, run.tokens)


def stage_table(stage: Stage, title: str, runs: Iterable[Run]) -> list[str]:
    """The stage's table and what its intervals are; no lines without runs."""
    cells = make_cells(latest(runs))
    columns = _columns(stage)
    rows = [tuple(show(cell) for _, show in columns) for cell in cells]
    if not rows:
        return []
    lines = list(Table(title, tuple(name for name, _ in columns), tuple(rows)).lines())
    kinds = {found.over for cell in cells if (found := cell.speedup(PRODUCT) or cell.speedup(OFF)) is not None}
    return [*lines, *(f"±: {INTERVAL[kind]}" for kind in sorted(kinds))]


Column = tuple[str, Callable[[Cell], str]]


def _columns(stage: Stage) -> list[Column]:
    columns: list[Column] = [
        ("workload", lambda cell: cell.workload),
        ("temp.", lambda cell: f"{cell.temperature:g}"),
        ("runs", lambda cell: _runs(cell)),
    ]
    ours = [OFF_PLAIN, OFF] if stage.wide_off else []
    ours += [USELESS] if stage.useless else []
    columns += [
        _speed(name) for name in (*stage.bare, *stage.servers, BASELINE, PRODUCT, *map(alone, stage.alone), *ours)
    ]
    subject = OFF if stage.wide_off else USELESS if stage.useless else PRODUCT
    columns.append(("accepted", lambda cell: _accepted(cell, subject)))
    if stage.bare:
        columns.append((f"/{BARE}", lambda cell: _words(against_best(cell, subject, stage.bare))))
    if stage.servers:
        columns.append(("/best server", lambda cell: _words(against_best(cell, subject, stage.servers))))
        columns.append(("best", lambda cell: _names(against_best(cell, subject, stage.servers))))
        drafts = [name for name in stage.servers if name in DRAFT_SIMPLE]
        columns.append(("/draft-simple", lambda cell: _words(against_best(cell, subject, drafts))))
    if stage.alone:
        names = [alone(name) for name in stage.alone]
        columns.append(("/best alone", lambda cell: _words(against_best(cell, subject, names))))
        columns.append(("best", lambda cell: _names(against_best(cell, subject, names))))
    if stage.lengths:
        columns.append(("best fixed", lambda cell: cell.best_fixed or NO_RATIO))
        columns.append(("of best fixed", lambda cell: _ratio(cell.speedup(PRODUCT, cell.best_fixed or BASELINE))))
        columns.append(("limit", lambda cell: f"{cell.limit.speedup:.2f}" if cell.limit else NO_RATIO))
    plain = OFF_PLAIN if stage.wide_off else BASELINE
    columns.append(("/plain", lambda cell: _ratio(cell.speedup(subject, plain))))
    columns.append(("forks", lambda cell: _forks(cell, subject, plain)))
    return columns


def _speed(name: str) -> Column:
    short = name.removeprefix("server ")
    title = f"{short} tok/s" if short == name else f"server {short}"
    return title, lambda cell: f"{cell.contenders[name].tokens_per_second:.1f}" if name in cell.contenders else NO_RATIO


def _runs(cell: Cell) -> str:
    prompts = cell.plain.by_prompt()
    return f"{len(prompts)}x{max((len(rounds) for rounds in prompts.values()), default=0)}"


def _accepted(cell: Cell, name: str) -> str:
    return f"{cell.contenders[name].acceptance_rate:.2f}" if name in cell.contenders else NO_RATIO


def _ratio(found: Ratio | None) -> str:
    if found is None:
        return NO_RATIO
    return f"{found.value:.3f}±{found.half_width * found.value:.3f}" if found.over else f"{found.value:.3f}"


def _words(found: Against | None) -> str:
    return NO_RATIO if found is None else _ratio(found.found)


def _names(found: Against | None) -> str:
    return NO_RATIO if found is None else " or ".join(name.removeprefix("server ") for name in found.names)


def _forks(cell: Cell, name: str, plain: str) -> str:
    differing, compared = forks(cell, name, plain)
    return f"{differing}/{compared}"


def forks(cell: Cell, name: str, plain: str = BASELINE) -> tuple[int, int]:
    """(conversations whose text is not that of `plain`, conversations compared)."""
    if plain not in cell.contenders or name not in cell.contenders:
        return 0, 0
    texts = {prompt: next(iter(rounds.values())).texts for prompt, rounds in cell.contenders[plain].by_prompt().items()}
    compared = [run for run in cell.contenders[name].runs if run.key.prompt in texts]
    return sum(run.texts != texts[run.key.prompt] for run in compared), len(compared)


# -- what it must show ------------------------------------------------------------------------------------------------


def verdicts(by_stage: dict[tuple[str, str], list[Run]]) -> list[str]:
    """Each aim, what was found, and whether it is met, over all pairs; {(quantisation, stage): runs}."""
    cells = {key: make_cells(latest(runs)) for key, runs in by_stage.items()}

    def named(*stages: str) -> list[tuple[str, Cell]]:
        return [
            (f"{quant} {stage}", cell) for (quant, stage), found in cells.items() for cell in found if stage in stages
        ]

    main = named("main", "long")
    useless = [(where, cell, against_best(cell, USELESS, (BARE,))) for where, cell in named("useless")]
    bare = [(where, cell, against_best(cell, PRODUCT, (BARE, BARE_UNFUSED))) for where, cell in main]
    best = [(where, cell, against_best(cell, PRODUCT, NAMES)) for where, cell in main]
    simple = [(w, c, against_best(c, PRODUCT, DRAFT_SIMPLE)) for w, c in main if c.temperature == 1.0]
    twice = [(where, cell, against_best(cell, PRODUCT, NGRAMS)) for where, cell in named("corpus")]
    names = [alone(name) for name in BY_NAME["drafters"].alone]
    single = [(where, cell, against_best(cell, PRODUCT, names)) for where, cell in named("drafters")]
    return [
        *_least("localspec without flags over bare llama.cpp, every cell at least 0.98", bare, 0.98),
        *_widths(bare),
        *_least("with a useless draft model, at least 0.98 of bare llama.cpp", useless, 0.98),
        *_median("over the best llama-server setting, median at least 1.25", [one for _, _, one in best], 1.25),
        *_least("over the best llama-server setting, no cell below 0.97", best, 0.97),
        *_least("over llama-server's draft-simple at temperature 1.0, at least 1.5", simple, 1.5),
        *_least("what was asked before: over the best of llama-server's n-gram modes, at least 1.5", twice, 1.5),
        *_least("of the best drafter alone, every workload at least 0.97", single, 0.97),
        *_over_plain(main),
        *_hindsight(named("hindsight")),
        *_forks_in_all(named("main", "long", "hindsight", "useless")),
    ]


Found = Sequence[tuple[str, Cell, Against | None]]


def _least(aim: str, found: Found, least: float) -> list[str]:
    known = [(one.found.value, where, cell) for where, cell, one in found if one is not None]
    if not known:
        return [f"not measured: {aim}"]
    value, where, cell = min(known, key=lambda one: one[0])
    missed = sum(one[0] < least for one in known)
    met = "met" if not missed else f"MISSED in {missed} of {len(known)} cells"
    return [f"{met}: {aim}; lowest {value:.3f} ({where}, {cell.workload}, {cell.temperature:g}), {len(known)} cells"]


def _median(aim: str, found: Sequence[Against | None], least: float) -> list[str]:
    values = [one.found.value for one in found if one is not None]
    if not values:
        return [f"not measured: {aim}"]
    return [f"{'met' if median(values) >= least else 'MISSED'}: {aim}; {median(values):.3f} over {len(values)} cells"]


def _widths(found: Found) -> list[str]:
    widths = [one.found.half_width for _, _, one in found if one is not None and one.found.over]
    if not widths:
        return ["not measured: half-widths of those intervals (they need a second round or prompt)"]
    met = "met" if max(widths) <= 0.01 else f"MISSED in {sum(width > 0.01 for width in widths)} of {len(widths)} cells"
    return [f"{met}: intervals of at most 1 % half-width; median {median(widths):.1%}, widest {max(widths):.1%}"]


def _over_plain(cells: Sequence[tuple[str, Cell]]) -> list[str]:
    aim = "over plain decoding, median at least 2 in cells whose acceptance is 0.8 or more"
    high = [cell for _, cell in cells if cell.product.acceptance_rate >= 0.8]
    values = [found.value for cell in high if (found := cell.speedup(PRODUCT)) is not None]
    if not values:
        return [f"not measured: {aim} (no such cell)"]
    return [f"{'met' if median(values) >= 2.0 else 'MISSED'}: {aim}; {median(values):.2f} over {len(values)} cells"]


def _hindsight(cells: Sequence[tuple[str, Cell]]) -> list[str]:
    found = []
    for where, cell in cells:
        share = None if cell.best_fixed is None else cell.speedup(PRODUCT, cell.best_fixed)
        found.append((where, cell, None if share is None else Against(share, (cell.best_fixed or "",))))
    return _least("of the best fixed choice in hindsight, at least 0.97", found, 0.97)


def _forks_in_all(cells: Sequence[tuple[str, Cell]]) -> list[str]:
    counts = [forks(cell, name) for _, cell in cells for name in (PRODUCT, USELESS)]
    differing, compared = sum(one for one, _ in counts), sum(one for _, one in counts)
    if not compared:
        return ["not measured: texts byte-equal to plain decoding's"]
    met = "met" if not differing else "MISSED"
    return [f"{met}: texts byte-equal to plain decoding's; {differing} of {compared} conversations differ"]
