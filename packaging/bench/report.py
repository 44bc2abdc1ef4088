"""The tables of REPORT.md: localspec beside llama.cpp and llama-server, on padded pairs of 1 B and 0.1 B.

    python packaging/bench/report.py FOLDER --llama-server PATH [--minutes 40] [--stages main,long] [--cells copy,json]

FOLDER keeps the pairs, every finished run and the servers' output: stopped or killed, it goes on where it was; run
again, it adds what is missing, then further rounds. All contenders of a table answer the same prompts, taking turns.
Each is a process of its own and all stay loaded, asleep but the one that is asked (what the sleepers use is measured
and printed); some 6 GB of memory. Order: the main table and long prompts of each pair, then the rest, so that
half a run is already a table. --print only prints what there is. packaging/peer/README.md builds llama-server. Numbers
of padded pairs say what a real pair of that cost would gain with the bundled pair's acceptance.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer_server import cpu_seconds
from random_model import SHAPES, write
from report_stages import BY_NAME, STAGES, Files, Stage, Visit, benchmarks, visit
from report_tables import stage_table, verdicts

from localspec.bench.contenders import labels
from localspec.bench.pairs import QUANTS, Wanted, make
from localspec.bench.run import Run
from localspec.bench.session import Session
from localspec.errors import LocalspecError
from localspec.llama import lib
from localspec.llama.probe import cpu_name

GROUPS = (("main", "long"), ("useless", "hindsight"), ("corpus", "drafters"), ("wide-off",))
"""Stages of one visit to a pair; every pair is visited before the next group begins."""
IDLE_SECONDS = 3.0
PREFACE = """\
# localspec beside llama.cpp and llama-server

Printed by `packaging/peer/build` and `python packaging/bench/report.py FOLDER --llama-server PATH{more}`, which goes
on where it was stopped and with `--print --markdown` prints this page. Models are the bundled pair padded to the cost
of larger ones (`localspec bench make-pair`): text and acceptance are the small pair's, times the large shape's.

