"""The public names, and what importing them costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import localspec

NAMES = [
    "Draft",
    "Drafter",
    "Engine",
    "EngineSettings",
    "Event",
    "FinishReason",
    "Generation",
    "Grammar",
    "LocalspecError",
    "Message",
    "Options",
    "RequestStats",
    "Rule",
    "SamplingParams",
    "__version__",
]


def test_the_public_names_are_these() -> None:
    assert sorted(localspec.__all__) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    found = getattr(localspec, name)
    assert found
    if name != "__version__":
        assert found.__name__ == name
        assert found.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"localspec.*'Nothing'"):
        localspec.Nothing  # noqa: B018


def test_names_for_type_checkers_are_the_names_at_run_time() -> None:
    tree = ast.parse(Path(localspec.__file__ or "").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted([*told, "__version__"]) == NAMES
    for name, module in told.items():
        assert getattr(localspec, name).__module__ == module


def test_importing_costs_only_what_is_used() -> None:
    script = """
import json, sys
heavy = ("llama_cpp", "numpy", "jinja2", "rich", "platformdirs", "localspec.errors")
loaded = lambda: [name for name in heavy if name in sys.modules]
import localspec
steps = [loaded()]
localspec.Message
steps.append(loaded())
localspec.SamplingParams, localspec.EngineSettings, localspec.Drafter
steps.append(loaded())
print(json.dumps(steps))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[], ["localspec.errors"], ["numpy", "localspec.errors"]]
