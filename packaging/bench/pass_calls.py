"""How many Python functions one pass calls, and in how many modules: plain, and with the draft model. A count is the
median over passes; figures of C are not in it.

    pass_calls.py [--target NAME|FILE] [--draft NAME|FILE] [--passes N] [--modules]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import localspec
from localspec import Engine, Options, SamplingParams

ROOT = str(Path(localspec.__file__).parent)
PROMPT = "Repeat this text exactly: one two three four five six seven eight nine ten"
WARM = 4
"""First passes of an answer that do not count: graphs are built and costs are unknown."""


def counted(engine: Engine, passes: int) -> list[Counter[str]]:
    """Calls by module for each pass of an answer; a pass that has a drafted token counts where drafts are wanted."""
    request = engine.request(PROMPT, Options(sampling=SamplingParams(temperature=0), seed=1, ignore_end=True))
    found: list[Counter[str]] = []

    def answer() -> None:
        loop = engine.loop
        slot = loop.admit(0, request)
        while loop.active and len(found) < passes and slot.stats.passes < 20 * passes:
            before, calls = slot.stats.drafted, Counter[str]()

            def count(frame: FrameType, event: str, _: Any, calls: Counter[str] = calls) -> None:
                if event == "call":
                    calls[frame.f_code.co_filename] += 1

            sys.setprofile(count)
            try:
                loop.step()
            finally:
                sys.setprofile(None)
            drafts = bool(engine.drafters)
            if slot.stats.passes > WARM and (slot.stats.drafted > before) is drafts:
                found.append(calls)
        loop.active.clear()

    engine.on_engine_thread(answer)
    return found


def told(found: list[Counter[str]]) -> str:
    """Calls and modules in words."""
    return f"{median(map(Counter.total, found)):g} calls in {median(map(len, found)):g} modules"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--modules", action="store_true", help="the calls of the median pass by module")
    options = parser.parse_args()
    for drafter in ("none", "draft"):
        with Engine.load(options.target, options.draft, drafter=drafter, context=512) as engine:
            found = sorted(counted(engine, options.passes), key=Counter.total)
        own = [Counter({name: count for name, count in one.items() if name.startswith(ROOT)}) for one in found]
        print(f"drafter {drafter}: {told(own)}; with Python's and numpy's {told(found)} ({len(found)} passes)")
        if options.modules:
            rows = found[len(found) // 2].most_common()
            print("".join(f"  {count:4} {name.removeprefix(ROOT)}\n" for name, count in rows), end="")


if __name__ == "__main__":
    main()
