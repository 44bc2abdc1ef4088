"""What the child writes to standard error, llama.cpp's log and last words among it, kept for its parent.

The file has no name: the system deletes it when the last process that has it open ends, however it ends.
"""

from __future__ import annotations

import os
import re
import tempfile

_MOST_BYTES = 1 << 18
"""It begins anew when so much is written."""
_LAST_BYTES = 1 << 14
"""So much of the end is read."""
_CRASH = re.compile(r"GGML_ASSERT|GGML_ABORT|ggml_abort|terminate called|CUDA error", re.IGNORECASE)
"""What lines say that llama.cpp, ggml or C++ write before they end the process."""
_PLACE = re.compile(r"^\S+\.(?:c|cpp|h|hpp|cu|cuh|m):\d+: ")
"""The place in a source file, at the beginning of such a line."""


class Tape:
    """The parent's side: a file that the child writes to."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the child lives

    def fileno(self) -> int:
        """For the child's standard error."""
        return self._file.fileno()

    def lines(self) -> list[str]:
        """The last ones, oldest first."""
        end = os.fstat(self.fileno()).st_size
        start = max(0, end - _LAST_BYTES)
        text = os.pread(self.fileno(), end - start, start).decode("utf-8", "replace")
        return [line for line in text.splitlines()[1 if start else 0 :] if line.strip()]

    def close(self) -> None:
        """Forgets it."""
        self._file.close()


def cause(lines: list[str]) -> str:
    """Why the process ended, in llama.cpp's words; "" = it gave no reason."""
    found = [line for line in lines if _CRASH.search(line)]
    return _PLACE.sub("", found[-1]).strip() if found else ""


def write(text: str) -> None:
    """The child's side: writes to standard error at once, past Python's buffer."""
    if os.fstat(2).st_size > _MOST_BYTES:
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
    os.write(2, text.encode("utf-8", "replace"))
