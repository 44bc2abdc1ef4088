"""Figures of a benchmark: a cell is a workload at a temperature, with every side's runs of it.

Formulas are the glossary's (`engine.stats`), pooled over all runs: sums over sums, never a mean of ratios.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from localspec.bench.sides import BASELINE, PRODUCT
from localspec.checks.compare import Answer, Heat, Ratio, Run, fork, gain
from localspec.engine.stats import percentile


@dataclass(slots=True)
class Figures:
    """All runs of one side in one cell."""

    name: str
    runs: list[Run] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        return [answer for run in self.runs for answer in run.answers]

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over decode time: the target's prefill left out, a draft model's reading not."""
        return _over(sum(run.tokens for run in self.runs), sum(run.decode_seconds for run in self.runs))

    @property
    def ttft_seconds(self) -> float:
        """Time to first token: the median."""
        return median(answer.ttft_seconds for answer in self.answers) if self.answers else 0.0

    def itl_seconds(self, share: float) -> float:
        """A percentile of the gaps between arrivals."""
        return percentile([gap for answer in self.answers for gap in answer.gaps], share)

    def total(self, name: str) -> float:
        """A counter of the stats, over all answers that have it."""
        return float(sum(answer.stats.get(name, 0) for answer in self.answers))

    @property
    def has_stats(self) -> bool:
        """Whether it counts its drafts."""
        return any("drafted" in answer.stats for answer in self.answers)

    @property
    def acceptance_rate(self) -> float:
        return _over(self.total("accepted"), self.total("drafted"))

    @property
    def mean_accepted_length(self) -> float:
        """Next token included, over the passes that carried a draft."""
        return 1.0 + _over(self.total("accepted"), self.total("draft_passes"))

    @property
    def tokens_per_pass(self) -> float:
        return _over(self.total("generated_tokens"), self.total("passes"))

    @property
    def accepted_per_position(self) -> list[float]:
        """[d] = share of the passes with a draft whose draft was accepted at least d + 1 deep."""
        counts: Counter[int] = Counter()
        for answer in self.answers:
            counts.update(dict(enumerate(answer.stats.get("accepted_per_position", ()))))
        passes = self.total("draft_passes")
        return [_over(counts[depth], passes) for depth in range(max(counts, default=-1) + 1)]

    @property
    def time_shares(self) -> tuple[float, float, float]:
        """Of the decode time: drafting, the target's passes, everything else; zeros where it is not known."""
        parts = [self.total(name) for name in ("draft_seconds", "verify_seconds", "host_seconds")]
        draft, verify, host = (_over(part, sum(parts)) for part in parts)
        return draft, verify, host

    @property
    def exact(self) -> bool | None:
        """Whether all its texts were exact by its own word; None = it does not say."""
        words = {answer.exact for answer in self.answers}
        return None if None in words or not words else False not in words


@dataclass(slots=True)
class Cell:
    """A workload at a temperature."""

    workload: str
    temperature: float
    heats: list[Heat] = field(default_factory=list)

    @property
    def sides(self) -> list[str]:
        """In order: plain decoding, localspec, the others by name and number."""
        return sorted(self.heats[0].runs, key=_order)

    @property
    def prompts(self) -> int:
        return len({heat.number for heat in self.heats})

    def figures(self, side: str) -> Figures:
        """Of a side of that name; empty ones if it is not there."""
        return Figures(side, [heat.runs[side] for heat in self.heats if side in heat.runs])

    def speedup(self, side: str) -> Ratio | None:
        """Over plain decoding, on the same prompts in the same rounds."""
        return gain(self.heats, side, BASELINE)

    def forks(self, side: str) -> int:
        """Conversations whose text is not plain decoding's."""
        return sum(fork(heat.runs[BASELINE], heat.runs[side]) is not None for heat in self.heats)


def make_cells(heats: Iterable[Heat]) -> list[Cell]:
    """Heats by workload and temperature: all workloads at the first temperature, then at the others."""
    found: dict[tuple[float, str], Cell] = {}
    for heat in heats:
        workload, temperature = heat.task.prompt.workload, heat.task.options.sampling.temperature
        found.setdefault((temperature, workload), Cell(workload, temperature)).heats.append(heat)
    temperatures = list(dict.fromkeys(temperature for temperature, _ in found))
    return sorted(found.values(), key=lambda cell: temperatures.index(cell.temperature))


def _order(name: str) -> tuple[int, str, int]:
    words, number = name.rpartition(" ")[::2]
    first = (BASELINE, PRODUCT).index(name) if name in (BASELINE, PRODUCT) else 2
    return (first, words, int(number)) if number.isdecimal() else (first, name, 0)


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
