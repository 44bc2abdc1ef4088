"""How many OpenMP runtimes a process has loaded: ours has one, and a second one is seen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.checks.doctor import examine_openmp

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells")
LOADED = (
    "from localspec.llama.exact import wide\nwide.status()\nfrom localspec.checks.doctor import examine_openmp\n"
    "[found] = examine_openmp()\n"
)
"""Loads llama.cpp and the wide kernels, as a start of localspec does."""


def _printed(code: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return os.fsdecode(done.stdout).splitlines()


def test_llama_cpp_and_our_libraries_share_one_runtime() -> None:
    (value,) = _printed(f"{LOADED}print(found.value)")
    assert ", " not in value


def test_a_second_runtime_is_seen(tmp_path: Path) -> None:
    first = Path(_printed(f"{LOADED}print(found.value)")[0])
    folder = tmp_path / os.fsdecode(b"k\xe4se")  # no UTF-8
    folder.mkdir()
    second = folder / "libgomp-0123abcd.so.1.0.0"  # as a repaired wheel names its copy
    shutil.copyfile(first, second)
    code = (
        f"{LOADED}import ctypes, sys\nsys.stdout.reconfigure(errors='surrogateescape')\nctypes.CDLL(sys.argv[1])\n"
        "from localspec.checks.doctor import examine_machine\n"
        "[found] = [one for one in examine_machine() if one.name == 'OpenMP']\nprint(found.value)\n"
        "print(found.advice)\n"
    )
    value, advice = _printed(code, str(second))
    assert sorted(value.split(", ")) == sorted([str(first), str(second)])
    assert advice.startswith("2 OpenMP runtimes in one process make decoding two to three times slower;")


def test_files_are_told_from_others_of_like_names(tmp_path: Path) -> None:
    maps = tmp_path / "proc/self/maps"
    maps.parent.mkdir(parents=True)
    files = (
        "/a b/libgomp.so.1.0.0",
        "/x/libiomp5.so",
        "/x/libomp-12.so.5",
        "/x/libgomp.so.1 (deleted)",
        "/x/libompx.so",
    )
    maps.write_text(
        "".join(f"7f00-7f01 r-xp 00000000 08:01 12   {file}\n" for file in (*files, *files)) + "7f-80 rw-p 0 0 0\n"
    )
    (found,) = examine_openmp(tmp_path)
    assert found.value == "/a b/libgomp.so.1.0.0, /x/libgomp.so.1, /x/libiomp5.so, /x/libomp-12.so.5"


def test_nothing_is_said_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert list(examine_openmp(tmp_path / "none")) == []
