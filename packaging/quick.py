"""The quick check: what a change can break, in at most a minute and a half.

`packaging/check --quick [PATH...]` calls it. Without a path it takes what differs from the last commit, or the last
commit's own files where nothing differs. It runs ruff on those files, mypy, the sanitizers after a change of C, and the
nearest tests. Tests mirror the tree, so for localspec/X/name.py the nearest are

1. tests/X that import the module, themselves or through a file that they share;
2. all other tests of tests/X;
3. tests elsewhere that import it;
4. the contract tests of each package that imports it.

It takes them in this order for as long as their known seconds fit, and says which it left out.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 100.0
"""Seconds of tests, over the two processes that run them: 50 s on the clock, of the 90 for the whole quick check."""
UNKNOWN = 3.0
"""Seconds that a file of tests is taken to need before it has run once; most need less."""
ALWAYS = ("tests/test_layers.py", "tests/test_circles.py", "tests/test_sizes.py", "tests/test_exports.py")
"""They look at the whole tree, in two seconds."""


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="packaging/check --quick", description=__doc__.split("\n\n")[0])
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files that changed (default: what git says)")
    parser.add_argument("--list", action="store_true", help="only say what would run")
    options = parser.parse_args()
    started = time.monotonic()
    paths = named(options.paths) if options.paths else changed()
    taken, left = choose(tiers(paths), seconds())
    print(f"changed: {', '.join(paths) or 'nothing'}")
    failed = [] if options.list else [name for name, command in steps(paths, taken) if not run(name, command)]
    for file in taken if options.list else []:
        print(f"test: {file}")
    for reason in left_out(paths, left):
        print(f"left out: {reason}")
    if failed:
        print(f"failed: {', '.join(failed)}")
    print(f"quick check: {time.monotonic() - started:.0f} s. packaging/check runs everything.")
    return 1 if failed else 0


# -- what changed ----------------------------------------------------------------------------------------------------


def named(paths: Iterable[str]) -> list[str]:
    """Paths relative to the repository; a folder stands for the files that git knows below it."""
    found = [Path(path).resolve() for path in paths]
    if wrong := [path for path, file in zip(paths, found, strict=True) if not file.exists()]:
        sys.exit(f"packaging/check: there is no {wrong[0]}.")
    if any(not file.is_relative_to(ROOT) for file in found):
        sys.exit("packaging/check: only paths inside the repository can be checked.")
    return _lines("ls-files", "-co", "--exclude-standard", "--", *(str(file) for file in found))


def changed() -> list[str]:
    """What differs from the last commit, or the last commit's files where nothing does."""
    found = _lines("diff", "--name-only", "HEAD") + _lines("ls-files", "-o", "--exclude-standard")
    return sorted(set(found or _lines("diff", "--name-only", "HEAD~1", "HEAD")))


