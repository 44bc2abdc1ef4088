"""localspec_wide in a process that has no ggml, or another one; and why it is not there, where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.llama.exact import wide

pytestmark = pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}")


def _refusal(library: Path, before: str = "") -> str:
    """What a fresh process says that has no llama.cpp."""
    code = (
        f"import ctypes\n{before}\nwide = ctypes.CDLL({str(library)!r})\n"
        "wide.ggml_backend_init.restype = ctypes.c_void_p\nwide.lsw_refusal.restype = ctypes.c_char_p\n"
        "assert wide.ggml_backend_init() is None\nprint(wide.lsw_refusal().decode())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return ran.stdout.strip()


def test_refuses_a_process_without_ggml() -> None:
    library = wide.find_library()
    assert library is not None
    assert _refusal(library) == "There is no ggml in this process whose functions could be found."


FAKE = """
const char *ggml_version(void) { return "9.9"; }
const char *ggml_op_name(int op) { return op ? "SHIFTED" : "NONE"; }
"""


def test_refuses_another_ggml(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("needs a C compiler")
    library = wide.find_library()
    assert library is not None
    source, built = tmp_path / "other.c", tmp_path / "other.so"
    names = [line.split('"')[1] for line in _sources("abi.c").splitlines() if line.strip().startswith('{"ggml_')]
    others = [name for name in names if name not in FAKE]
    source.write_text(FAKE + "".join(f"void {name}(void) {{}}\n" for name in others))
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(built), str(source)], check=True, timeout=60)
    found = _refusal(library, f"ctypes.CDLL({str(built)!r}, ctypes.RTLD_GLOBAL)")
    assert (
        found == "The numbers of its operations or types in ggml 9.9 are not those that localspec_wide was written for."
    )
    source.write_text(FAKE + "".join(f"void {name}(void) {{}}\n" for name in others[1:]))
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(built), str(source)], check=True, timeout=60)
    found = _refusal(library, f"ctypes.CDLL({str(built)!r}, ctypes.RTLD_GLOBAL)")
    assert found == ("There is no ggml in this process whose functions could be found.")


def _sources(name: str) -> str:
    return (Path(__file__).parents[3] / "native" / "wide" / name).read_text(encoding="utf-8")


def test_status_says_why_not(tmp_path: Path) -> None:
    code = (
        "from localspec.llama.exact.wide import *; s = status(); print(s.available, s.isa, s.reason); set_switch(True)"
    )
    environment = {**os.environ, "LOCALSPEC_WIDE_LIBRARY": str(tmp_path / "none.so")}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=environment
    )
    assert ran.stdout.strip() == f"False  there is no {tmp_path / 'none.so'}."
