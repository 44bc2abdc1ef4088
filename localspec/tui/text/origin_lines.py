"""The passes of an answer as people can read them; where tokens come from, as colours and signs; and lines of those.

Made from the records of the engine, live or stored, and the bytes that tokens stand for.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import NamedTuple

from rich.cells import cell_len

from localspec.chat.plain_text import one_line, pictured
from localspec.chat.reply.tool import members
from localspec.chat.turn import MadeCall, Message
from localspec.engine.slot import PassRecord
from localspec.methods import COPYING, DARK, RED, TABLE

Piece = Callable[[int], bytes]  # the bytes a token stands for; none for control tokens


@dataclass(frozen=True, slots=True)
class DraftGuess:
    text: str
    parent: int  # index of the guess before it; -1 = it follows the text
    depth: int  # position in the draft, 1 = first
    accepted: bool


@dataclass(frozen=True, slots=True)
class AnswerPass:
    """One decode of the target."""

    drafter: str  # the drafter that guessed; "" = none
    guesses: tuple[DraftGuess, ...]  # as they were sent
    emitted: tuple[OriginCell, ...]  # tokens it brought to the answer, the target's own last
    width: int  # rows
    seconds: float  # drafting, verifying and all else between two passes

    @property
    def accepted(self) -> int:
        """Guesses the target would have said itself."""
        return sum(guess.accepted for guess in self.guesses)

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.emitted)


class PassReader:
    """Records in, passes out, one by one; keeps characters that are cut between tokens."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def read(self, record: PassRecord, kept: int | None = None) -> AnswerPass:
        """`kept`: tokens that came into the answer; fewer than the verdict's where a stop cut them. None = all."""
        chosen = set(record.accepted)
        depths: list[int] = []
        guesses = []
        for node, (token, parent) in enumerate(zip(record.guesses, record.parents, strict=True)):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            text = self._piece(token).decode("utf-8", errors="replace")
            guesses.append(DraftGuess(text, parent, depths[node], node in chosen))
        tokens = [
            (record.guesses[node], record.drafter_of(node), depth) for depth, node in enumerate(record.accepted, 1)
        ]
        if record.next_token >= 0:
            tokens.append((record.next_token, "", 0))
        emitted = tuple(
            OriginCell(self._decoder.decode(self._piece(token)), drafter, depth)
            for token, drafter, depth in tokens[:kept]
        )
        return AnswerPass(record.drafter, tuple(guesses), emitted, record.width, record.seconds)

    def read_all(self, records: Iterable[PassRecord], tokens: int) -> list[AnswerPass]:
        """Some records that brought so many tokens in all; what the last verdict has beyond them was cut by a stop."""
        found = []
        for record in records:
            found.append(self.read(record, max(0, tokens)))
            tokens -= len(found[-1].emitted)
        return found


def read_passes(records: Iterable[PassRecord], piece: Piece, text: str | None = None) -> list[AnswerPass]:
    """All passes of an answer; what was generated after its text (the end of a turn, a stop string) is left out."""
    reader = PassReader(piece)
    passes = [reader.read(record) for record in records]
    return passes if text is None else list(cut_to(passes, text))


def cut_to(passes: Iterable[AnswerPass], text: str) -> Iterator[AnswerPass]:
    """Passes that end where the answer's text does; as they are where their text does not contain it. Thinking stands
    before the text, so the last place where the text is found counts."""
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
            kept.append(token._replace(text=token.text[:left]))
            left -= len(kept[-1].text)
        yield replace(one, emitted=tuple(kept))


def joined(stored: Sequence[PassRecord], live: Sequence[PassRecord]) -> list[PassRecord]:
    """Records read from disk and records heard live of the same answer, as one list; both may overlap. What both have
    is found by comparing; seconds are rounded on disk and do not count."""
    heard = [one._replace(seconds=0.0) for one in live]
    known = [one._replace(seconds=0.0) for one in stored]
    for start in range(max(0, len(known) - len(heard)), len(known)):
        if known[start:] == heard[: len(known) - start]:
            return [*stored[:start], *live]
    return [*stored, *live]


RESULT = "from a result of "
"""With a tool's name after it, the drafter of guesses that were copied out of its result."""
_BEFORE = 5  # tokens before a guess that are searched with it, and at least 2, as prompt lookup does


