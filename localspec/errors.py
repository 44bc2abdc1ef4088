"""The one exception tree. Every error says what happened and with which value; `hint` is what to do about it.

LocalspecError                 exit 1
├── UsageError                 exit 2   a bad option or value
├── ModelError                 exit 3   a model file or pair cannot be used
│   ├── ModelFileError                  missing, truncated, corrupt, not GGUF, unsupported architecture
│   ├── PairError                       target and draft do not share a tokenizer
│   ├── NoRoomError                     there is too little memory for it now
│   └── RunnerError                     the process that computes it ended or hangs
├── ContextOverflowError       exit 4   the prompt does not fit the context
├── DecodeError                exit 5   llama.cpp could not evaluate a pass
│   └── DeviceError                     the device failed that computed it
├── KernelError                exit 5   a logits row or an argument no verdict can be made from
│   └── GrammarError           exit 2   a grammar or schema became too complex while an answer was written
├── DownloadError              exit 6   a model could not be fetched: network, hub, access, disk
└── Cancelled                  exit 130 the caller asked to stop
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


class LocalspecError(Exception):
    """Something a person can read and act on. `message` is one sentence with the offending value; `hint` is one
    sentence or command that helps, or ""."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(LocalspecError):
    """A bad option, value or combination of options."""

    exit_code = 2


class ModelError(LocalspecError):
    """A model cannot be used."""

    exit_code = 3


class ModelFileError(ModelError):
    """A model file is missing, truncated, corrupt, not GGUF, or of an architecture that cannot generate text."""


class PairError(ModelError):
    """Target and draft model do not share a tokenizer."""


class NoRoomError(ModelError):
    """A model does not fit the memory that is left beside the models in use."""


class RunnerError(ModelError):
    """The process that computes a model ended by itself, was ended, or gives no sign of life."""


class ContextOverflowError(LocalspecError):
    """The prompt does not fit the context."""

    exit_code = 4


class DecodeError(LocalspecError):
    """llama.cpp could not evaluate a pass."""

    exit_code = 5


class DeviceError(DecodeError):
    """The device that computed a pass failed, such as a GPU that was lost."""


class KernelError(LocalspecError):
    """A logits row (NaN, nothing left to sample) or an argument that no verdict can be made from."""

    exit_code = 5


class GrammarError(KernelError):
    """A grammar or schema passed when it was read, and became too complex while an answer was written."""

    exit_code = 2


class DownloadError(LocalspecError):
    """A model could not be fetched: no network, no such repository, no access, wrong bytes, or a full disk."""

    exit_code = 6


class Cancelled(LocalspecError):
    """The caller asked to stop."""

    exit_code = 130


def told(error: BaseException) -> dict[str, str]:
    """For another process, which raises it again by `heard`: the kind of an error, and its sentences."""
    if not isinstance(error, LocalspecError):
        error = LocalspecError(f"The engine has failed: {error!r}.", "Start again; please report it.")
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def heard(kind: str, message: str, hint: str) -> LocalspecError:
    found: type[LocalspecError] = globals()[kind]
    return found(message, hint)


def reason(error: BaseException) -> str:
    """Why something failed, as a part of a sentence: the system's words without its number and its file."""
    if isinstance(error, UnicodeError):
        return "it is not UTF-8 text"
    words = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return re.sub(r"\[(Errno|WinError) -?\d+\] ", "", words.splitlines()[0]).rstrip(".")


@contextmanager
def explained(text: str, kind: type[LocalspecError] = LocalspecError) -> Iterator[None]:
    """Makes an OSError of the block an error of our own: this text, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{text}: {reason(error)}.") from None
