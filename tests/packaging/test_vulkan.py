"""packaging/vulkan: the environment whose llama.cpp has a software GPU, and the tests that need it (tests/gpu)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "packaging" / "vulkan"


def build(*words: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": path}
    return subprocess.run([SCRIPTS / "build", *words], capture_output=True, text=True, env=environment, timeout=60)


@pytest.mark.parametrize("words", [(), ("--help",), ("one", "two")])
def test_it_wants_one_folder(words: tuple[str, ...]) -> None:
    done = build(*words)
    assert (done.returncode, done.stderr) == (2, "usage: packaging/vulkan/build FOLDER\n")


def test_packages_that_are_missing_are_named(tmp_path: Path) -> None:
    """On a machine whose package database knows none."""
    query = tmp_path / "bin/dpkg-query"
    query.parent.mkdir()
    query.write_text("#!/bin/sh\nexit 1\n")
    query.chmod(0o755)
    done = build(str(tmp_path / "made"), path=f"{query.parent}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (
        1,
        "build: these Debian packages are missing: "
        "apt-get install mesa-vulkan-drivers libvulkan1 glslc spirv-headers\n",
    )


@pytest.mark.trial
@pytest.mark.skipif("LOCALSPEC_VULKAN_BUILD" not in os.environ, reason="no folder of packaging/vulkan/build")
def test_a_real_device() -> None:
    """All of tests/gpu, in the environment with the device."""
    words = ["python", "-m", "pytest", "-q", "-m", "trial", "-p", "no:cacheprovider", "tests/gpu"]
    done = subprocess.run(
        [SCRIPTS / "run", os.environ["LOCALSPEC_VULKAN_BUILD"], *words],
        cwd=SCRIPTS.parents[1],
        capture_output=True,
        text=True,
        timeout=3000,  # of a hang: shaders that are not cached take ten minutes
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout
