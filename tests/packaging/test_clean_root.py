"""The trial of a release in an empty system says what it cannot start with; the trial itself is run by hand."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "packaging" / "clean_root"
WHEELS = ("localspec-7.8.9-py3-none-linux_x86_64.whl", "localspec_llama-0.3.36-py3-none-linux_x86_64.whl")

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


def refusal(*words: str | Path) -> str:
    """What the script says on standard error when it ends at once with exit code 2."""
    done = subprocess.run(["bash", SCRIPT, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with the names of both wheels."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in WHEELS:
        (folder / name).touch()
    return folder


def test_it_asks_for_a_folder_of_wheels() -> None:
    assert "give a folder of wheels" in refusal()


@pytest.mark.parametrize("missing", WHEELS)
def test_it_needs_both_wheels(wheels: Path, missing: str) -> None:
    (wheels / missing).unlink()
    assert "must have one wheel of localspec and one of localspec-llama; it has 1." in refusal(wheels)


@pytest.mark.parametrize("file", ["bin/gcc", "bin/x86_64-linux-gnu-g++-12", "bin/cmake", "lib/x86/libgomp.so.1.0.0"])
def test_a_system_with_a_compiler_or_openmp_is_not_clean(wheels: Path, tmp_path: Path, file: str) -> None:
    for name in ("bin/python3", "bin/gcov", "lib/cc", file):
        (tmp_path / "root" / "usr" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / "usr" / name).touch(mode=0o755)
    assert refusal(wheels, tmp_path / "root").endswith(f"root is not clean; it has {file}.\n")
