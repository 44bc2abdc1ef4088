"""Figures of a benchmark: a cell is a workload at a temperature, with every contender's runs of it.

Formulas are the glossary's (`engine.stats`), pooled over all runs: sums over sums, never a mean of ratios. But for
`Cell.share_of_tuned`: what was fastest in the other rounds differs from round to round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median

from localspec.bench.contest.run import BASELINE, PRODUCT, Answer, Run
from localspec.checks.interval import Ratio, ratio
from localspec.engine.stats import percentile

FIXED = re.compile(r"(?:[a-z][a-z0-9_-]*|[\w.]+:[\w.]+) [1-9]\d*")
"""Names of contenders that draft so many tokens in every pass: a drafter, its own or others' (`drafters.plugin`), and
the length."""


@dataclass(slots=True)
class Figures:
    """All runs of one contender in one cell."""

    name: str
    runs: list[Run] = field(default_factory=list)

    @property
    def answers(self) -> list[Answer]:
        return [answer for run in self.runs for answer in run.answers]

    @property
    def fixed(self) -> bool:
        """Drafts of one length in every pass, by the engine that answers plain."""
        return FIXED.fullmatch(self.name) is not None

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

    def by_prompt(self) -> dict[int, dict[int, Run]]:
        """{prompt: {round: run}}."""
        found: dict[int, dict[int, Run]] = {}
        for run in self.runs:
            found.setdefault(run.key.prompt, {})[run.key.round] = run
        return found


@dataclass
class Cell:
    """A workload at a temperature."""

    workload: str
    temperature: float
    contenders: dict[str, Figures] = field(default_factory=dict)
    """In the order of the benchmark."""

    @property
    def plain(self) -> Figures:
        return self.contenders.get(BASELINE) or Figures(BASELINE)

    @property
    def product(self) -> Figures:
        return self.contenders.get(PRODUCT) or Figures(PRODUCT)

    def speedup(self, name: str, over: str = BASELINE, among: Container[int] | None = None) -> Ratio | None:
        """Time of one contender over that of another, a token, on the same prompts in the same rounds; of all rounds,
        or `among` these.
        """
        if name not in self.contenders or over not in self.contenders:
            return None
        slow, fast = self.contenders[over].by_prompt(), self.contenders[name].by_prompt()
        pairs = []
        for prompt in sorted(slow.keys() & fast.keys()):
            both = slow[prompt].keys() & fast[prompt].keys()
            rounds = sorted(turn for turn in both if among is None or turn in among)
            tokens = fmean(slow[prompt][turn].tokens for turn in rounds) if rounds else 0.0
            pairs.append(
                [
                    (tokens * _pace(slow[prompt][turn]), tokens * _pace(fast[prompt][turn]))
                    for turn in rounds
                    if slow[prompt][turn].tokens and fast[prompt][turn].tokens
                ]
            )
        return ratio(pairs)

    def forks(self, name: str) -> tuple[int, int]:
        """(conversations whose text is not plain decoding's, conversations compared)."""
        texts = {prompt: next(iter(rounds.values())).texts for prompt, rounds in self.plain.by_prompt().items()}
        compared = [run for run in self.contenders[name].runs if run.key.prompt in texts]
        return sum(run.texts != texts[run.key.prompt] for run in compared), len(compared)

    @cached_property
    def best_fixed(self) -> str | None:
        """The fixed length, plain decoding being length 0, that was fastest in hindsight; None = none was run."""
        return self._fastest()

    @cached_property
    def share_of_tuned(self) -> float | None:
        """localspec's speed over that of the fastest of all fixed lengths: in every round that
        which was fastest in the others, and the median over rounds. None = fewer than two rounds, or no fixed length.

        `best_fixed` is chosen on the rounds that it is scored on: of several as fast, noise makes one the best. This
        one errs the other way where rounds are few: by noise the wrong one is kept.
        """
        rounds = {run.key.round for run in self.plain.runs}
        shares = []
        for one in rounds:
            tuned = self._fastest(rounds - {one})
            share = None if tuned is None else self.speedup(PRODUCT, tuned, {one})
            if share is not None:
                shares.append(share.value)
        return median(shares) if shares else None

    def _fastest(self, among: Container[int] | None = None) -> str | None:
        speeds = {
            name: found.value
            for name, figures in self.contenders.items()
            if figures.fixed and (found := self.speedup(name, among=among)) is not None
        }
        if not speeds:
            return None
        best = max(speeds, key=lambda name: speeds[name])
        return best if speeds[best] > 1.0 else BASELINE

    @cached_property
    def limit(self) -> Limit | None:
        """The clairvoyant limit; None = logs or costs are missing."""
        ours = [one for one in self.contenders.values() if one.fixed or one.name in (BASELINE, PRODUCT)]
        texts = {prompt: next(iter(rounds.values())).texts for prompt, rounds in self.plain.by_prompt().items()}
        turns: list[list[Answer]] = []
        for prompt, wanted in texts.items():
            same = [run for one in ours for run in one.runs if run.key.prompt == prompt and run.texts == wanted]
            turns += [[run.answers[turn] for run in same] for turn in range(len(wanted))]
        return limit(turns) if turns else None


def make_cells(runs: Iterable[Run]) -> list[Cell]:
    """Runs of one benchmark by workload and temperature, in the order they come; contenders in `_order`."""
    found: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        found.setdefault((run.key.workload, run.key.temperature), []).append(run)
    cells = []
    for (workload, temperature), mine in found.items():
        names = sorted({run.key.contender for run in mine}, key=_order)
        figures = {name: Figures(name, [run for run in mine if run.key.contender == name]) for name in names}
        cells.append(Cell(workload, temperature, figures))
    return cells


def names_of(cells: Sequence[Cell]) -> list[str]:
    """All contenders, in order."""
    return sorted({name for cell in cells for name in cell.contenders}, key=_order)


def _order(name: str) -> tuple[int, str, int]:
    """Plain decoding, localspec, the others by name and number."""
    words, number = name.rpartition(" ")[::2]
    first = (BASELINE, PRODUCT).index(name) if name in (BASELINE, PRODUCT) else 2
    return (first, words, int(number)) if number.isdecimal() else (first, name, 0)


def _pace(run: Run) -> float:
    """Seconds a token."""
    return run.decode_seconds / run.tokens


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


# What could have been reached, computed from the log: the clairvoyant limit.
#
# A clairvoyant knows which guesses are right before they are made. It drafts only those, each time as many as is best,
# and pays what passes and levels of a draft really cost here. With what the log says about every position of an answer
# (a guess there was right, wrong, or never made) the best sequence of passes is found by dynamic programming from the
# end:
#
#     T(p) = min over drafters and k right guesses at p, p + 1, ..., p + k - 1 of            cost(1 + k rows) + k * cost
# of a level + T(p + k + 1)
#
# Every run of the same prompt, temperature and seed has the same text, so all their logs speak of the same positions.
# The limit leaves out what a drafter has to read first, and no plan reaches it: one that knew what is right would need
# no target.


@dataclass(frozen=True, slots=True)
class Limit:
    """Times of the same answers by what passes cost."""

    plain_seconds: float
    clairvoyant_seconds: float
    known: float
    """Share of the positions where some drafter's guess was seen; the limit may be higher where it is below 1."""

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.clairvoyant_seconds


def limit(turns: Iterable[Sequence[Answer]]) -> Limit | None:
    """The limit of answers to the same turn, turn by turn; None where costs or logs are missing."""
    plain, clairvoyant, tokens, known = 0.0, 0.0, 0, 0
    for answers in turns:
        costs = next((answer.costs for answer in reversed(answers) if answer.costs.get("passes")), None)
        length = max(answer.tokens for answer in answers)
        if costs is None or not length:
            return None
        seen = guesses(answers)
        row = [float(seconds) for seconds in costs["passes"]]
        plain += length * row[1]
        clairvoyant += best_seconds(length, row, costs.get("levels", {}), seen)
        tokens += length
        known += len({position for found in seen.values() for position in found if position < length})
    return Limit(plain, clairvoyant, known / tokens) if tokens else None


def guesses(answers: Sequence[Answer]) -> dict[str, dict[int, bool]]:
    """{drafter: {position of the answer: whether its guess was right}}, from all logs."""
    found: dict[str, dict[int, bool]] = {}
    for answer in answers:
        position = 0
        for one in answer.passes:
            if one.drafted:
                known = found.setdefault(one.drafter, {})
                for right in range(position, position + one.accepted):
                    known[right] = True
                if one.accepted < one.drafted:
                    known.setdefault(position + one.accepted, False)
            position += one.accepted + 1
    return found


def best_seconds(
    length: int, row: Sequence[float], levels: Mapping[str, float], seen: Mapping[str, Mapping[int, bool]]
) -> float:
    """T(0): the least time for `length` tokens.

    Args:
        length: tokens of the answer.
        row: seconds of a pass by width; 0 = not allowed.
        levels: seconds a level of each drafter; one that is not named costs nothing.
        seen: `guesses`.
    """
    times = [0.0] * (length + 1)
    for position in range(length - 1, -1, -1):
        best = row[1] + times[position + 1]
        for drafter, right in seen.items():
            count, level = 0, levels.get(drafter, 0.0)
            while count + 2 < len(row) and position + count < length and right.get(position + count):
                count += 1
                if row[1 + count]:
                    after = times[min(length, position + count + 1)]
                    best = min(best, row[1 + count] + count * level + after)
        times[position] = best
    return times[0]
