"""Imports go only to a lower layer (docs/design.md, "Layers"); within a package, to one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "localspec"
LEAVES = (
    *("errors", "types", "config", "methods", "options", "settings"),
    *("paths", "kept", "sqlite", "processes", "machine"),
)
"""Leaf modules may import one another; tests/test_circles.py finds circles."""
LAYERS = {
    **dict.fromkeys(LEAVES, 0),
    **dict.fromkeys(("native", "gguf"), 1),
    **dict.fromkeys(("engine", "llama", "models"), 2),
    **dict.fromkeys(("drafters", "planning", "grammar"), 3),
    "chat": 4,
    **dict.fromkeys(("runtime", "remote"), 5),
    **dict.fromkeys(("checks", "runner", "tools"), 6),
    **dict.fromkeys(("tui", "server", "bench", "training"), 7),
    "cli": 8,
    "__main__": 9,
}
ROOMS = ("text", "talk", "widgets", "screens", "shell")
"""The rooms of tui: each imports only from those before it."""
ONLY_IN = {"llama_cpp": ("llama/library/lib.py",), "textual": ("tui/",)}
"""Libraries that may be imported in these places only."""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def home(path: Path) -> str:
    """The noun a file belongs to: a package or a module directly in localspec; "" for localspec/__init__.py."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything imported, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module}.{name.name}") for name in node.names)


def faults(path: Path, text: str) -> list[str]:
    """What is wrong with a file's imports."""
    found = []
    own, where = home(path), path.relative_to(PACKAGE).as_posix()
    for line, name in imports(ast.parse(text)):
        root, *rest = name.split(".")
        if not root:
            found.append(f"{where}:{line}: relative import {name!r}")
        places = ONLY_IN.get(root)
        if places is not None and not where.startswith(places):
            found.append(f"{where}:{line}: {root} may be imported in {places[0]} only")
        if root != "localspec" or not rest or not own:
            continue
        other = rest[0]
        if other not in LAYERS and other not in ("__version__",):
            found.append(f"{where}:{line}: {name} is in no layer")
        elif other != own and other in LAYERS and not _may(own, other):
            found.append(f"{where}:{line}: {own} ({LAYERS[own]}) imports {other} ({LAYERS[other]})")
    return found


def room_faults(path: Path, text: str) -> list[str]:
    """Imports of a file of tui from a room above its own."""
    where = path.relative_to(PACKAGE)
    above = ROOMS[ROOMS.index(where.parts[1]) + 1 :] if len(where.parts) > 2 else ()
    rooms = {f"localspec.tui.{room}" for room in above}
    found = imports(ast.parse(text))
    return [f"{where}:{line}: {name}" for line, name in found if ".".join(name.split(".")[:3]) in rooms]


def _may(own: str, other: str) -> bool:
    return LAYERS[other] < LAYERS[own] or {own, other} <= set(LEAVES)


def test_every_file_has_a_layer() -> None:
    assert sorted({home(path) for path in sources()} - set(LAYERS) - {""}) == []


def test_imports_go_down() -> None:
    assert [fault for path in sources() for fault in faults(path, path.read_text(encoding="utf-8"))] == []


def test_rooms_of_the_chat_import_only_from_those_before_them() -> None:
    files = sorted((PACKAGE / "tui").rglob("*.py"))
    assert [fault for path in files for fault in room_faults(path, path.read_text(encoding="utf-8"))] == []


def test_an_import_from_a_room_above_is_noticed() -> None:
    path = PACKAGE / "tui" / "widgets" / "pane.py"
    assert room_faults(path, "def f():\n    from localspec.tui.screens.chat import ChatScreen")
    assert room_faults(path, "from localspec.tui import shell")
    assert not room_faults(path, "from localspec.tui.talk.session import Session")


def test_the_package_itself_imports_nothing_of_its_own_when_imported() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {name.split(".")[0] for node in at_import for _, name in imports(node)}
    assert names <= {"__future__", "importlib", "typing"}


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("engine/loop.py", "from localspec.llama.cache.context import Context"),
        ("engine/loop.py", "from localspec import drafters"),
        ("engine/loop.py", "def f():\n    import localspec.runtime.engine"),
        ("native/kernels.py", "from localspec.engine.interfaces import Draft"),
        ("native/kernels.py", "from localspec import gguf"),
        ("tui/shell/app.py", "from localspec.server.http import app"),
        ("drafters/draft_model.py", "import llama_cpp"),
        ("llama/cache/context.py", "from llama_cpp import llama_cpp as c"),
        ("cli/commands/chat.py", "import textual.app"),
        ("engine/loop.py", "from . import stats"),
        ("engine/loop.py", "from localspec.unheard import of"),
    ],
)
def test_a_wrong_import_is_noticed(where: str, text: str) -> None:
    assert faults(PACKAGE / where, text)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("native/gpu.py", "from localspec.native import library"),
        ("engine/loop.py", "from localspec.native import kernels\nimport numpy as np"),
        ("engine/loop.py", "from localspec.engine.slot import TextStream"),
        ("llama/library/lib.py", "import llama_cpp"),
        ("config.py", "from localspec.types import Rule"),
    ],
)
def test_a_right_import_is_not(where: str, text: str) -> None:
    assert faults(PACKAGE / where, text) == []