Everyone answers the same prompts, taking turns, in a process of their own; those whose turn it is not sleep.
`llama.cpp` is a bare loop over its functions with its defaults (`unfused`: without flash attention), `server`
llama-server of the same llama.cpp with the named drafters (draft 3: draft-simple with its default of 3 tokens; both:
ngram-simple, then draft 3), `plain` localspec's own plain decoding, `localspec` what runs without any flag. `tok/s`
is tokens over decode time; ratios (`/llama.cpp`, ...) are of times a token on the same prompts in the same rounds,
with the half-width of a 95 % interval. The best server of a cell was chosen on other rounds than those it is scored
on. llama-server's pace counts from its first token on, so what its draft model reads is not in it; localspec's counts
what its own reads. `forks`: conversations whose text is not plain decoding's. Of code-twice, rewrite and again the
answer to a second conversation is timed: localspec kept the first one's in a corpus that was empty before,
llama-server whatever it keeps. `limit`: speedup of a clairvoyant's
drafts at the costs measured here.
"""


class TimeUp(Exception):
    """The minutes are used up."""


class Report:
    """One invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.folder
        self.quants: list[str] = options.quants.split(",")
        self.stages = [BY_NAME[name] for name in options.stages.split(",")]
        self.temperatures = [float(text) for text in options.temperatures.split(",")]
        self.cells: list[str] = options.cells.split(",") if options.cells else []
        self.end = time.monotonic() + 60.0 * options.minutes

    def prepare(self) -> None:
        """Makes the models, so that measuring need not."""
        for quant in self.quants:
            self._files(quant)

    def measure(self) -> None:
        """Everything once with --rounds rounds, then further rounds while there is time."""
        rounds = self.options.rounds
        while True:
            for group in GROUPS:
                for quant in self.quants:
                    left = [stage for stage in self.stages if stage.name in group and self._left(quant, stage, rounds)]
                    if left:
                        self._check_time()
                        self._visit(quant, left, rounds)
            rounds += self.options.rounds

    def print(self) -> None:
        """Tables of what there is, and what it says to the aims; with --markdown as REPORT.md holds them."""
        markdown: bool = self.options.markdown
        fence = ["```"] if markdown else []
        if markdown:
            print(PREFACE.format(more=self._more()))
        found: dict[tuple[str, str], list[Run]] = {}
        for stage in self.stages:
            for quant in self.quants:
                path = self._session_path(quant, stage)
                if not path.exists():
                    continue
                with Session.open(path) as session:
                    found[quant, stage.name] = list(session.runs.values())
                    facts = session.notes.get("facts", [{}])[-1]
                lines = stage_table(stage, f"{quant}, {stage.about}", found[quant, stage.name])
                if lines:
                    title, table = ([f"## {lines[0]}", ""], lines[1:]) if markdown else ([], lines)
                    about = [f"{name}: {value}" for name, value in facts.items()]
                    print("\n".join([*title, *fence, *table, *about, *fence, ""]))
        print("## What it must show\n" if markdown else "What it must show")
        lines = verdicts(found)
        if len(self.stages) < len(STAGES):  # of others nothing can be said
            lines = [line for line in lines if not line.startswith("not measured")]
        print("\n".join(f"- {line}" if markdown else line for line in lines))

    # -- one pair -------------------------------------------------------------------------------------------------

    def _visit(self, quant: str, stages: Sequence[Stage], rounds: int) -> None:
        with visit(self._files(quant), _say) as visiting:
            for stage in stages:
                self._check_time()
                self._stage(visiting, quant, stage, rounds)

    def _stage(self, visiting: Visit, quant: str, stage: Stage, rounds: int) -> None:
        options = self.options
        parts = benchmarks(stage, visiting, self.temperatures, options.tokens, rounds, options.prompts, self.cells)
        with Session.open(self._session_path(quant, stage)) as session:
            session.note("facts", self._facts(visiting))
            for part in parts:
                part.measure(
                    session, lambda what, done, total: self._progress(f"{quant} {stage.name}: {what}", done, total)
                )
            session.note("whole", self._whole(rounds))
        visiting.keep_servers()

    def _facts(self, visiting: Visit) -> dict[str, str]:
        loaded = visiting.engine.loaded
        before = {name: cpu_seconds(pid) for name, pid in visiting.processes.items()}
        time.sleep(IDLE_SECONDS)
        used = {name: cpu_seconds(pid) - before[name] for name, pid in visiting.processes.items()}
        awake = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in used.items() if seconds > 0)
        server = self.options.llama_server
        return {
            "models": " ".join([*labels(visiting.engine), *visiting.files.perplexities]),
            "machine": f"{cpu_name()}, {loaded.context.threads} threads",
            "passes of localspec": loaded.exactness,
            "llama.cpp": lib.info().version,
            "llama-server": "none" if server is None else _version(server),
            f"CPU time of {len(used)} sleeping programs in {IDLE_SECONDS:g} s": awake or "none",
        }

    def _files(self, quant: str) -> Files:
        """The pair, made and checked if it is not there yet; and a draft model of random weights."""
        words, found = [], []
        target, draft = self.options.shapes.split(",")
        for wanted in (Wanted("target", target, quant), Wanted("draft", draft, self.options.draft_quant or quant)):
            _say(f"{wanted.name}: making it, unless it is there")
            made = make(wanted, self.folder / "pairs")
            found.append(made.path)
            large, small = made.check.perplexity, made.check.small_perplexity
            words.append(f"Perplexity of the {wanted.kind} {large.value:.2f}, of the small one {small.value:.2f}.")
        useless = self.folder / "pairs" / f"random-draft-{draft}.gguf"
        if not useless.exists():
            _say("writing a draft model of random weights")
            write(useless, "Q8_0", SHAPES[draft])
        logs = self.folder / "logs" / quant
        logs.mkdir(parents=True, exist_ok=True)
        return Files(quant, found[0], found[1], useless, self.options.llama_server, logs, words)

    # -- bookkeeping ----------------------------------------------------------------------------------------------

    def _session_path(self, quant: str, stage: Stage) -> Path:
        shapes = self.options.shapes.replace(",", "-")
        return self.folder / "runs" / f"{shapes}-{quant}-{stage.name}-{self.options.tokens}.jsonl"

    def _whole(self, rounds: int) -> dict[str, object]:
        return {
            "rounds": rounds,
            "temperatures": self.temperatures,
            "cells": self.cells,
            "prompts": self.options.prompts,
        }

    def _more(self) -> str:
        """Options of the command line that change what is measured, but for paths."""
        names = ("stages", "quants", "draft_quant", "shapes", "temperatures", "tokens", "cells", "prompts")
        given = [(name, getattr(self.options, name)) for name in names]
        parser = _parser()
        words = [f" --{name.replace('_', '-')} {value}" for name, value in given if value != parser.get_default(name)]
        return "".join(words)

    def _left(self, quant: str, stage: Stage, rounds: int) -> bool:
        path = self._session_path(quant, stage)
        if not path.exists():
            return True
        with Session.open(path) as session:
            return self._whole(rounds) not in session.notes.get("whole", [])

    def _check_time(self) -> None:
        if time.monotonic() > self.end:
            raise TimeUp

    def _progress(self, what: str, done: int, total: int) -> None:
        self._check_time()
        left = max(0.0, self.end - time.monotonic()) / 60.0
        _say(f"{done}/{total} {what} ({left:.0f} minutes left)", end="\r" if sys.stderr.isatty() else "\n")


