"""The quick check: which tests it takes for a change, and what it says of the rest."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    """packaging/quick.py as a module."""
    spec = importlib.util.spec_from_file_location("quick", ROOT / "packaging" / "quick.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "tier", "expected"),
    [
        ("localspec/planning/plan.py", 0, "tests/planning/test_plan.py"),
        ("localspec/engine/interfaces.py", 0, "tests/engine/test_loop.py"),  # through tests/fakes.py
        ("localspec/engine/slot.py", 0, "tests/engine/test_loop.py"),
        ("localspec/llama/library/batch.py", 3, "tests/drafters/test_heads_contract.py"),
        ("localspec/types.py", 0, "tests/test_distribution.py"),
        ("localspec/tui/shell/app.py", 0, "tests/tui/test_screens.py"),
        ("localspec/server/chat/chat.py", 1, "tests/server/test_chat.py"),
        ("tests/engine/test_stop.py", 0, "tests/engine/test_stop.py"),
        ("tests/planning/simulator.py", 0, "tests/planning/test_plan.py"),
        ("tests/planning/simulator.py", 0, "tests/planning/test_worlds.py"),  # it imports worlds.py, which does
        ("packaging/quick.py", 0, "tests/packaging/test_quick.py"),
        ("native/wide/product.c", 0, "tests/llama/test_wide.py"),
        ("models.toml", 0, "tests/models/test_catalog.py"),
    ],
)
def test_the_nearest_tests_of_a_file(quick: ModuleType, path: str, tier: int, expected: str) -> None:
    found = quick.tiers([path])
    assert expected in found[tier]
    files = [file for one in found for file in one]
    assert len(files) == len(set(files))


def test_no_file_of_tests_is_out_of_reach(quick: ModuleType) -> None:
    """A change of everything would run every test."""
    sources = [file.relative_to(ROOT).as_posix() for file in (ROOT / "localspec").rglob("*.py")]
    other = [*sources, "packaging/quick.py", "models.toml", "README.md"]
    assert sorted(file for tier in quick.tiers(other) for file in tier) == quick.tests()


def test_the_budget_is_kept_and_the_rest_is_named(quick: ModuleType) -> None:
    half = quick.BUDGET / 2
    tiers = [["near-long", "near-short"], ["far-long", "far-short"]]
    known = {"near-long": half, "near-short": half / 4, "far-long": half, "far-short": half / 4}
    taken, left = quick.choose(tiers, known)
    assert taken == ["near-short", "near-long", "far-short"]
    assert left == [("far-long", half)]
    assert "far-long (50 s)" in list(quick.left_out([], left))


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["localspec/engine/interfaces.py"], ["ruff format", "ruff check", "mypy", "pytest"]),
        (["native/verify.c"], ["build", "sanitizers", "pytest"]),
        (["README.md"], ["pytest"]),
    ],
)
def test_the_steps_of_a_change(quick: ModuleType, paths: list[str], expected: list[str]) -> None:
    assert [name for name, _ in quick.steps(paths, ["tests/test_layers.py"])] == expected


@pytest.mark.parametrize(
    ("path", "sentence"), [("no/such.py", "there is no no/such.py"), ("/", "inside the repository")]
)
def test_a_path_that_cannot_be_checked(path: str, sentence: str) -> None:
    command = [sys.executable, str(ROOT / "packaging" / "quick.py"), path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
