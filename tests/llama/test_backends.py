"""A llama.cpp whose backends are modules: they come from its own folder, never from the current directory.

The installed build has its CPU backend linked in. Preloaded, `NONE_LINKED` hides it once, so that the registry is as
empty at the start as with GGML_BACKEND_DL. The modules here hand out the backend of the installed build.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.llama.library import lib

NONE_LINKED = """
#include <dlfcn.h>
static int asked;
void *ggml_backend_cpu_reg(void) {
    if (!asked++) return 0;
    void *(*get)(void) = (void *(*)(void))dlsym(dlopen("%(cpu)s", RTLD_NOW | RTLD_LOCAL), "ggml_backend_cpu_reg");
    return get();
}
"""
"""The first to ask is the registry of backends."""
MODULE = """
#include <fcntl.h>
#include <unistd.h>
static __attribute__((constructor)) void mark(void) { close(open("%(mark)s", O_CREAT | O_WRONLY, 0600)); }
int ggml_backend_score(void) { return %(score)d; }
void *ggml_backend_cpu_reg(void);
void *ggml_backend_init(void) { return ggml_backend_cpu_reg(); }
"""
"""A module of the CPU backend; that it was loaded shows in the file `mark`."""
REPORT = """
import json, sys
from pathlib import Path
from localspec.errors import LocalspecError
from localspec.llama.library import lib; from localspec.llama.exact import wide
from localspec.llama.library.settings import ContextSettings
try:
    lib.api()
except LocalspecError as error:
    print(json.dumps({"error": str(error)}))
    sys.exit()
from localspec.llama.model import Model
with Model.load(Path(sys.argv[1])) as model:
    tokens = model.tokenize('one two', special=False, add_bos=False).tolist()
print(json.dumps({
    "backends": lib.backends(), "devices": [one.name for one in lib.devices()], "build": lib.build_id(),
    "key": wide.shared_facts(Path(sys.argv[1]), ContextSettings(n_ctx=64, threads=1), 0, None), "tokens": tokens,
}))
"""
UNGUARDED = "from localspec.llama.library import lib\nlib._load_backends = lambda module: None\nlib.api()\n"
"""What llama.cpp does by itself."""


class Build:
    """The libraries of a build with modules, in a folder of their own, and a hostile current directory."""

    def __init__(self, folder: Path) -> None:
        installed = Path(str(lib.api()._lib._name)).parent
        self.libraries, self.current, self.marks = folder / "libraries", folder / "current", folder / "marks"
        for made in (self.libraries, self.current, self.marks):
            made.mkdir()
        for file in installed.glob("*.so*"):
            (self.libraries / file.name).symlink_to(file)
        self._preload = self._compile(
            folder / "none_linked.so", NONE_LINKED % {"cpu": self.libraries / "libggml-cpu.so.0"}
        )

    def _compile(self, library: Path, source: str) -> Path:
        compiler = shutil.which("cc") or ""
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return library

    def add(self, folder: Path, name: str, score: int) -> None:
        """Puts a module `libggml-cpu-NAME.so` into a folder; `score` as llama.cpp compares it, 0 = cannot run here."""
        self._compile(folder / f"libggml-cpu-{name}.so", MODULE % {"mark": self.marks / name, "score": score})

    def loaded(self) -> set[str]:
        """Names of the modules that were loaded, if only to ask for their score."""
        return {mark.name for mark in self.marks.iterdir()}

    def run(self, code: str, *arguments: str) -> str:
        """What a process prints that starts in the hostile directory with this build."""
        environment = {
            **os.environ,
            "LD_PRELOAD": str(self._preload),
            "LLAMA_CPP_LIB_PATH": str(self.libraries),
            "PYTHONPATH": os.pathsep.join(one for one in sys.path if one),
        }
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, env=environment, cwd=self.current, capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout


@pytest.fixture
def build(tmp_path: Path) -> Build:
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    if lib.backends():
        pytest.skip("this build has modules already")
    return Build(tmp_path)


def _report(build: Build, model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(build.run(REPORT, str(model)))
    return found


def test_a_planted_module_is_not_loaded_and_the_best_of_our_folder_is(build: Build, tiny_target: Path) -> None:
    build.add(build.libraries, "base", 1)
    build.add(build.libraries, "best", 7)
    build.add(build.libraries, "foreign", 0)
    build.add(build.current, "planted", 1000)
    found = _report(build, tiny_target)
    assert found["backends"] == ["libggml-cpu-best.so"]
    assert "CPU" in found["devices"]
    assert found["tokens"]
    assert build.loaded() == {"base", "best", "foreign"}, "the current directory was searched"


def test_without_our_call_the_planted_module_would_be_loaded(build: Build) -> None:
    build.add(build.libraries, "best", 7)
    build.add(build.current, "planted", 1000)
    build.run(UNGUARDED)
    assert build.loaded() == {"planted"}


def test_a_folder_without_a_module_is_refused_and_no_other_folder_searched(build: Build, tiny_target: Path) -> None:
    (build.libraries / "libggml-cpu.so").unlink()  # llama.cpp takes the one without a variant, too
    build.add(build.libraries, "foreign", 0)
    build.add(build.current, "planted", 1000)
    found = _report(build, tiny_target)
    assert found["error"].startswith(
        f"llama.cpp has no backend: {build.libraries} has no module that this CPU can run."
    )
    assert build.loaded() == {"foreign"}


def test_the_module_names_the_build_that_probes_are_kept_under(build: Build, tiny_target: Path) -> None:
    build.add(build.libraries, "one", 5)
    first = _report(build, tiny_target)
    build.add(build.libraries, "two", 6)
    second = _report(build, tiny_target)
    assert first["build"].removesuffix(" libggml-cpu-one.so") == second["build"].removesuffix(" libggml-cpu-two.so")
    assert first["build"] != second["build"]
    assert first["key"] != second["key"]


def test_a_build_with_its_backends_linked_in_loads_none(tmp_path: Path) -> None:
    if lib.backends():
        pytest.skip("this build has modules")
    count = lib.c_function("ggml_backend_reg_count", ctypes.c_size_t)
    before = count()
    lib._load_backends(lib.api())
    assert (count(), lib.backends()) == (before, ())
    assert ".so" not in lib.build_id()
