"""The exception tree: exit codes, and messages a person can act on."""

from __future__ import annotations

import re

import pytest

from localspec import errors
from localspec.errors import LocalspecError, heard, told

CODES = {
    "LocalspecError": 1,
    "UsageError": 2,
    "ModelError": 3,
    "ModelFileError": 3,
    "PairError": 3,
    "NoRoomError": 3,
    "RunnerError": 3,
    "ContextOverflowError": 4,
    "DecodeError": 5,
    "DeviceError": 5,
    "KernelError": 5,
    "GrammarError": 2,
    "DownloadError": 6,
    "Cancelled": 130,
}
"""Scripts depend on these."""


def classes() -> dict[str, type[LocalspecError]]:
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if value.__module__ == errors.__name__}


def test_exit_codes_are_pinned() -> None:
    assert {name: found.exit_code for name, found in classes().items()} == CODES


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    lines = [line for line in (errors.__doc__ or "").splitlines() if re.match(r"[ │├└─]*[A-Z]\w+ {2,}", line)]
    drawn: dict[str, int] = {}
    for line in lines:
        name = re.findall(r"[A-Z]\w+", line)[0]
        code = re.search(r"exit +(\d+)", line)
        drawn[name] = int(code[1]) if code else CODES[classes()[name].__mro__[1].__name__]
    assert drawn == CODES


@pytest.mark.parametrize("name", CODES)
def test_an_error_says_what_happened_and_what_to_do(name: str) -> None:
    kind = classes()[name]
    assert issubclass(kind, LocalspecError)
    error = kind("The prompt has 9 tokens.", "Shorten it.")
    assert (error.message, error.hint) == ("The prompt has 9 tokens.", "Shorten it.")
    assert str(error) == "The prompt has 9 tokens. Shorten it."
    assert str(kind("Only this.")) == "Only this."
    assert kind("x").hint == ""


@pytest.mark.parametrize("name", CODES)
def test_every_error_is_documented(name: str) -> None:
    assert classes()[name].__doc__


@pytest.mark.parametrize("name", CODES)
def test_an_error_is_the_same_in_another_process(name: str) -> None:
    again = heard(**told(classes()[name]("It broke.", "Mend it.")))
    assert (type(again).__name__, again.message, again.hint) == (name, "It broke.", "Mend it.")


def test_a_fault_of_ours_is_told_as_one() -> None:
    assert heard(**told(KeyError("x"))).message == "The engine has failed: KeyError('x')."
