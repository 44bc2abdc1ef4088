"""A real device of llama.cpp: its Vulkan backend on Mesa's software driver, in the environment that packaging/vulkan
makes. All of the host's side is real there: discovery, offload, buffers, split layers, several devices, loss. The first
passes of each width wait for the driver to compile shaders (a minute and more); the driver keeps them.

    packaging/vulkan/run FOLDER python -m pytest -m trial tests/gpu
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from localspec.llama.library import lib

NAME = "Vulkan0"
LAYER = {"VK_INSTANCE_LAYERS": "VK_LAYER_LOCALSPEC_lost"}
"""packaging/vulkan/lost.c, for processes that begin with it."""


@pytest.fixture(scope="session", autouse=True)
def device() -> lib.Device:
    found = [one for one in lib.devices() if one.name == NAME]
    if not found:
        pytest.skip("llama.cpp has no Vulkan device here; packaging/vulkan/build makes one")
    return found[0]


Run = Callable[..., subprocess.CompletedProcess[str]]
_AS_A_CARD = """
import sys
from localspec.runtime import memory
memory._SOFTWARE = ()
from localspec.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Run:
    """`localspec` as a process of its own, with an empty home and these environment variables. With `as_a_card` it
    takes the device for hardware, which is used by default."""

    def run(*words: str, as_a_card: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
        folders = {f"LOCALSPEC_{name}": str(tmp_path / name) for name in ("DATA", "CONFIG", "CACHE")}
        return subprocess.run(
            [sys.executable, *(("-c", _AS_A_CARD) if as_a_card else ("-m", "localspec")), *words],
            env=os.environ | folders | environment,
            capture_output=True,
            text=True,
            timeout=1200,  # of a hang
            stdin=subprocess.DEVNULL,
        )

    return run
