"""Code that cites the documentation cites what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("localspec", "native", "tests", "packaging")
CITATION = re.compile(r"(?<!ggml's )(?<![\w/])(docs/[a-z-]+\.md)(?:,\s+\"([^\"]+)\")?")
SUFFIXES = {".py", ".c", ".h", ".md", ".toml", ".txt", ".sh", ".yml"}


def cited() -> list[tuple[str, str, str]]:
    """(file, page, heading or "") of every citation."""
    found = []
    for folder in FOLDERS:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in SUFFIXES and file != Path(__file__):
                text = " ".join(file.read_text(encoding="utf-8").replace("*", " ").replace("#", " ").split())
                where = file.relative_to(ROOT).as_posix()
                found += [(where, page, heading) for page, heading in CITATION.findall(text)]
    return found


def headings(page: str) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))


def test_there_are_citations() -> None:
    assert any(heading for _, _, heading in cited())


@pytest.mark.parametrize(("file", "page", "heading"), cited(), ids=" ".join)
def test_a_citation_leads_somewhere(file: str, page: str, heading: str) -> None:
    assert (ROOT / page).is_file(), f"{file} cites {page}"
    assert not heading or heading in headings(page), f"{file} cites {page}, {heading!r}"


def test_the_readme_fits_a_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110
