"""The passes of an answer as people can read them: tokens as text, guesses with what became of them.

Made from the records of the engine, live or stored, and the bytes that tokens stand for.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.engine.request import PassRecord

Piece = Callable[[int], bytes]
"""The bytes a token stands for; none for control tokens."""


@dataclass(frozen=True, slots=True)
class Guess:
    """A node of a draft."""

    text: str
    parent: int
    """Index of the guess before it; -1 = it follows the text."""
    depth: int
    """Position in the draft, 1 = first."""
    accepted: bool


@dataclass(frozen=True, slots=True)
class Emitted:
    """A token of the answer, and where it came from."""

    text: str
    """Characters that were complete with this token; "" for a part of one, or a control token."""
    drafter: str
    """Whose guess it was; "" = the target's own."""
    depth: int
    """Position in the draft, 1 = first; 0 = the target's own."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One decode of the target."""

    drafter: str
    """The drafter that guessed; "" = none."""
    guesses: tuple[Guess, ...]
    """As they were sent."""
    emitted: tuple[Emitted, ...]
    """Tokens it brought to the answer, the target's own last."""
    width: int
    """Rows."""
    seconds: float
    """Drafting, verifying and all else between two passes."""

    @property
    def accepted(self) -> int:
        """Guesses the target would have said itself."""
        return sum(guess.accepted for guess in self.guesses)

    @property
    def rejected(self) -> tuple[Guess, ...]:
        """Guesses that came to nothing."""
        return tuple(guess for guess in self.guesses if not guess.accepted)

    @property
    def text(self) -> str:
        """What it brought."""
        return "".join(token.text for token in self.emitted)


class PassReader:
    """Records in, passes out, one by one; keeps characters that are cut between tokens."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, record: PassRecord, kept: int | None = None) -> Pass:
        """One record.

        Args:
            record: of the engine.
            kept: tokens that came into the answer; fewer than the verdict's where a stop cut them. None = all.
        """
        chosen = set(record.accepted)
        depths: list[int] = []
        guesses = []
        for node, (token, parent) in enumerate(zip(record.guesses, record.parents, strict=True)):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            text = self._piece(token).decode("utf-8", errors="replace")
            guesses.append(Guess(text, parent, depths[node], node in chosen))
        tokens = [
            (record.guesses[node], record.drafter_of(node), depth) for depth, node in enumerate(record.accepted, 1)
        ]
        if record.next_token >= 0:
            tokens.append((record.next_token, "", 0))
        emitted = tuple(
            Emitted(self._decoder.decode(self._piece(token)), drafter, depth) for token, drafter, depth in tokens[:kept]
        )
        return Pass(record.drafter, tuple(guesses), emitted, record.width, record.seconds)

    def read_all(self, records: Iterable[PassRecord], tokens: int) -> list[Pass]:
        """Some records that brought so many tokens in all; what the last verdict has beyond them was cut by a stop."""
        found = []
        for record in records:
            found.append(self.read(record, max(0, tokens)))
            tokens -= len(found[-1].emitted)
        return found


def read_passes(records: Iterable[PassRecord], piece: Piece, text: str | None = None) -> list[Pass]:
    """All passes of an answer.

    Args:
        records: in order.
        piece: of the model that made them.
        text: of the answer; what was generated after it (the end of a turn, a stop string) is left out. None = all.
    """
    reader = PassReader(piece)
    passes = [reader.read(record) for record in records]
    return passes if text is None else list(cut_to(passes, text))


def cut_to(passes: Iterable[Pass], text: str) -> Iterator[Pass]:
    """Passes that end where the answer's text does; as they are where their text does not contain it.

    Thinking stands before the text, so the last place where the text is found counts.
    """
    rest = list(passes)
    whole = "".join(one.text for one in rest)
    left = 0 if whole.startswith(text) else whole.rfind(text)
    if left < 0 or not text:
        yield from rest
        return
    left += len(text)
    for one in rest:
        if len(one.text) <= left:
            left -= len(one.text)
            yield one
            continue
        kept = []
        for token in one.emitted:
            kept.append(replace(token, text=token.text[:left]))
            left -= len(kept[-1].text)
        yield replace(one, emitted=tuple(kept))


def joined(stored: Sequence[PassRecord], live: Sequence[PassRecord]) -> list[PassRecord]:
    """Records read from disk and records heard live of the same answer, as one list; both may overlap.

    What both have is found by comparing; seconds are rounded on disk and do not count.
    """
    heard = [one._replace(seconds=0.0) for one in live]
    known = [one._replace(seconds=0.0) for one in stored]
    for start in range(max(0, len(known) - len(heard)), len(known)):
        if known[start:] == heard[: len(known) - start]:
            return [*stored[:start], *live]
    return [*stored, *live]
