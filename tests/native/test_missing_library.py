"""Without the C library what needs it is refused when it is imported, in one sentence; the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from localspec.native.library import FILE_NAME

_ADVICE = "Install a C compiler, then localspec again: pip install --force-reinstall --no-deps localspec"
MISSING = f"localspec's C library {FILE_NAME} is missing. {_ADVICE}"
_WITHOUT = "from localspec.native import library; library.find_library = lambda: None\n"
_COMMAND = "import sys; from localspec.cli import main; sys.exit(main(sys.argv[1:]))"


def python(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process that finds no C library, as those that it starts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_WITHOUT, encoding="utf-8")
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=os.environ | {"PYTHONPATH": folder} | environment,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )


@pytest.mark.parametrize(
    "arguments",
    [("run", "Hello"), ("chat",), ("chat", "--plain"), ("doctor",), ("verify",), ("bench",), ("serve",), ("tune",)],
    ids=" ".join,
)
def test_a_command_says_what_is_missing_and_what_to_do(arguments: tuple[str, ...]) -> None:
    done = python(_COMMAND, *arguments)
    assert (done.stderr, done.stdout, done.returncode) == (f"localspec: {MISSING}\n", "", 5)


@pytest.mark.parametrize("arguments", [("--help",), ("list",)], ids=" ".join)
def test_commands_that_read_no_model_work(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = python(_COMMAND, *arguments, LOCALSPEC_DATA=str(tmp_path))
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_engine_cannot_be_imported() -> None:
    script = """
from localspec import LocalspecError, SamplingParams
try:
    from localspec import Engine
except LocalspecError as error:
    print(error)
"""
    done = python("\n" + script)
    assert (done.stdout, done.stderr) == (f"{MISSING}\n", "")


def test_a_file_that_is_no_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_text("nothing")
    done = subprocess.run(
        [sys.executable, "-m", "localspec", "doctor"],
        env=os.environ | {"LOCALSPEC_LIBRARY": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 5
    assert done.stderr.startswith(f"localspec: the C library {path} cannot be loaded: ")
    assert done.stderr.endswith(f". {_ADVICE}\n")
