"""No file over 600 lines, no function over 60: what does not fit on a page has more than one subject.

The whole program has a ceiling, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES, MOST_FUNCTION_LINES = 600, 60
CEILING_LINES, CEILING_MODULES = 56_134, 229
"""Lines and modules of localspec/. A commit that makes the tree smaller lowers them to what is there; one that raises
them says why here: tools in the chat took 1216 lines, of which 116 are more than was meant; these have to go."""


def sources() -> list[Path]:
    python = (ROOT / "localspec").rglob("*.py")
    native = (
        path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".h", ".cpp", ".cu", ".m", ".metal")
    )
    return sorted([*python, *native])


def functions(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1
        return
    start, head = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("}"):
            name = re.search(r"(\w+)\s*\(", head)
            if name and not re.match(r"\s*(typedef|struct|enum|union)\b", head):
                yield name[1], number - start + 1
            head = ""
        elif line[:1].isalpha() and not line.rstrip().endswith(";"):
            if not head or head.rstrip().endswith(("}", ";")):
                start, head = number, ""
            head += line + " "


def test_files_and_functions_fit_on_a_page() -> None:
    long = []
    for path in sources():
        text = path.read_text(encoding="utf-8")
        where, lines = path.relative_to(ROOT).as_posix(), len(text.splitlines())
        if lines > MOST_LINES:
            long.append((where, lines))
        long += [(f"{where}: {name}", lines) for name, lines in functions(path, text) if lines > MOST_FUNCTION_LINES]
    assert long == []


def test_the_program_stays_under_its_ceiling() -> None:
    modules = list((ROOT / "localspec").rglob("*.py"))
    lines = sum(len(module.read_text(encoding="utf-8").splitlines()) for module in modules)
    assert lines <= CEILING_LINES
    assert len(modules) <= CEILING_MODULES


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.py", "def long():\n" + "    pass\n" * 60),
        ("x.py", "class A:\n    async def long(self):\n" + "        pass\n" * 60),
        ("x.c", "static int long(int a) {\n" + "    a++;\n" * 59 + "}\n"),
        ("x.c", "int before;\nint\nlong(int a,\n     int b)\n{\n" + "    a++;\n" * 59 + "}\n"),
    ],
)
def test_a_long_function_is_noticed(name: str, text: str) -> None:
    ((found, lines),) = functions(Path(name), text)
    assert found == "long"
    assert lines > MOST_FUNCTION_LINES


def test_tables_and_types_in_c_are_no_functions() -> None:
    text = (
        "static const int table[] = {\n" + "    1,\n" * 80 + "};\ntypedef struct s {\n" + "    int a;\n" * 80 + "} s;\n"
    )
    assert list(functions(Path("x.c"), text)) == []