def of_results(
    passes: Sequence[AnswerPass], prompt: Iterable[Message], calls: Sequence[MadeCall]
) -> Iterator[AnswerPass]:
    """Passes with `RESULT` and the tool as the drafter of what was copied out of a result: of guesses that stand there
    last, with the tokens before them, in what the model had read by then. Drafters keep no places. `calls`: of the
    answer itself."""
    due = deque(_results(calls, "".join(one.text for one in passes)))
    read = [(one.content, one.name if one.role == "tool" else "") for one in prompt] + [("", "")]
    known = bool(due) or any(tool for _, tool in read)
    last, said = deque[str](maxlen=_BEFORE), 0

    def tool_of(guess: str) -> str:
        ends = ("".join([*last][-count:]) + guess for count in range(len(last), 1, -1))
        return next((tool for end in ends for text, tool in reversed(read) if end in text), "")

    for one in passes:
        while due and due[0][0] <= said:
            read += [due.popleft()[1:], ("", "")]
        copied = known and any(cell.drafter in COPYING for cell in one.emitted)
        tool = tool_of("".join(cell.text for cell in one.emitted if cell.depth)) if copied else ""
        name = {drafter: RESULT + one_line(tool) for drafter in COPYING if tool}
        yield replace(
            one, emitted=tuple(cell._replace(drafter=name.get(cell.drafter, cell.drafter)) for cell in one.emitted)
        )
        last.extend(cell.text for cell in one.emitted)
        read[-1] = (read[-1][0] + one.text, "")
        said += len(one.text)


def _results(calls: Sequence[MadeCall], text: str) -> list[tuple[int, str, str]]:
    """Results and their tools, each with the end of its round of calls in what was generated: after their names and
    what is found of their arguments."""
    at, ends = 0, dict[int, int]()
    for made in calls:
        for word in (made.call.name, *(members(made.call.arguments) or {}).values()):
            place = text.find(word.strip('"'), at)
            at = at if place < 0 else place + len(word.strip('"'))
        ends[made.round] = at
    return [(ends[made.round], made.result, made.call.name) for made in calls]


# Where tokens come from, as colours and as signs: what the origin view, its legend, the bars and the race share.
#
# The colours are Okabe and Ito's, made to be told apart with any kind of colour vision; deeper guesses are stronger.
# The signs say the same without colour: the letter of the drafter at position 1 of a draft, then the position.

REJECTED = "x"  # sign of a rejected guess
OWN = "·"  # sign of the target's own token


@dataclass(frozen=True, slots=True)
class Kind:
    name: str  # what people call it
    letter: str
    colour: str  # of its background, #rrggbb; "" = none
    underline: int = 0  # lines under its tokens where there is no colour: 0, 1 or 2
    italic: bool = False


TARGET = Kind("the target's own", OWN, "")
_DRAFTERS = {
    row.name: Kind(row.title, row.look.letter, row.look.colour, row.look.underline, row.look.italic) for row in TABLE
}
_OTHERS = (RED[0], DARK[0])


def kind_of(drafter: str) -> Kind:
    """The kind of a drafter by its name; "" = the target. Names not known here get a letter and colour of their own."""
    if not drafter:
        return TARGET
    known = _DRAFTERS.get(drafter)
    if known is not None:
        return known
    letters = [letter for letter in drafter.removeprefix(RESULT).lower() if letter.isalpha()]
    taken = {kind.letter for kind in _DRAFTERS.values()}
    letter = next((letter for letter in letters if letter not in taken), "o")
    return Kind(drafter, letter, _OTHERS[sum(map(ord, drafter)) % len(_OTHERS)], 1)


def sign(drafter: str, depth: int) -> str:
    """One character: the letter at position 1, the position after it, + beyond 9; · for the target's own."""
    if not drafter or depth < 1:
        return OWN
    if depth == 1:
        return kind_of(drafter).letter
    return str(depth) if depth <= 9 else "+"


def strength(depth: int) -> float:
    """How much of the colour a background takes, 0 to 1: the deeper the guess, the more."""
    return min(0.75, 0.3 + 0.075 * (max(1, depth) - 1))


def ordered(drafters: Iterable[str]) -> list[str]:
    """Names of drafters, each once: those known here first, as they are listed, then by name."""
    known = list(_DRAFTERS)
    return sorted(set(drafters) - {""}, key=lambda name: (known.index(name) if name in known else len(known), name))


