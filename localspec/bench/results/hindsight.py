"""What could have been reached, computed from the log: the clairvoyant limit.

A clairvoyant knows which guesses are right before they are made. It drafts only those, each time as many as is best,
and pays what passes and levels of a draft really cost here. With what the log says about every position of an answer
(a guess there was right, wrong, or never made) the best sequence of passes is found by dynamic programming from the
end:

    T(p) = min over drafters and k right guesses at p, p + 1, ..., p + k - 1 of
           cost(1 + k rows) + k * cost of a level + T(p + k + 1)

Every run of the same prompt, temperature and seed has the same text, so all their logs speak of the same positions.
The limit leaves out what a drafter has to read first, and no plan reaches it: one that knew what is right would need no
target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from localspec.bench.contest.run import Answer


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
