"""One run of the benchmark: what a contender is asked, what it gives back, and how both are written down.

A *contender* answers prompts: plain decoding, localspec as it comes, a fixed draft length, another program's server.
A *run* is one conversation answered by one contender at one temperature in one round; `RunKey` names it for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, runtime_checkable

from localspec.chat.turn import Message
from localspec.errors import UsageError
from localspec.options import Options
from localspec.types import Tokens


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer to be given. The three forms of the prompt say the same."""

    messages: tuple[Message, ...]
    """The conversation, a user's or tool's message last; empty where the prompt is raw text."""
    text: str
    """The prompt as the target's chat template renders it, or the raw text."""
    tokens: Tokens
    """int32[n], the prompt in the target's tokens, begin-of-sequence included where the model wants it."""
    options: Options
    """How it is drawn and limited."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass as the log keeps it."""

    drafter: str
    """"" = nothing was drafted."""
    drafted: int
    """Nodes sent."""
    accepted: int
    seconds: float
    """Draft, verify and host together."""


@dataclass(slots=True)
class Answer:
    """What a contender gave back for one turn, and when. Seconds are since it was asked."""

    text: str
    tokens: int
    """Tokens generated."""
    wall_seconds: float
    """Until the end was known."""
    arrivals: list[tuple[float, int]]
    """(seconds, tokens) of each piece that came; empty only if no token came."""
    prefill_seconds: float = 0.0
    """The target's reading of the prompt, a part of `wall_seconds`; 0 = unknown."""
    finish: str = ""
    """Why it ended: "stop", "length", "context"; "" = unknown."""
    exact: bool | None = None
    """Whether no pass could have changed the text, as far as the contender says."""
    stats: dict[str, Any] = field(default_factory=dict)
    """Counters under the names of `RequestStats.as_dict`, as far as the contender has them."""
    passes: list[Pass] = field(default_factory=list)
    """The log, where there is one."""
    costs: dict[str, Any] = field(default_factory=dict)
    """What passes cost around this answer, by the engine's measurement: {"passes": [seconds by width, 0 = no such
    pass is allowed; index 0 unused], "levels": {drafter: seconds a level}}."""

    @property
    def ttft_seconds(self) -> float:
        """Time to first token."""
        return self.arrivals[0][0] if self.arrivals else self.wall_seconds

    @property
    def decode_seconds(self) -> float:
        """Everything but the target's prefill; where that is unknown, by the pace after the first arrival."""
        if self.prefill_seconds or len(self.arrivals) < 2:
            return self.wall_seconds - self.prefill_seconds
        first, last = self.arrivals[0], self.arrivals[-1]
        behind = sum(tokens for _, tokens in self.arrivals[1:])
        return (last[0] - first[0]) / behind * self.tokens if behind else self.wall_seconds

    @property
    def gaps(self) -> list[float]:
        """Seconds between arrivals: what a reader waits for (ITL)."""
        times = [seconds for seconds, _ in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]


class Contender(Protocol):
    """Answers prompts. One at a time; the runner gives every contender the same turns, taking turns."""

    name: str
    """Unique in a benchmark: "plain", "localspec", "draft 4", "llama-server draft 3"; `BASELINE` is plain decoding."""
    facts: Mapping[str, Any]
    """Plain data: everything its runs depend on besides the turn (threads, kernels, flags, address, version)."""

    def begin(self) -> None:
        """A conversation begins: nothing of an earlier one may be reused (what cannot be forgotten is said in
        `facts`)."""
        ...

    def answer(self, turn: Turn) -> Answer:
        """Answers; later turns of a conversation may reuse the earlier ones.

        Raises:
            LocalspecError: it could not; the benchmark ends with this sentence.
            KeyboardInterrupt: passed on, after what runs was cancelled.
        """
        ...

    def close(self) -> None:
        """Frees what it holds; shared engines are not its own."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A contender that can keep answers and search them when it drafts."""

    def remember(self) -> None:
        """What it answers from now on is kept, until the next `begin`; nothing that was answered before is."""
        ...


BASELINE, PRODUCT = "plain", "localspec"
"""Names of the contenders that all others are compared with: plain decoding, and localspec without any flag."""


@dataclass(frozen=True, slots=True)
class RunKey:
    """What makes two runs the same one."""

    pair: str
    """`digest` of the facts of target and draft files."""
    settings: str
    """`digest` of the contender's facts and of what all contenders were asked (tokens, seed)."""
    contender: str
    workload: str
    prompt: int
    """Index in the workload."""
    content: str
    """`digest` of the prompt."""
    temperature: float
    round: int


