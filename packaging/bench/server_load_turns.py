"""What the load benchmark keeps, a JSON line each turn, and the page that is made of it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from localspec.engine.stats import percentile

LEAST_AGGREGATE = 0.95
"""Of llama-server's tokens/s together, with all slots busy."""


@dataclass(frozen=True)
class Answer:
    """One request, as its user saw it. Times in seconds."""

    prompt: int
    tokens: int
    first: float
    """Until the first text."""
    whole: float
    """Until the last event."""
    drafted: int
    accepted: int
    exact: bool
    """By localspec's own account; false of others, who do not say."""
    text: str

    @property
    def rate(self) -> float:
        """Tokens/s that the user got, waiting included; a short answer may come in one event, so gaps say little."""
        return self.tokens / self.whole


@dataclass(frozen=True)
class Turn:
    """One server, one number of users, one round."""

    quant: str
    server: str
    users: int
    round: int
    seconds: float
    answers: tuple[Answer, ...]

    @property
    def rate(self) -> float:
        """Tokens/s of all users together."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def key(self) -> tuple[str, str, int, int]:
        """What tells it from the others."""
        return self.quant, self.server, self.users, self.round


class Turns:
    """All finished turns, on disk: a JSON line each."""

    def __init__(self, path: Path) -> None:
        """Reads what is there; a file that is not there is begun with the first turn."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self.found: dict[tuple[str, str, int, int], Turn] = {}
        text = path.read_text("utf-8") if path.exists() else ""
        if text and not text.endswith("\n"):
            path.write_text(f"{text}\n", "utf-8")
        for line in text.splitlines():
            try:
                row = json.loads(line)
                row["answers"] = tuple(Answer(**answer) for answer in row["answers"])
                turn = Turn(**row)
            except (ValueError, TypeError, KeyError):
                continue  # it was killed while it wrote
            self.found[turn.key] = turn

    def add(self, turn: Turn) -> None:
        """Keeps a turn."""
        self.found[turn.key] = turn
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(turn))}\n")


def page(turns: Sequence[Turn], slots: int) -> str:
    """Markdown: a table of each type, what was aimed at, and whether texts are equal under every load."""
    parts = []
    for quant in dict.fromkeys(turn.quant for turn in turns):
        own = [turn for turn in turns if turn.quant == quant]
        parts.append("\n".join([f"### {quant}", "", *_table(own), "", *_verdicts(own, slots), "", *_texts(own)]))
    return "\n\n".join(parts)


def is_ours(name: str) -> bool:
    """Whether a contender is localspec."""
    return name.startswith("localspec")


def rival(turns: Sequence[Turn], users: int) -> str | None:
    """The fastest llama-server at a number of users; None = none was measured."""
    names = {turn.server for turn in turns if turn.users == users and not is_ours(turn.server)}
    return max(names, key=lambda name: _rate(turns, name, users), default=None)


def _of(turns: Sequence[Turn], name: str, users: int) -> dict[int, Turn]:
    """By round."""
    return {turn.round: turn for turn in turns if (turn.server, turn.users) == (name, users)}


def _rate(turns: Sequence[Turn], name: str, users: int) -> float:
    return median(turn.rate for turn in _of(turns, name, users).values())


def _ratio(turns: Sequence[Turn], name: str, other: str, users: int) -> tuple[float, float, float, int] | None:
    """Median, least and greatest ratio of aggregates within rounds, and how many rounds; None = none have both."""
    ours, theirs = _of(turns, name, users), _of(turns, other, users)
    found = sorted(ours[number].rate / theirs[number].rate for number in ours.keys() & theirs.keys())
    return (median(found), found[0], found[-1], len(found)) if found else None


def _table(turns: Sequence[Turn]) -> list[str]:
    lines = [
        "| users | server | tok/s | of the best llama-server (range) | tok/s a user | TTFT p50 ms | p95 ms "
        "| accepted | exact |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for users in sorted({turn.users for turn in turns}):
        best = rival(turns, users)
        for name in dict.fromkeys(turn.server for turn in turns if turn.users == users):
            answers = [answer for turn in _of(turns, name, users).values() for answer in turn.answers]
            firsts = [answer.first * 1e3 for answer in answers]
            drafted = sum(answer.drafted for answer in answers)
            found = _ratio(turns, name, best, users) if best is not None else None
            cells = (
                str(users),
                name if is_ours(name) else f"llama-{name}",
                f"{_rate(turns, name, users):.1f}",
                "-" if found is None else f"{found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})",
                f"{median(answer.rate for answer in answers):.1f}",
                f"{median(firsts):.0f}",
                f"{percentile(firsts, 0.95):.0f}",
                f"{sum(answer.accepted for answer in answers) / drafted:.2f}" if drafted else "-",
                f"{sum(answer.exact for answer in answers)}/{len(answers)}" if is_ours(name) else "-",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _verdicts(turns: Sequence[Turn], slots: int) -> list[str]:
    """What the issue aims at, with all slots busy."""
    best, lines = rival(turns, slots), []
    for name in dict.fromkeys(turn.server for turn in turns if is_ours(turn.server) and turn.users == slots):
        found = _ratio(turns, name, best, slots) if best is not None else None
        if best is None or found is None:
            continue
        ours, theirs = (
            [answer.first for turn in _of(turns, one, slots).values() for answer in turn.answers]
            for one in (name, best)
        )
        met = "met" if found[0] >= LEAST_AGGREGATE else "MISSED"
        first = median(ours) / median(theirs)
        lines.append(
            f"- {name}, {slots} users: {found[0]:.2f} of llama-{best}'s tokens/s together over {found[3]} rounds "
            f"(aim: {LEAST_AGGREGATE:g}; {met}); TTFT {first:.2f} of its (aim: 1; {'met' if first <= 1 else 'MISSED'})."
        )
    return lines


def _texts(turns: Sequence[Turn]) -> list[str]:
    """How often a prompt got one text in all turns of a server."""
    texts: dict[str, dict[tuple[int, int], set[str]]] = defaultdict(lambda: defaultdict(set))
    for turn in turns:
        for answer in turn.answers:
            texts[turn.server][turn.users, answer.prompt].add(answer.text)
    return [
        f"- {name if is_ours(name) else f'llama-{name}'}: {sum(len(one) == 1 for one in found.values())} of "
        f"{len(found)} prompts got the same text in every round."
        for name, found in texts.items()
    ]
