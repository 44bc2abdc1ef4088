"""The plug-in of the documentation: really installed, held to the drafters' contract, and used by every command."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from localspec.drafters import plugin
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.cli.conftest import Command, command  # noqa: F401 - a fixture
from tests.drafters import plug_ins, test_contract

PROMPT = "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo."
CONTRACT = [
    test
    for name, test in inspect.getmembers(test_contract, inspect.isfunction)
    if name.startswith("test_") and test_contract.every.mark in getattr(test, "pytestmark", [])
]


def _builds_wheels() -> bool:
    """Whether setuptools is there and builds wheels by itself, as it does since 70.1."""
    try:
        return int(version("setuptools").split(".")[0]) > 70
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which it is installed, which Python looks into: by pip, where it can build without a network."""
    folder, copy = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    for file in plug_ins.EXAMPLE.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())  # setuptools writes beside what it builds
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("pip") and _builds_wheels():
            options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
            subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, copy], check=True)
            patch.syspath_prepend(str(folder))
        else:
            project = tomllib.loads((copy / "pyproject.toml").read_text("utf-8"))["project"]
            (copy / "localspec_repeat.py").rename(folder / "localspec_repeat.py")
            plug_ins.offer(folder, patch, **project["entry-points"][plugin.ENTRY_POINT_GROUP])
        yield folder


def test_it_is_short() -> None:
    files = [plug_ins.EXAMPLE / name for name in ("pyproject.toml", "localspec_repeat.py")]
    assert sum(len(file.read_text("utf-8").splitlines()) for file in files) < 60


def test_it_is_found_where_it_was_installed(installed: Path) -> None:
    assert plugin.installed() == ["repeat"]
    assert plugin.make("repeat", plug_ins.setup()).name == "repeat"
    assert Path(sys.modules["localspec_repeat"].__file__ or "").parent == installed


@pytest.mark.parametrize("test", CONTRACT, ids=lambda test: test.__name__)
def test_it_keeps_the_contract(test: Any, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        test_contract.MAKERS, "repeat", lambda: plugin.make("localspec_repeat:Repeat", plug_ins.setup())
    )
    values = {"nodes": 3, "depth": 0}
    wanted = {name: values[name] for name in inspect.signature(test).parameters if name in values}
    test(name="repeat", **({} if hasattr(test, "hypothesis") else wanted))


def test_the_contract_is_not_empty() -> None:
    assert len(CONTRACT) > 8


@pytest.fixture(scope="module")
def engine(installed: Path) -> Iterator[Engine]:
    with Engine.load(drafter="repeat", exact="strict") as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_its_text_is_that_of_plain_decoding(temperature: float, engine: Engine) -> None:
    found = {}
    for drafter in ("none", "repeat"):
        options: dict[str, Any] = {"sampling": SamplingParams(temperature=temperature), "seed": 5, "ignore_end": True}
        generation = engine.generate(PROMPT, drafter=drafter, max_tokens=64, **options)
        found[drafter] = (generation.text(), generation.tokens)
        assert bool(generation.stats.drafted_by_drafter.get("repeat")) == (drafter == "repeat")
    assert found["none"] == found["repeat"]
    assert engine.dropped == {}


def test_commands_know_it_by_name_and_by_class(command: Command, installed: Path, tmp_path: Path) -> None:  # noqa: F811
    few = ("--max-tokens", "8", "--temperature", "0")
    result = command("run", PROMPT, *few, "--json", "--drafter", "repeat", "--max-draft-tokens", "2")
    answer = json.loads(result.out)
    assert answer["stats"]["drafted_by_drafter"].keys() == {"repeat"}, result.err
    config = {"method": "custom_class", "model": "localspec_repeat.Repeat", "num_speculative_tokens": 2}
    result = command("run", PROMPT, *few, "--json", "--speculative-config", json.dumps(config))
    assert json.loads(result.out)["tokens"] == answer["tokens"]
    assert json.loads(result.out)["stats"]["drafted_by_drafter"].keys() == {"repeat"}
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "Sort: 3, 1, 2, 3, 1"}\n', encoding="utf-8")
    result = command("verify", "--prompts", str(prompts), *few, "--drafter", "localspec_repeat:Repeat")
    assert (result.code, "byte-equal" in result.out) == (0, True), result.out + result.err
    result = command(
        "bench", "run", "--prompts", str(prompts), "--temperature", "0", "--tokens", "8", "--rounds", "1", "--lengths",
        "2", "--drafters", "repeat,localspec_repeat:Repeat", "--json",
    )  # fmt: skip
    (cell,) = json.loads(result.out)["cells"]
    names = [one["contender"] for one in cell["contenders"]]
    assert {"repeat 2", "localspec_repeat:Repeat 2"} <= set(names), result.err
