"""What a release without a compiler is made of: renamed bindings, pinned sources, and other dependencies."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localspec.llama.library import lib
from tests.packaging.scripts import imported

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[ModuleType, ModuleType]]:
    """packaging/llama/libraries.py and release.py."""
    with imported("llama", "libraries", "release") as found:
        yield found["libraries"], found["release"]


def test_a_binding_that_still_asks_for_the_other_package_is_refused(scripts: tuple[ModuleType, ModuleType]) -> None:
    libraries, _ = scripts
    text = libraries.rename("one.py", 'from llama_cpp._ctypes_extensions import x\n_lib_base_name = "llama"\n')
    assert text == 'from localspec_llama._ctypes_extensions import x\n_lib_base_name = "localspec_llama"\n'
    with pytest.raises(libraries.Refusal, match=r"one\.py imports llama_cpp under its own name: import llama_cpp\._x"):
        libraries.rename("one.py", "import llama_cpp._x\n")


def test_only_the_pinned_source_distribution_is_built(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    libraries, _ = scripts
    (tmp_path / "other.tar.gz").write_bytes(b"another")
    with pytest.raises(libraries.Refusal, match=r"other\.tar\.gz is not the source .* its checksum differs"):
        libraries.lay_out(tmp_path / "other.tar.gz", tmp_path / "tree", "1")
    assert libraries.UPSTREAM == lib.PINNED


def test_a_release_depends_on_localspec_llama(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    _, release = scripts
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (root / "left").write_text("untracked")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "pyproject.toml"], cwd=root, check=True)
    tree = release.lay_out(root, tmp_path / "tree")
    assert [path.name for path in tree.iterdir()] == ["pyproject.toml"], "files that are not tracked stay out"
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    assert f"localspec-llama=={lib.PINNED}.*" in project["dependencies"]
    assert not any(one.startswith("llama-cpp-python") for one in project["dependencies"])
    assert project["optional-dependencies"]["llama-cpp-python"] == [f"llama-cpp-python=={lib.PINNED}"]
    with pytest.raises(release.Refusal, match="is not empty"):
        release.lay_out(root, tree)
    with pytest.raises(release.Refusal, match="does not depend on"):
        release.released("[project]\n")
