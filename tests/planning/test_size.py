"""What decides who drafts stays small: its lines, and the numbers in it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "localspec"
PLAIN_NUMBERS = {0, 1, 2}
"""Numbers that choose nothing: counted apart (issue 45)."""


def lines(folder: str) -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in (PACKAGE / folder).glob("*.py"))


def numbers(tree: ast.AST) -> Iterator[tuple[int, complex]]:
    """(line, number) of every number that is written down."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
            yield node.lineno, node.value


def constants() -> list[str]:
    """Where a number stands in planning."""
    found = []
    for file in sorted((PACKAGE / "planning").glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found += [f"{file.name}:{line}: {value}" for line, value in numbers(tree) if value not in PLAIN_NUMBERS]
    return found


def named() -> dict[str, object]:
    """{`file.CONSTANT`: value} of planning."""
    found: dict[str, object] = {}
    for file in sorted((PACKAGE / "planning").glob("*.py")):
        module = importlib.import_module(f"localspec.planning.{file.stem}")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for one in node.targets if isinstance(node, ast.Assign) else ():
                targets = one.elts if isinstance(one, ast.Tuple) else [one]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                constants = [name for name in names if name.strip("_").isupper()]
                found |= {f"{file.stem}.{name.strip('_')}": getattr(module, name) for name in constants}
    return found


def test_every_constant_stands_in_the_page_with_its_value() -> None:
    page = (PACKAGE.parent / "docs" / "planning.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `([a-z_]+\.[A-Z_]+)` \| ([^|]+) \|", page, re.MULTILINE))
    written = named()
    assert set(told) == set(written)
    for name, value in written.items():
        if isinstance(value, int | float):
            assert float(told[name]) == value, name


def test_lines() -> None:
    assert lines("planning") <= 1856
    assert lines("engine") <= 1528  # 15 for the figures of an answer of several rounds


def test_constants() -> None:
    found = constants()
    assert len(found) <= 49, "\n".join(found)
