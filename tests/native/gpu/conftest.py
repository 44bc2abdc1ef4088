"""One build of the kernel, and of the driver that runs it on the host, for all tests of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from .fake_driver import FakeDriver, as_at_its_start, load_driver
from .host import COMPILER, Host, compile_host


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    if COMPILER is None or sys.platform == "win32":
        pytest.skip("needs a C++ compiler")
    return Host(compile_host(tmp_path_factory.mktemp("gpu")))


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return load_driver(tmp_path_factory)


@pytest.fixture
def driver(driver_library: FakeDriver) -> Iterator[FakeDriver]:
    yield from as_at_its_start(driver_library)
