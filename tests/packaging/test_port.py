"""packaging/port: our copies of llama.cpp's structs and numbers against headers, and what it says of them."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localspec.llama.library.lib import PINNED
from tests.packaging.scripts import imported

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("port", "copies", "layout", "libraries")

HEADER = """
#include <stdint.h>
struct pair { int32_t first; int64_t second; };
struct calls {
    void (*begin)(int one); // of two
    void (*middle)(int one, int two);
    void (*end)(void);
};
enum color { RED = 3, GREEN };
"""


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_int32), ("second", ctypes.c_int64))


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    with imported("llama", *NAMES) as found:
        yield found


@pytest.fixture
def headers(scripts: dict[str, ModuleType], tmp_path: Path) -> Any:
    """The header above, as it is measured."""
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "small.h").write_text(HEADER, encoding="utf-8")
    return scripts["layout"].Headers(("small.h",), (tmp_path,))


def test_what_headers_declare_is_measured_and_what_they_lack_is_known(
    scripts: dict[str, ModuleType], headers: Any
) -> None:
    layout = scripts["layout"]
    asked = [
        *(layout.size_of("pair"), layout.offset_of("pair", "third"), layout.offset_of("pair", "second")),
        *(layout.size_of_field("calls", "begin..middle"), "GREEN", "BLUE", layout.size_of("none"), "RED"),
    ]
    assert headers.measure(asked) == [16, None, 8, 2 * ctypes.sizeof(ctypes.c_void_p), 4, None, None, 3]


def test_headers_that_do_not_compile_are_refused(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    (tmp_path / "bad.h").write_text("struct {{\n", encoding="utf-8")
    for name in ("bad.h", "none.h"):
        with pytest.raises(scripts["libraries"].Refusal, match="the headers do not compile"):
            scripts["layout"].Headers((name,), (tmp_path,)).measure(["1"])


def test_each_difference_is_a_sentence(scripts: dict[str, ModuleType], headers: Any, tmp_path: Path) -> None:
    port, copies = scripts["port"], scripts["copies"]
    ours = list(copies.in_python({"pair": (Pair, True)}, "ours.py"))
    assert list(port.differences(ours, headers)) == []
    changed = HEADER.replace("int64_t second", "int32_t new, second")
    (tmp_path / "small.h").write_text(changed, encoding="utf-8")
    assert list(port.differences(ours, headers)) == [
        "pair: bytes is 12; ours.py has 16.",
        "pair: bytes of second is 4; ours.py has 8.",
    ]
    (tmp_path / "small.h").write_text(HEADER.replace("second", "other"), encoding="utf-8")
    assert list(port.differences(ours, headers)) == [
        "pair: byte where second begins is no longer declared; ours.py has 8.",
        "pair: bytes of second is no longer declared; ours.py has 8.",
    ]


def test_parameters_are_counted(scripts: dict[str, ModuleType]) -> None:
    counted = {("calls", "begin"): 1, ("calls", "middle"): 2, ("calls", "end"): 0}
    assert scripts["layout"].parameters(HEADER) == counted


def test_all_that_is_copied_is_compared(scripts: dict[str, ModuleType]) -> None:
    """A struct, a field or a constant that joins native/wide/abi.h, or a struct in Python, has its pair."""
    copies, layout = scripts["copies"], scripts["layout"]
    header = (ROOT / copies.ABI).read_text(encoding="utf-8")
    declared = layout.declared_structs(header)
    assert set(declared) == {*copies.C, "ggml"}
    assert declared["device_caps"][0] == "async"
    assert declared["backend"] == ["guid", "calls", "device", "context"]
    every = {(one.theirs, one.file) for one in copies.copies()}
    for struct, fields in declared.items():
        for field in fields if struct in copies.C else ():
            theirs = layout.offset_of(copies.C[struct], copies.their_field(struct, field))
            assert (theirs, copies.ABI) in every, (struct, field)
    named = [copies.their_constant(name) for name in layout.declared_constants(header)]
    assert {"GGML_OP_FLASH_ATTN_EXT", "GGML_STATUS_ALLOC_FAILED", "GGML_BACKEND_API_VERSION"} <= set(named)
    text = (ROOT / copies.LIB).read_text(encoding="utf-8")
    ours = re.findall(r"^class (\w+)\(ctypes.Structure\)", text, re.MULTILINE)
    assert set(ours) == {one.__name__ for one, _ in copies.PYTHON.values()}


def test_no_other_file_of_llama_declares_a_struct() -> None:
    files = [file for file in (ROOT / "localspec" / "llama").rglob("*.py") if file.name != "lib.py"]
    assert not [file.name for file in files if "(ctypes.Structure)" in file.read_text(encoding="utf-8")]


def test_functions_and_bindings_that_are_used_are_found(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    copies, port = scripts["copies"], scripts["port"]
    used = copies.functions()
    assert used["ggml_backend_buffer_init"] == "native/wide/abi.c"
    assert used["llama_graph_reserve"] == used["get_sched"] == "localspec/llama/library/lib.py"
    assert copies.bindings()["llama_backend_init"] == "localspec/llama/library/lib.py"
    for folder in ("vendor/llama.cpp/ggml/include", "vendor/llama.cpp/include", "llama_cpp"):
        (tmp_path / folder).mkdir(parents=True)
    words = " ".join(name for name in used if name != "ggml_graph_node")
    (tmp_path / "vendor/llama.cpp/include/llama.h").write_text(words, encoding="utf-8")
    (tmp_path / "llama_cpp/llama_cpp.py").write_text(" ".join(copies.bindings()), encoding="utf-8")
    sentence = "no header declares ggml_graph_node; localspec/llama/exact/choice.py uses it."
    assert list(port.lacking(tmp_path)) == [sentence]


@pytest.mark.parametrize(
    ("release", "sentence"),
    [("no-such", "there is no no-such; give a version"), (str(ROOT / "docs"), "is no source distribution of")],
)
def test_what_is_no_release_is_a_sentence(release: str, sentence: str) -> None:
    done = ported(release)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def ported(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = [str(ROOT / "packaging" / "port"), *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.trial
def test_the_pinned_release_has_no_differences() -> None:
    done = ported(PINNED, "--compare-only")
    if "pip" in done.stderr and done.returncode:
        pytest.skip(f"the source distribution of llama-cpp-python {PINNED} cannot be fetched")
    assert done.stdout == f"llama-cpp-python {PINNED}: no differences from localspec's copies.\n"
    assert done.returncode == 0
