"""llama.cpp's own server tests pass on `localspec serve` as `table.toml` says.

They are taken from the source distribution that `packaging/peer` builds llama-server from. It is fetched once, and kept
in the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from platformdirs import user_cache_path

from localspec.server.http import listen
from tests.packaging.scripts import imported
from tests.server.upstream.table import Table

with imported("llama", "libraries") as _found:
    libraries = _found["libraries"]

pytestmark = [pytest.mark.trial, pytest.mark.skipif(sys.platform != "linux", reason="the adapter forks servers")]
ROOT = Path(__file__).resolve().parents[3]
TABLE = Table.read()
TESTS, TEMPLATES = "vendor/llama.cpp/tools/server/tests", "vendor/llama.cpp/models/templates"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their tests, and the chat templates that these read."""
    for name in ("requests", "openai"):
        pytest.importorskip(name)
    place = tmp_path_factory.mktemp("upstream")
    with tarfile.open(_sdist()) as archive:
        archive.extractall(place, members=_wanted(archive), filter="data")
    return place / f"llama_cpp_python-{libraries.UPSTREAM}" / TESTS


def _sdist() -> Path:
    place = user_cache_path("localspec") / "sdist"
    path = place / f"llama_cpp_python-{libraries.UPSTREAM}.tar.gz"
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != libraries.SHA256:
        place.mkdir(parents=True, exist_ok=True)
        try:
            libraries.fetch(sys.executable, place)
        except subprocess.CalledProcessError:
            pytest.skip("pip does not get the source distribution of llama-cpp-python")
    return path


def _wanted(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        if member.name.partition("/")[2].startswith((TESTS, TEMPLATES)):
            yield member


@pytest.mark.parametrize("file", TABLE.passes)
def test_file(file: str, folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-p", "tests.server.upstream.adapter", "-p", "no:cacheprovider", "-q"]
    command += ["-m", "not slow", "--tb=short", "--show-capture=no", f"--junitxml={report}", f"unit/{file}.py"]
    with listen.bind("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LOCALSPEC_DATA": str(tmp_path), "PORT": port}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=400)
    assert report.exists(), ran.stdout + ran.stderr
    passed, failed = _outcomes(report)
    expected = TABLE.failing(file)
    assert not failed - expected, f"worse: {sorted(failed - expected)}\n{ran.stdout}"
    assert len(passed) >= TABLE.passes[file], f"{len(passed)} tests passed\n{ran.stdout}"
    if expected & passed:
        print(f"pass now, and stand in the table as failing: {sorted(expected & passed)}")


def _outcomes(report: Path) -> tuple[set[str], set[str]]:
    """Names of those that passed, and of those that failed."""
    passed, failed = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            failed.add(case.attrib["name"])
        elif "skipped" not in kinds:
            passed.add(case.attrib["name"])
    return passed, failed
