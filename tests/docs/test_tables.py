"""Tables that stand in the program stand in the documentation as they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.methods import TABLE
from tests.docs import tables
from tests.docs.page import DOCS

PAGES = [page for page, names in tables.pages().items() if names]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_is_that_of_the_program(page: Path) -> None:
    text = page.read_text("utf-8")
    assert tables.printed(text) == text, "`python -m tests.docs.tables` prints them anew"


def test_every_table_stands_on_one_page() -> None:
    names = [name for names in tables.pages().values() for name in names]
    assert sorted(names) == sorted(tables.ROWS)


def test_a_table_that_differs_is_noticed() -> None:
    (page,) = [page for page, names in tables.pages().items() if "signs" in names]
    text = page.read_text("utf-8")
    changed = text.replace("| `d` | blue | draft model |", "| `d` | blue | model |")
    assert changed != text
    assert tables.printed(changed) == text


@pytest.mark.parametrize(("header", "kind", "more"), [("what it does", "search", ["none"]), ("the file", "head", [])])
def test_every_drafter_says_what_it_does(header: str, kind: str, more: list[str]) -> None:
    _, _, table = (DOCS / "drafters.md").read_text("utf-8").partition(f"| `--drafter` | {header} | ")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == [*(one.name for one in TABLE if one.kind == kind), *more]
