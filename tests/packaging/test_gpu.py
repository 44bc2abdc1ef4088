"""packaging/bench/gpu.py as far as it goes without a GPU: the kernel's steps against the driver of the tests."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.native.gpu.fake_driver import compile_driver
from tests.native.gpu.host import COMPILER

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ("self-test", "verdicts", "preselection")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(ROOT / "packaging" / "bench" / "gpu.py"), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def results(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="needs C++")
def test_steps_are_done_once_and_a_later_call_goes_on(tmp_path: Path) -> None:
    driver = compile_driver(tmp_path)
    size: list[str | Path] = ["--python", sys.executable, "--driver", driver, "--rows", "60", "--vocab", "5000"]
    first = run(tmp_path / "out", *KERNEL[:2], *size)
    assert first.returncode == 0, first.stderr
    verdicts = results(tmp_path / "out")[1]
    assert (verdicts["rows"], verdicts["differing"], verdicts["by_lists"]) == (60, 0, 60)
    run(tmp_path / "out", *KERNEL, *size)
    found = results(tmp_path / "out")
    assert [result["step"] for result in found] == list(KERNEL)
    assert found[1] == verdicts


def test_a_call_without_time_says_that_there_is_more_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, "build", "self-test", "--python", sys.executable, "--seconds", "1")
    assert done.returncode == 3
    assert "There is more to do" in done.stdout
    assert [result["step"] for result in results(tmp_path)] == ["build"]


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "self-test", "--python", sys.executable, "--driver", tmp_path / "none.so")
    assert done.returncode == 1
    assert "There is no driver of NVIDIA here." in done.stderr
    assert not (tmp_path / "results.jsonl").exists()


def test_what_needs_models_asks_for_them(tmp_path: Path) -> None:
    done = run(tmp_path, "strict", "--python", sys.executable)
    assert done.returncode == 1
    assert "There are no models yet: the step pair makes them." in done.stderr


def test_an_unknown_step_is_refused(tmp_path: Path) -> None:
    assert "unknown steps speed" in run(tmp_path, "speed").stderr


def test_a_build_that_fails_is_said(tmp_path: Path) -> None:
    """Without wheels it fails at once, in the background."""
    (tmp_path / "build.sh").touch()
    (tmp_path / "build.failed").touch()
    assert "build.log says why" in run(tmp_path, "build").stderr


def test_the_sources_travel_without_what_is_not_compiled(tmp_path: Path) -> None:
    sdist = tmp_path / "llama_cpp_python-1.tar.gz"
    names = [
        "a/.git/x",
        "a/vendor/llama.cpp/docs/x.md",
        "a/vendor/llama.cpp/models/x.gguf",
        "a/vendor/llama.cpp/src/x.cpp",
        "a/docs/x",
    ]
    with tarfile.open(sdist, "w:gz") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            file.addfile(member, io.BytesIO(b"abc"))
    assert run("--pack", sdist, tmp_path / "wheels").returncode == 0
    with tarfile.open(tmp_path / "wheels" / sdist.name) as packed:
        assert packed.getnames() == names[3:]
        source = packed.extractfile(names[3])
        assert source is not None
        assert source.read() == b"abc"


@pytest.mark.trial
def test_all_steps_on_the_cpu(tmp_path: Path) -> None:
    """Figures of two small models on the CPU mean nothing; that there are some does."""
    size = ["--shape", "small", "--draft-shape", "small", "--vocab", "5000", "--tokens", "8", "--prompts", "1"]
    run(
        tmp_path, "build", "pair", "plain", "strict", "drafting", "--python", sys.executable, "--gpu-layers", "0", *size
    )
    found = {str(result["step"]): result for result in results(tmp_path)}
    assert list(found) == ["build", "pair", "plain", "strict", "drafting"]
    assert found["strict"]["forks"] == 0
    assert found["strict"]["runs"] == 33
