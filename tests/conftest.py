"""What all tests share: a cache folder of their own, and the bundled pair."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from localspec import paths

# OpenMP's threads spin between passes; beside any other load on a small machine a pass of 1 ms then takes 100. Bits do
# not depend on it, so the tests ask for sleeping threads. Read by libgomp when llama.cpp is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A shell starts its background jobs with Ctrl-C ignored, and so would be every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is slow, not wrong.
settings.register_profile("localspec", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("localspec")


@pytest.fixture(autouse=True, scope="session")
def _cache_in_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's folders; what one test probes, the next may use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LOCALSPEC_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("LOCALSPEC_CONFIG", str(tmp_path_factory.mktemp("config")))
        yield


def _bundled(name: str) -> Path:
    path = paths.bundled(name)
    if not path.exists():
        pytest.fail(f"{name} is not in localspec/data; packaging/tiny-pair makes it.")
    return path


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    """The bundled target."""
    return _bundled("tiny-target-q8_0.gguf")


@pytest.fixture(scope="session")
def tiny_draft() -> Path:
    """The bundled draft model."""
    return _bundled("tiny-draft-q8_0.gguf")