def _lines(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


# -- which tests -----------------------------------------------------------------------------------------------------


def tiers(paths: Sequence[str]) -> list[list[str]]:
    """Files of tests, the nearest to what changed first; none twice."""
    found: list[list[str]] = [[] for _ in range(4)]
    for path in paths:
        for tier, files in enumerate(_nearest(path)):
            found[tier] += files
    found[0] += ALWAYS if any(path.startswith(("localspec/", "native/")) for path in paths) else ()
    tier_of = {file: tier for tier in reversed(range(4)) for file in found[tier]}
    return [sorted(file for file in tier_of if tier_of[file] == tier) for tier in range(4)]


def _nearest(path: str) -> Iterator[list[str]]:
    """The four tiers of one changed file."""
    parts = Path(path).parts
    if not path.endswith(".py"):
        yield _tests_in(path)
    elif parts[0] == "tests":
        yield [path] if parts[-1].startswith("test_") and (ROOT / path).exists() else users(path)
    elif parts[0] == "localspec":
        own = [file for file in tests() if file.startswith(f"tests/{parts[1]}/")]
        using = users(path)
        yield [file for file in own if file in using] + [file for file in using if Path(file).parent == Path("tests")]
        yield own
        yield using
        packages = {Path(file).parts[1] for file in importers(path)} - {parts[1]}
        yield [file for file in tests() if "contract" in file and Path(file).parts[1] in packages]
    else:
        stem = Path(path).stem
        yield [file for file in tests() if file.startswith("tests/packaging/") and file.endswith(f"test_{stem}.py")]
        yield [file for file in tests() if file.startswith("tests/packaging/")]


def _tests_in(path: str) -> list[str]:
    """Of a file that is no Python."""
    if path == "models.toml":
        return [file for file in tests() if file.startswith("tests/models/")]
    if path.startswith("native/wide/"):
        return [file for file in tests() if file.startswith("tests/llama/test_wide")]
    if path.endswith(".md"):
        return [file for file in tests() if file.startswith("tests/docs/")]
    if path.startswith("tests/tui/__snapshots__/"):
        return ["tests/tui/test_pictures.py"]
    return []


def choose(tiers: Sequence[Sequence[str]], known: dict[str, float]) -> tuple[list[str], list[tuple[str, float]]]:
    """(files that fit into the budget, what is left out with its seconds); within a tier the quick ones come first."""
    taken, left, room = list[str](), list[tuple[str, float]](), BUDGET
    for tier in tiers:
        for file in sorted(tier, key=lambda file: known.get(file, UNKNOWN)):
            cost = known.get(file, UNKNOWN)
            if cost <= room:
                taken.append(file)
                room -= cost
            else:
                left.append((file, cost))
    return taken, left


def seconds() -> dict[str, float]:
    """What each file of tests took when it last ran, from pytest's cache (tests/conftest.py writes it)."""
    file = ROOT / ".pytest_cache" / "v" / "localspec" / "seconds"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


@functools.cache
def tests() -> list[str]:
    """All files of tests."""
    return sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py"))


def users(path: str) -> list[str]:
    """Files of tests that import this file, themselves or through a file that they share."""
    found, open_ = set[str](), [path]
    while open_:
        wanted = open_.pop()
        for file in (file for file, needs in _imports("tests").items() if wanted in needs and file not in found):
            found.add(file)
            open_.append(file)
    return sorted(file for file in found if Path(file).name.startswith("test_"))


def importers(path: str) -> list[str]:
    """Files of localspec that import this one."""
    return [file for file, needs in _imports("localspec").items() if path in needs]


@functools.cache
def _imports(folder: str) -> dict[str, set[str]]:
    """By file of this folder, the files of the repository that it imports."""
    return {file.relative_to(ROOT).as_posix(): set(_imported(file)) for file in (ROOT / folder).rglob("*.py")}


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
        else:
            continue
        for name in names:
            path = name.replace(".", "/")
            yield from (f"{path}.py", f"{path}/__init__.py")


# -- what runs -------------------------------------------------------------------------------------------------------


def steps(paths: Sequence[str], files: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """(name, command) of each step."""
    python = [path for path in paths if path.endswith(".py") and (ROOT / path).exists()]
    if python:
        yield "ruff format", [sys.executable, "-m", "ruff", "format", "--check", *python]
        yield "ruff check", [sys.executable, "-m", "ruff", "check", *python]
    if any(path.startswith(("localspec/", "tests/")) for path in python):
        yield "mypy", [sys.executable, "-m", "mypy"]
    native = [path for path in paths if path.startswith("native/")]
    if native:
        wide = sum(path.startswith("native/wide/") for path in native)
        yield "build", ["packaging/native"]
        yield "sanitizers", ["packaging/sanitize", "wide" if wide == len(native) else "all" if wide else "core"]
    if files:
        yield (
            "pytest",
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not trial", *files],
        )


def run(name: str, command: Sequence[str]) -> bool:
    """Whether it went well."""
    print(f"\n== {name}", flush=True)
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, check=False).returncode == 0


def left_out(paths: Sequence[str], left: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Sentences: what did not run although the change could break it."""
    for file, cost in left:
        yield f"{file} ({cost:.0f} s)"
    wide = [path for path in paths if path in ("pyproject.toml", "tests/conftest.py", "tests/fakes.py")]
    if wide:
        yield f"everything else that {wide[0]} can change; run packaging/check"
    yield "trials"


if __name__ == "__main__":
    sys.exit(main())
