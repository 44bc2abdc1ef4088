"""The committed PTX is what nvcc makes of the kernel, and every GPU from Turing on can have it."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from .host import NATIVE

HEADER = (NATIVE / "gpu" / "ptx.h").read_text(encoding="ascii")


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ptx", NATIVE.parent / "packaging" / "ptx.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PTX = script()
NVCC = PTX.find_nvcc()


def committed() -> str:
    """The text that the header holds."""
    return "".join(ast.literal_eval(line.rstrip(";")) for line in HEADER.splitlines() if line.startswith('"'))


@pytest.fixture(autouse=True)
def _without_sanitizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """packaging/sanitize puts their runtimes into every program; NVIDIA's do not bear that."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)


def test_the_header_holds_all_entries_and_no_fused_product() -> None:
    text = committed()
    assert text.startswith(".version 6.3\n.target sm_75\n")
    for name in ("ls_tops", "ls_limit", "ls_list"):
        assert f".visible .entry {name}(" in text
    assert "fma." not in text
    assert PTX.make_header(text) == HEADER


@pytest.mark.skipif(NVCC is None, reason="needs nvcc 13.0")
def test_it_is_what_nvcc_makes_of_the_source() -> None:
    assert PTX.make_ptx(NVCC) == committed(), "Out of date: python packaging/ptx.py"


@pytest.mark.skipif(NVCC is None or shutil.which("ptxas") is None, reason="needs nvcc 13.0 and its ptxas")
@pytest.mark.parametrize("gpu", [75, 80, 86, 89, 90, 100, 120])
def test_it_assembles(gpu: int, tmp_path: Path) -> None:
    (tmp_path / "kernel.ptx").write_text(committed(), encoding="ascii")
    subprocess.run(["ptxas", f"-arch=sm_{gpu}", "kernel.ptx", "-o", "kernel.cubin"], cwd=tmp_path, check=True)
    assert (tmp_path / "kernel.cubin").stat().st_size > 1000