@dataclass(slots=True)
class Run:
    """A conversation answered by a contender."""

    key: RunKey
    answers: list[Answer]
    """One a turn."""
    prompt_tokens: int = 0
    """Of the last turn's prompt."""

    @property
    def tokens(self) -> int:
        return sum(answer.tokens for answer in self.answers)

    @property
    def decode_seconds(self) -> float:
        return sum(answer.decode_seconds for answer in self.answers)

    @property
    def texts(self) -> list[str]:
        return [answer.text for answer in self.answers]

    def to_json(self) -> dict[str, Any]:
        """Plain data for json.dump."""
        answers = []
        for answer in self.answers:
            row = asdict(answer)
            row["arrivals"] = [[round(seconds, 6), tokens] for seconds, tokens in answer.arrivals]
            row["passes"] = [[one.drafter, one.drafted, one.accepted, round(one.seconds, 6)] for one in answer.passes]
            answers.append(row)
        return {"key": asdict(self.key), "prompt_tokens": self.prompt_tokens, "answers": answers}

    @classmethod
    def from_json(cls, data: Any) -> Run:
        """Inverse of `to_json`.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: not what `to_json` makes.
        """
        answers = []
        for row in data["answers"]:
            arrivals = [(float(seconds), int(tokens)) for seconds, tokens in row["arrivals"]]
            passes = [Pass(str(name), int(sent), int(kept), float(s)) for name, sent, kept, s in row["passes"]]
            answers.append(Answer(**{**row, "arrivals": arrivals, "passes": passes}))
        return cls(RunKey(**data["key"]), answers, int(data["prompt_tokens"]))


def digest(facts: Any) -> str:
    """A short name for plain data: equal data, equal name."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


# A benchmark's runs on disk: JSON lines, only ever added to, each written out as soon as it is finished.
#
# Whatever ends the program, at most the run under way is lost: a line that was cut off is left out when the file is
# read again, and the next one starts on a line of its own.

_VERSION = 1
_NOT_OURS = (ValueError, TypeError, KeyError, AttributeError)


class Session:
    """The file, and all runs it holds; a context manager."""

    def __init__(self, path: Path, file: IO[str], rows: list[Any]) -> None:
        self.path = path
        self._file = file
        self.runs: dict[RunKey, Run] = {}
        """In the order they were finished; of a run that was written twice the later one."""
        self.notes: dict[str, list[Any]] = {}
        """Facts by kind, in order."""
        self.damaged = 0
        """Lines that could not be read."""
        for row in rows:
            self._take(row)

    @classmethod
    def open(cls, path: Path, *, fresh: bool = False) -> Session:
        """Opens a session to go on with it, or starts one.

        Args:
            path: created with its folder if it is missing.
            fresh: forget what is there.

        Raises:
            UsageError: the file is something else, or cannot be read or written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "" if fresh or not path.exists() else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Cannot read the session {path}: {_reason(error)}.") from None
        rows = [_parsed(line) for line in text.split("\n") if line.strip()]
        ours = not rows or (isinstance(rows[0], dict) and rows[0].get("localspec bench") == _VERSION)
        if not ours:
            raise UsageError(f"{path} is not a session of `localspec bench`.", "Give another file with --session.")
        try:
            # JSON's way to write a name of a file that is no text, and it is read back as it was
            file = path.open("w" if fresh else "a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"Cannot write the session {path}: {_reason(error)}.") from None
        session = cls(path, file, rows[1:])
        if not rows:
            session._write({"localspec bench": _VERSION})
        elif not text.endswith("\n"):
            file.write("\n")
        return session

    def add(self, run: Run) -> None:
        """Keeps a finished run; it is on disk when this returns."""
        row = run.to_json()
        self._write({"run": row})
        self.runs[run.key] = Run.from_json(row)  # times as they were written: a reader of the file sees the same

    def note(self, kind: str, facts: Any) -> None:
        """Keeps plain data about an invocation, once if it says nothing new."""
        known = self.notes.setdefault(kind, [])
        facts = json.loads(json.dumps(facts))
        if not known or known[-1] != facts:
            known.append(facts)
            self._write({kind: facts})

    def select(self, wanted: Callable[[RunKey], bool]) -> list[Run]:
        """The runs whose key is wanted."""
        return [run for key, run in self.runs.items() if wanted(key)]

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self, row: Any) -> None:
        """One line of the file."""
        if not isinstance(row, dict) or len(row) != 1:
            self.damaged += 1
            return
        ((kind, content),) = row.items()
        if kind != "run":
            self.notes.setdefault(kind, []).append(content)
            return
        try:
            run = Run.from_json(content)
        except _NOT_OURS:
            self.damaged += 1
            return
        self.runs[run.key] = run

    def _write(self, row: Any) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
