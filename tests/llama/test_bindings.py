"""llama-cpp-python of the right version serves, else localspec-llama: the same bindings under other names."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from localspec.checks import doctor
from localspec.errors import LocalspecError
from localspec.llama.library import lib

BUILD = Path(__file__).parents[2] / "packaging" / "llama" / "libraries.py"
REPORT = """
import json, sys
from localspec.llama.library import lib
from localspec.grammar.grammar import Grammar
from localspec.grammar.matcher import Compiler
from localspec.llama.model import Model
from localspec.checks.doctor import examine_machine
module, more = lib.api(), lib.extension()
with Model.load(sys.argv[1]) as model:
    tokens = model.tokenize("one two", special=False, add_bos=False).tolist()
    mask = Compiler(model).compile(Grammar.regex("[0-9]")).mask(())
    digits = sorted(model.piece(token).decode() for token in mask.nonzero()[0].tolist() if model.piece(token).strip())
findings = {one.name: [one.value, one.advice, one.command] for one in examine_machine(with_wide=False)}
print(json.dumps({
    "used": lib.installed().distribution, "library": module._lib._name,
    "modules": [module.__name__, more.__name__],
    "tokens": tokens, "digits": digits, "packages": findings["packages"], "other": "llama_cpp" in sys.modules,
}))
"""


@pytest.fixture(scope="module")
def libraries() -> ModuleType:
    """packaging/llama/libraries.py."""
    spec = importlib.util.spec_from_file_location("libraries", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def distribution(folder: Path, name: str, version: str) -> None:
    """As pip would leave it; the one in the first folder of sys.path counts."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def renamed(folder: Path, libraries: ModuleType) -> None:
    """The package localspec_llama: the installed bindings as the build renames them, with the installed libraries."""
    installed = Path(str(lib.api().__file__)).parent
    package = folder / "localspec_llama"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").touch()
    for name in libraries.BINDINGS:
        (package / name).write_text(libraries.rename(name, (installed / name).read_text()))
    library = Path(str(lib.api()._lib._name))
    for file in library.parent.iterdir():
        (package / "lib" / file.name).symlink_to(file)
    ours = package / "lib" / library.name.replace("libllama", "liblocalspec_llama")
    if not ours.exists():  # it does where localspec-llama itself is installed
        ours.symlink_to(library)


@pytest.mark.skipif(sys.platform == "win32", reason="libraries have other names there")
def test_localspec_llama_serves_where_llama_cpp_python_has_another_version(
    tmp_path: Path, libraries: ModuleType, tiny_target: Path
) -> None:
    distribution(tmp_path, "llama-cpp-python", "0.3.1")
    distribution(tmp_path, "localspec-llama", f"{lib.PINNED}.post2")
    renamed(tmp_path, libraries)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-c", REPORT, str(tiny_target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["used"] == "localspec-llama"
    assert found["modules"] == ["localspec_llama.llama_cpp", "localspec_llama.llama_cpp_ext"]
    assert Path(found["library"]).parent == tmp_path / "localspec_llama" / "lib"
    assert not found["other"], "a module of llama-cpp-python was imported"
    assert len(found["tokens"]) > 0
    assert "".join(found["digits"]) == "0123456789"
    value, advice, command_line = found["packages"]
    assert value.startswith(f"localspec-llama {lib.PINNED}.post2, numpy ")
    assert advice == f"llama-cpp-python 0.3.1 is installed, but not used: localspec needs {lib.PINNED}."
    assert command_line == f"pip install llama-cpp-python=={lib.PINNED}"


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What is installed, by distribution."""
    there: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    lib.installed.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", version)
    yield there
    lib.installed.cache_clear()


def test_llama_cpp_python_comes_first(versions: dict[str, str]) -> None:
    versions |= {"localspec-llama": lib.PINNED, "llama-cpp-python": lib.PINNED}
    assert lib.installed() == lib.Bindings("llama-cpp-python", lib.PINNED)
    assert lib.installed().package == "llama_cpp"


def test_other_versions_are_refused_by_name(versions: dict[str, str]) -> None:
    versions |= {"localspec-llama": "0.3.99", "llama-cpp-python": "0.3.3"}
    with pytest.raises(
        LocalspecError,
        match=r"llama-cpp-python 0\.3\.3 and localspec-llama 0\.3\.99 is installed, .*pip install llama-cpp-python==",
    ):
        lib.installed()


def test_none_at_all(versions: dict[str, str]) -> None:
    with pytest.raises(LocalspecError, match=r"llama-cpp-python is not installed.*pip install llama-cpp-python=="):
        lib.installed()


def test_doctor_names_the_one_that_serves() -> None:
    used = lib.Bindings("localspec-llama", lib.PINNED)
    assert doctor._packages(used).value.startswith(f"localspec-llama {lib.PINNED}, numpy ")
