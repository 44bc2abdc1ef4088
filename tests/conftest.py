"""What all tests share: a cache folder of their own, and the bundled pair."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from localspec import paths

# OpenMP's threads spin between passes; beside any other load on a small machine a pass of 1 ms then takes 100. Bits do
# not depend on it, so the tests ask for sleeping threads. Read by libgomp when llama.cpp is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# llama.cpp reads it at the first pass, which may be one on its own kernels; see localspec/llama/exact/choice.py.
os.environ.setdefault("GGML_CPU_TILED_MM", "0")

# A shell starts its background jobs with Ctrl-C ignored, and so would be every program that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A suite makes much garbage beside large models: looking for it less often takes a quarter off the tests of the chat.
gc.set_threshold(100_000, 20, 50)

# A busy machine is slow, not wrong.
settings.register_profile("localspec", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("localspec")


CACHE_KEY = "localspec/seconds"


class _Stopwatch:
    """Adds up the seconds of every file and keeps them in pytest's cache, for packaging/check --quick."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self.seconds[file] = self.seconds.get(file, 0.0) + report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config, cache = session.config, getattr(session.config, "cache", None)
        whole = not config.getoption("keyword") and not any("::" in argument for argument in config.args)
        if whole and config.getoption("markexpr") == "not trial" and cache is not None:
            cache.set(CACHE_KEY, {**cache.get(CACHE_KEY, {}), **self.seconds})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn",
        type=int,
        default=0,
        metavar="N",
        help="begin with the N-th file of tests, so that a time limit cuts off others every day",
    )


@pytest.hookimpl(trylast=True)  # the files that are left once -m and -k have chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    files = list(dict.fromkeys(item.path for item in items))
    first = config.getoption("turn") % max(1, len(files))
    place = {file: (number - first) % len(files) for number, file in enumerate(files)}
    items.sort(key=lambda item: place[item.path])


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not a worker of xdist: their reports come here
        config.pluginmanager.register(_Stopwatch())


@pytest.fixture(autouse=True, scope="session")
def _cache_in_tmp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's folders; what one test probes, the next may use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCALSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LOCALSPEC_DATA", str(tmp_path_factory.mktemp("data")))
        patch.setenv("LOCALSPEC_CONFIG", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of the session, whose path is short enough for sockets."""
    with TemporaryDirectory(dir="/tmp") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)


def _bundled(name: str) -> Path:
    path = paths.bundled(name)
    if not path.exists():
        pytest.fail(f"{name} is not in localspec/data; git has it.")
    return path


@pytest.fixture(scope="session")
def tiny_target() -> Path:
    """The bundled target."""
    return _bundled("tiny-target-q8_0.gguf")


@pytest.fixture(scope="session")
def tiny_draft() -> Path:
    """The bundled draft model."""
    return _bundled("tiny-draft-q8_0.gguf")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Leaves no byte of a disk."""
    with open(disk / "ballast", "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
