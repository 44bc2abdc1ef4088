"""Host time of a pass in which nothing is drafted, by parts.

    python packaging/bench/host_time.py TARGET.gguf [--tokens 200] [--runs 3]

Guesses are drawn and weighed as ever, but their drafts are not sent, so every pass has one row. Each part is timed by a
clock around its call; what a part calls is left out of it. Medians over all passes; close other programs first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

PROMPT = "Explain what a hash table is to somebody who knows arrays."


class Clocks:
    """Seconds of each part in the pass that runs, nested parts left out."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(list)
        self._now: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def around(self, owner: Any, name: str, part: str) -> None:
        """Times each call of `owner.name` as this part."""
        call: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = perf_counter()
            self._inner.append(0.0)
            try:
                return call(*arguments, **named)
            finally:
                took = perf_counter() - started
                self._now[part] += took - self._inner.pop()
                self._inner[-1] += took

        setattr(owner, name, timed)

    def passed(self) -> None:
        """Ends a pass."""
        for part, seconds in self._now.items():
            self.parts[part].append(seconds)
        self._now.clear()


def watch(loop: Any, clocks: Clocks) -> None:
    """Puts a clock around each part of a loop."""
    from localspec.engine import loop as module
    from localspec.engine.interfaces import EMPTY_DRAFT

    plan = loop.plan
    for drafter in plan.drafters:
        clocks.around(drafter, "draft", f"guesses of {drafter.name}")
        clocks.around(drafter, "observe", f"observing, {drafter.name}")
    send = plan._send

    def unsent(found: Any, target: Any) -> None:
        found.drafts = [EMPTY_DRAFT] * len(found.drafts)
        send(found, target)

    plan._send = unsent
    clocks.around(plan, "draft", "plan, before the pass")
    clocks.around(plan, "learn", "plan, after the pass")
    clocks.around(loop.target, "decode", "the pass itself")
    clocks.around(module, "verify", "verdict")
    clocks.around(loop, "_until_stop", "text and stop strings")
    clocks.around(loop, "_emit", "event and figures")
    clocks.around(loop, "_pass", "rest of the loop")
    step = loop._pass

    def passing(slots: Any) -> None:
        step(slots)
        clocks.passed()

    loop._pass = passing


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--tokens", type=int, default=200, help="of each answer (default 200)")
    parser.add_argument("--runs", type=int, default=3, help="answers (default 3)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="localspec-host-") as home:
        for variable in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
            os.environ[variable] = home
        from localspec.chat.turn import Message
        from localspec.runtime.engine import Engine
        from localspec.types import SamplingParams

        with Engine.load(options.target.resolve(), "none", tuned=False, corpus="off") as engine:
            clocks = Clocks()
            watch(engine.loop, clocks)
            tokens = engine.chat_tokens([Message("user", PROMPT)])
            for seed in range(options.runs):
                engine.forget()
                sampling = SamplingParams(temperature=0.8)
                engine.generate(
                    tokens, sampling=sampling, seed=seed, max_tokens=options.tokens, recall=False, remember=False
                ).text()
    whole = statistics.median(clocks.parts["the pass itself"])
    for part, samples in sorted(clocks.parts.items(), key=lambda one: -statistics.median(one[1])):
        middle = statistics.median(samples)
        print(f"{part:32}{1e3 * middle:9.4f} ms{100 * middle / whole:8.2f} %")


if __name__ == "__main__":
    main()
