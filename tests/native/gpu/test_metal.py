"""The kernel for Metal parses, with its address spaces and words: clang++ and a shim of its library. Nothing runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from .host import NATIVE

CLANG = shutil.which("clang++")
SHIM = Path(__file__).parent / "metal"
FLAGS = ["-x", "c++", "-std=c++14", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
UNKNOWN = ["-Wno-unknown-pragmas", "-Wno-unknown-attributes"]
"""What only Metal knows."""

pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang++")


def parse(kernel: str, folder: Path) -> str:
    """What clang++ finds wrong with the Metal source around this text of kernel.h."""
    source = (NATIVE / "gpu" / "kernel.metal").read_text(encoding="utf-8")
    source, found = re.subn(r"^ +threadgroup (?=ls_counter)", " static threadgroup ", source, flags=re.M)
    assert found == 1, "memory of a threadgroup; in C++ it must be static to have an address space"
    (folder / "kernel.metal").write_text(source, encoding="utf-8")
    (folder / "kernel.h").write_text(kernel, encoding="utf-8")
    shutil.copy(NATIVE / "gpu" / "request.h", folder)
    assert CLANG is not None
    command = [CLANG, *FLAGS, *UNKNOWN, f"-I{SHIM}", str(folder / "kernel.metal")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.stderr if done.returncode else ""


def kernel() -> str:
    return (NATIVE / "gpu" / "kernel.h").read_text(encoding="utf-8")


def test_it_parses(tmp_path: Path) -> None:
    assert parse(kernel(), tmp_path) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("uint32_t threads, LS_GROUP ls_counter *counters", "uint32_t threads, LS_GLOBAL ls_counter *counters"),
        ("limit |= LS_READ(counters + round)", "limit |= *(counters + round)"),
        ("float hfsq", "float half"),
    ],
)
def test_a_wrong_address_space_or_a_word_of_metals_does_not(right: str, wrong: str, tmp_path: Path) -> None:
    source = kernel()
    assert source.count(right) == 1
    assert "error:" in parse(source.replace(right, wrong), tmp_path)