def _say(what: str, end: str = "\n") -> None:
    print(f"{what:100}" if end == "\r" else what, file=sys.stderr, end=end, flush=True)


def _version(server: Path) -> str:
    done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in (done.stdout + done.stderr).splitlines() if "version" in line), "unknown")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="without it its columns are left out")
    parser.add_argument("--minutes", type=float, default=40.0, help="stop (and print) after so many; default: 40")
    parser.add_argument("--stages", default=",".join(BY_NAME), help=f"default: {','.join(BY_NAME)}")
    parser.add_argument("--cells", metavar="WORKLOAD,...", help="only these workloads")
    parser.add_argument("--quants", default="Q8_0,Q4_K_M", help=f"of {', '.join(QUANTS)}; default: Q8_0,Q4_K_M")
    parser.add_argument("--shapes", default="1b,100m", help="of target and draft model; default: 1b,100m")
    parser.add_argument("--draft-quant", metavar="QUANT", help="of the draft model; default: the target's")
    parser.add_argument("--temperatures", default="0,1", help="default: 0,1")
    parser.add_argument("--tokens", type=int, default=48, help="longest answer; default: 48")
    parser.add_argument("--rounds", type=int, default=2, help="before another stage has its turn; default: 2")
    parser.add_argument("--prompts", type=int, default=2, help="of each workload at most; default: 2, one of long ones")
    parser.add_argument("--prepare", action="store_true", help="make the models (2.5 GB), measure nothing")
    parser.add_argument("--markdown", action="store_true", help="print the page REPORT.md")
    parser.add_argument("--print", dest="only_print", action="store_true", help="measure nothing")
    return parser


def _options() -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args()
    unknown = set(options.stages.split(",")) - set(BY_NAME)
    if unknown:
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; there are: {', '.join(BY_NAME)}")
    shapes = options.shapes.split(",")
    if len(shapes) != 2 or not set(shapes) <= set(SHAPES):
        parser.error(f"--shapes is {options.shapes}; it must be two of {', '.join(SHAPES)}")
    if options.llama_server is not None and not options.llama_server.is_file():
        parser.error(f"there is no file {options.llama_server}")
    return options


def main() -> int:
    """Measures for a while, prints what there is."""
    options = _options()
    report, code = Report(options), 0
    try:
        if options.prepare:
            report.prepare()
            return 0
        if not options.only_print:
            report.measure()
    except TimeUp:
        _say("the time is up")
    except KeyboardInterrupt:
        _say("interrupted")
        code = 130
    except LocalspecError as error:
        _say(f"stopped: {error}")
        code = error.exit_code
    report.print()
    return code


if __name__ == "__main__":
    raise SystemExit(main())
