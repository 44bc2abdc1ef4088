"""One build of the kernel for all tests of a run."""

from __future__ import annotations

import sys

import pytest

from .host import COMPILER, Host, compile_host


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    if COMPILER is None or sys.platform == "win32":
        pytest.skip("needs a C++ compiler")
    return Host(compile_host(tmp_path_factory.mktemp("gpu")))