LINE_END, TAB = "↵", "⇥ "
_PIECE = re.compile(r"\n|[ \t]+[^ \t\n]*|[^ \t\n]+")
"""What a line may break before and after: a line end alone, a word with the space before it."""


class OriginCell(NamedTuple):
    """A token and where it came from; on a line, the part of it that stands there."""

    text: str  # characters that were complete with this token; "" for a part of one, or a control token
    drafter: str = ""  # whose guess it was; "" = the target's own
    depth: int = 0  # position in the draft, 1 = first; 0 = the target's own
    ghost: bool = False  # a rejected guess, which is not part of the answer
    starts: bool = True  # it is the token's first part, which carries the sign

    @property
    def width(self) -> int:
        return cell_len(self.text)

    @property
    def sign(self) -> str:
        """One character that says where the token came from; blank for the rest of a broken token."""
        if not self.starts:
            return " "
        return REJECTED if self.ghost else sign(self.drafter, self.depth)


Line = list[OriginCell]


class OriginLines:
    """Lines that grow with the passes of an answer."""

    def __init__(self, width: int, *, ghosts: bool = False, line_ends: bool = False) -> None:
        """`width`: columns; 2 is the least, as some characters take that. `ghosts`: show rejected guesses, too.
        `line_ends`: as signs."""
        self.width = max(2, width)
        self.ghosts, self.line_ends = ghosts, line_ends
        self._done: list[Line] = []
        self._line: Line = []
        self._used = 0
        self._word: Line = []

    @property
    def lines(self) -> list[Line]:
        """All lines so far; the last may still grow. At least one."""
        tail = OriginLines(self.width)
        tail._line, tail._used = list(self._line), self._used
        tail._put(self._word)
        return [*self._done, *tail._done, tail._line]

    def add(self, passes: Iterable[AnswerPass]) -> None:
        for one in passes:
            for cell in self._cells(one):
                self._add(cell)

    def _cells(self, one: AnswerPass) -> Iterator[OriginCell]:
        cells = [token._replace(text=pictured(token.text)) for token in one.emitted]
        yield from (cell for cell in cells if cell.depth)
        for guess in one.guesses if self.ghosts else ():
            if not guess.accepted:  # kept on the line: where a guess has a line end, only its sign is shown
                text = pictured(guess.text).replace("\n", LINE_END).replace("\t", TAB)
                yield OriginCell(text, one.drafter, guess.depth, ghost=True)
        yield from (cell for cell in cells if not cell.depth)

    def _add(self, cell: OriginCell) -> None:
        """Takes a token apart at line ends and where words begin."""
        starts = True
        for text in _PIECE.findall(cell.text):
            if text == "\n":
                if self.line_ends:
                    self._word.append(cell._replace(text=LINE_END, starts=starts))
                    starts = False
                self._end_word()
                self._end_line()
            else:
                if text[0] in " \t":
                    self._end_word()
                self._word.append(cell._replace(text=text.replace("\t", TAB), starts=starts))
                starts = False

    def _end_word(self) -> None:
        self._put(self._word)
        self._word = []

    def _put(self, word: Line) -> None:
        """Puts a word on the line, or on the next; one longer than a line is broken: it fills the line, then the next
        ones."""
        width = sum(cell.width for cell in word)
        if self._used and self._used + width > self.width:
            self._end_line()
            first = word[0]
            if first.text.startswith(" ") and len(first.text) > 1:  # one goes, unless it is all of a token
                word, width = [first._replace(text=first.text[1:]), *word[1:]], width - 1
        if self._used + width <= self.width:
            self._line += word
            self._used += width
            return
        for cell in word:
            text, starts = cell.text, cell.starts
            while text:
                columns = takewhile((self.width - self._used).__ge__, accumulate(map(cell_len, text)))
                end = sum(1 for _ in columns)
                fits, text = text[:end], text[end:]
                if fits:
                    self._line.append(cell._replace(text=fits, starts=starts))
                    self._used += cell_len(fits)
                    starts = False
                if text:
                    self._end_line()

    def _end_line(self) -> None:
        self._done.append(self._line)
        self._line, self._used = [], 0


def sign_line(line: Line) -> str:
    """The signs of a line, each under the first column of its token."""
    return "".join(cell.sign + " " * (cell.width - 1) for cell in line if cell.width)
