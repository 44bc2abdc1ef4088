"""What passes of llama.cpp's own server tests, and what is out of scope (`table.toml`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Table(NamedTuple):
    """The file as it is read."""

    passes: dict[str, int]
    """Of each file of tests."""
    files: dict[str, str]
    """Files that are not run, and why."""
    out: dict[str, dict[str, list[str]]]
    """Tests that are not run: by reason, then by file."""
    fails: dict[str, dict[str, list[str]]]
    """Tests that fail for reasons of ours, alike, by their whole names."""

    @classmethod
    def read(cls) -> Table:
        """The one beside this file."""
        return cls(**tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8")))

    def reason(self, file: str, test: str) -> str | None:
        """Why a test is out of scope; None = it is not.

        Args:
            file: without .py.
            test: with its parameters; a name of the table without them is that of all.
        """
        return next((why for why, names in _named(self.out, file) if {test, test.partition("[")[0]} & names), None)

    def failing(self, file: str) -> set[str]:
        """Names of the tests that fail, with their parameters."""
        return set().union(*(names for _, names in _named(self.fails, file)))


def _named(found: dict[str, dict[str, list[str]]], file: str) -> Iterator[tuple[str, set[str]]]:
    for why, files in found.items():
        yield why, set(files.get(file, ()))
