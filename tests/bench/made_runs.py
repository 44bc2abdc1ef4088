"""Runs with figures that can be reckoned with in one's head."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.bench.contest.run import Answer, Pass, Run, RunKey


def made_run(
    contender: str,
    seconds: float,
    *,
    prompt: int = 0,
    turn: int = 0,
    tokens: int = 10,
    text: str = "same",
    workload: str = "copy",
    log: Sequence[Pass] = (),
    **stats: object,
) -> Run:
    """A run of one answer: a tenth of a second of prefill, then `seconds` of decoding."""
    answer = Answer(
        text,
        tokens,
        0.1 + seconds,
        [(0.1 + seconds * (place + 1) / 2, tokens // 2) for place in range(2)],
        prefill_seconds=0.1,
        finish="length",
        exact=True,
        stats=stats,
        passes=list(log),
        costs={"passes": [0.0, 1.0, 1.1, 1.3], "levels": {"draft": 0.1}},
    )
    return Run(RunKey("pair", "settings", contender, workload, prompt, f"p{prompt}", 0.0, turn), [answer], 20)
