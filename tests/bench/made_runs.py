"""Heats with figures that can be reckoned with in one's head."""

from __future__ import annotations

from localspec.checks.compare import Heat, Run, Task, TimedAnswer
from localspec.checks.prompts import BenchPrompt
from localspec.options import Options
from localspec.types import SamplingParams


def made_run(seconds: float, *, tokens: int = 10, text: str = "same", **stats: object) -> Run:
    """A run of one answer: a tenth of a second of prefill, then `seconds` of decoding."""
    arrivals = [(0.1 + seconds * (place + 1) / 2, tokens // 2) for place in range(2)]
    answer = TimedAnswer(text, tokens, 0.1 + seconds, arrivals, prefill_seconds=0.1, exact=True, stats=dict(stats))
    return Run([], [answer])


def made_heat(runs: dict[str, Run], *, prompt: int = 0, turn: int = 0, workload: str = "copy") -> Heat:
    """A heat at temperature 0."""
    task = Task(
        BenchPrompt(str(prompt), workload=workload, index=prompt), Options(sampling=SamplingParams(temperature=0.0))
    )
    return Heat(task, prompt, turn, runs)
