"""Commands without standard streams, as services start them, and with streams that take nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

SHORT = "--max-tokens 4 --seed 7 --drafter none"
LOCALSPEC = f"{sys.executable} -m localspec"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=120
    )


ALL = "<&- >&- 2>&-"


@pytest.mark.parametrize(
    ("words", "closed"),
    [
        *((f"run hi {SHORT}", closed) for closed in ("<&-", ">&-", "2>&-", ALL)),
        *((f"chat --plain {SHORT}", closed) for closed in ("<&-", ALL)),
        *((words, ALL) for words in ("", "list", "ps", "show tiny-target", "check tiny", "chats list", "--version")),
    ],
)
def test_a_closed_stream_is_like_the_null_device(words: str, closed: str) -> None:
    done = shell(f"{LOCALSPEC} {words} {closed}")
    null = shell(f"{LOCALSPEC} {words} {closed.replace('&-', ' /dev/null')}")
    assert (done.returncode, done.stdout, done.stderr) == (null.returncode, null.stdout, null.stderr)
    assert done.returncode == 0


def test_a_mistake_is_no_more_than_its_exit_code() -> None:
    done = shell(f"{LOCALSPEC} run hi --nosuch 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """Else what a library writes to standard error would be in it."""
    code = (
        "import os, sys\nfrom localspec.cli import streams\nstreams.open_missing()\n"
        "file = open(sys.argv[1], 'w')\nassert file.fileno() > 2, file.fileno()\n"
        "assert all(os.get_inheritable(number) for number in range(3))\nos.write(2, b'noise')"
    )
    path = tmp_path / "file"
    done = subprocess.run(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", sys.executable, "-c", code, str(path)], check=False
    )
    assert done.returncode == 0
    assert path.read_bytes() == b""


def test_a_server_without_streams_listens(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = f"exec {LOCALSPEC} serve tiny --port {port} <&- >&- 2>&-"
    with subprocess.Popen(["bash", "-c", line]) as server:
        try:
            for _ in range(600):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as reply:
                        assert json.load(reply)["data"][0]["id"] == "tiny"
                    break
                except OSError:
                    assert server.poll() is None
                    time.sleep(0.1)
            else:
                pytest.fail("it does not listen")
        finally:
            server.terminate()
        assert server.wait(30) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("words", [f"run hi {SHORT}", "list", "list --json"])
def test_a_full_disk_is_one_sentence(words: str) -> None:
    done = shell(f"{LOCALSPEC} {words} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "localspec: No space left on device.\n")
