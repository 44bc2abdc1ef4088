"""Tables that stand in the program stand in the documentation as they are there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import tables

PAGES = [page for page, names in tables.pages().items() if names]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_is_that_of_the_program(page: Path) -> None:
    text = page.read_text("utf-8")
    assert tables.printed(text) == text, "`python -m tests.docs.tables` prints them anew"


def test_every_table_stands_on_one_page() -> None:
    names = [name for names in tables.pages().values() for name in names]
    assert sorted(names) == sorted(tables.ROWS)


def test_a_table_that_differs_is_noticed() -> None:
    (page,) = [page for page, names in tables.pages().items() if "heads" in names]
    text = page.read_text("utf-8")
    assert tables.printed(text.replace("| Cai et al. 2024 |", "| Cai 2023 |")) == text
