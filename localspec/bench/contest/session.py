"""A benchmark's runs on disk: JSON lines, only ever added to, each written out as soon as it is finished.

Whatever ends the program, at most the run under way is lost: a line that was cut off is left out when the file is read
again, and the next one starts on a line of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from localspec.bench.contest.run import Run, RunKey
from localspec.errors import UsageError

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
