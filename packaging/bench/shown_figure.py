"""The "x plain" that people are told beside the true one, answer by answer.

    python packaging/bench/shown_figure.py TARGET.gguf [--busy 2] [--tokens 200] [--answers 30] [--temperature 0]

Each prompt is answered plain, by default, and plain again with the same seed. The truth is the ratio of their seconds
of decoding, the mean of both plain answers. How far these are apart is said: the truth is no better known. A fresh
home. --busy starts so many loops beside it and ends them. Without it close other programs first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from real import CELLS

PROMPTS = [
    "Write a dialogue between a pirate and a librarian.",
    *(prompts[place] for place in range(4) for prompts in CELLS.values()),
]
LOOP = f"import os\nwhile os.getppid() == {os.getpid()}: pass"  # it ends with this program, however that ends


@dataclass(frozen=True)
class Pair:
    """An answer plain and by default."""

    true: float
    """Seconds a token, plain over default."""
    apart: float
    """The second plain answer's seconds over the first one's, less 1."""
    shown: float
    """What `--stats` and the chat say; 0 = no figure."""
    drafts: int
    """Passes that drafted."""
    passes: int

    @property
    def error(self) -> float:
        """Of the figure that is shown, as a share of the true one."""
        return self.shown / self.true - 1.0


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Other programs that compute without end."""
    started = [subprocess.Popen([sys.executable, "-c", LOOP]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def pairs(engine: Any, options: argparse.Namespace) -> Iterator[Pair]:
    """All answers, in turns."""
    from localspec import Message, Options, SamplingParams

    sampling = SamplingParams(temperature=options.temperature)
    for place in range(options.answers):
        asked, stats = [Message("user", PROMPTS[place % len(PROMPTS)])], []
        for drafter in ("none", "auto", "none"):
            engine.forget()
            wanted = Options(
                sampling=sampling, seed=place, drafter=drafter, max_tokens=options.tokens, recall=False, remember=False
            )
            answer = engine.chat(asked, wanted)
            answer.text()
            stats.append(answer.stats)
        before, own, after = stats
        seconds, again = before.decode_seconds / before.generated, after.decode_seconds / after.generated
        true = (seconds + again) / 2.0 * own.tokens_per_second
        yield Pair(true, again / seconds - 1.0, own.estimated_speedup, own.draft_passes, own.passes)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--busy", type=int, default=0, help="loops beside it (default 0)")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer at most (default 200)")
    parser.add_argument("--answers", type=int, default=30, help="default 30")
    parser.add_argument("--temperature", type=float, default=0.0, help="default 0")
    options = parser.parse_args()
    target = options.target.resolve()
    with tempfile.TemporaryDirectory(prefix="localspec-shown-") as home:
        for variable in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = home
        from localspec.runtime.engine import Engine

        with Engine.load(target, options.draft, tuned=False, corpus="off") as engine, busy(options.busy):
            found = []
            for one in pairs(engine, options):
                found.append(one)
                shown = f"{one.shown:.2f} ({one.error:+.0%})" if one.shown else "-" if one.drafts else "plain"
                true = f"{one.true:.2f} (±{abs(one.apart) / 2:.0%})"
                print(f"{len(found):3} true {true}, shown {shown}, {one.drafts} of {one.passes} drafted", flush=True)
    errors, drafting = [one.error for one in found if one.shown], sum(one.drafts > 0 for one in found)
    print(f"truth: ±{fmean(abs(one.apart) for one in found) / 2:.1%} on average")
    print(f"plain: {len(found) - drafting}; no figure: {drafting - len(errors)}")
    if errors:
        mean, largest = fmean(map(abs, errors)), max(map(abs, errors))
        print(f"error of {len(errors)}: mean {mean:.1%}, largest {largest:.1%}; bias {fmean(errors):+.1%}")


if __name__ == "__main__":
    main()
