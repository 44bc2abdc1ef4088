"""No two modules need each other: the graph of imports has no circle, wherever an import stands.

An import under TYPE_CHECKING, or inside a function, counts like any other: it may make the start faster, and may not
close a circle. A name that a package only gives on counts as the module that it comes from."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
Graph = Mapping[str, set[str]]


def name_of(path: Path) -> str:
    """The module in a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources() -> dict[str, str]:
    """The texts of all modules."""
    return {name_of(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "localspec").rglob("*.py"))}


def imported(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """(module, name there, name here) of each import, wherever it stands; a module as a whole has no name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", alias.asname or alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name, alias.asname or alias.name) for alias in node.names)


def given_on(tree: ast.Module) -> set[str]:
    """The names in a module's `__all__`."""
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    lists = (node.value for node in assigned if ast.unparse(node.targets[0]) == "__all__")
    return {name for node in lists for name in ast.literal_eval(node)}


def graph_of(texts: Mapping[str, str]) -> Graph:
    """Who imports whom."""
    trees = {name: ast.parse(text) for name, text in texts.items()}
    public = {name: given_on(tree) for name, tree in trees.items()}
    gifts = {
        (module, here): (where, there)
        for module, tree in trees.items()
        for where, there, here in imported(tree)
        if here in public[module]
    }

    def home(where: str, name: str) -> str:
        while (where, name) in gifts:
            where, name = gifts[where, name]
        return f"{where}.{name}" if f"{where}.{name}" in trees else where

    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        homes = (home(where, there) for where, there, here in imported(tree) if (module, here) not in gifts)
        found[module] = {other for other in homes if other in trees and other != module}
    return found


def circles(graph: Graph) -> list[list[str]]:
    """The modules that reach one another (Tarjan's strongly connected components), each circle sorted."""
    low: dict[str, int] = {}
    held: list[str] = []
    found: list[list[str]] = []
    for start in graph:
        way = [] if start in low else [(start, iter(graph[start]), len(low))]
        while way:
            node, others, index = way[-1]
            if node not in low:
                low[node] = index
                held.append(node)
            other = next(others, None)
            if other is None:
                way.pop()
                if way:
                    before = way[-1][0]
                    low[before] = min(low[before], low[node])
                if low[node] == index:
                    at = held.index(node)
                    found.append(sorted(held[at:]))
                    low |= dict.fromkeys(held[at:], len(graph))  # what comes later is not on a circle with these
                    del held[at:]
            elif other not in low:
                way.append((other, iter(graph[other]), len(low)))
            else:
                low[node] = min(low[node], low[other])
    return sorted(circle for circle in found if len(circle) > 1)


def test_there_is_no_circle() -> None:
    assert circles(graph_of(sources())) == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"a": "import b", "b": "import c", "c": ""}, []),
        ({"a": "import b", "b": "import c", "c": "import b"}, [["b", "c"]]),
        ({"a": "import b\nimport c", "b": "import d", "c": "import d", "d": ""}, []),
        ({"a": "import b", "b": "def f():\n    from a import g"}, [["a", "b"]]),
        ({"a": "from b import g", "b": "if TYPE_CHECKING:\n    from a import T"}, [["a", "b"]]),
        ({"a": "import b\nimport c", "b": "import a", "c": "import d", "d": "import c"}, [["a", "b"], ["c", "d"]]),
        ({"p": "from p.a import f\n__all__ = ['f']", "p.a": "", "p.b": "from p import f"}, []),
        ({"p": "from p.a import f\n__all__ = ['f']", "p.a": "import p.b", "p.b": "from p import f"}, [["p.a", "p.b"]]),
        ({"p": "from p.a import f", "p.a": "from p import g"}, [["p", "p.a"]]),
        ({"p": "", "p.a": "from p import b", "p.b": "from p import a"}, [["p.a", "p.b"]]),
    ],
)
def test_a_circle_is_found_wherever_its_imports_stand(texts: dict[str, str], expected: list[list[str]]) -> None:
    assert circles(graph_of(texts)) == expected
