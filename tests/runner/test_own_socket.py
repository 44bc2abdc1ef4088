"""A process of models listens where only its user comes, and leaves nothing."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.errors import LocalspecError, UsageError
from localspec.runner.own_socket import OwnSocket, connect, folder, sweep

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="no such sockets"),
    pytest.mark.usefixtures("runtime"),
]
LISTENS = """
import signal
from localspec.runner.own_socket import OwnSocket
listens = OwnSocket()
print(listens.path, flush=True)
signal.pause()
"""


def test_only_its_user_may_reach_a_socket(runtime: Path) -> None:
    listens = OwnSocket()
    assert listens.path.parent == runtime / "localspec"
    assert stat.S_IMODE(listens.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(listens.path.stat().st_mode) == 0o600
    with connect(listens.path):
        pass
    listens.close()
    assert list(listens.path.parent.iterdir()) == []
    with pytest.raises(OSError, match="No such file"):
        connect(listens.path)


def test_two_do_not_meet() -> None:
    one, other = OwnSocket(), OwnSocket()
    assert one.path != other.path
    one.close()
    with connect(other.path):
        pass
    other.close()


def test_a_link_is_not_used(runtime: Path) -> None:
    (runtime / "elsewhere").mkdir(mode=0o700)
    (runtime / "localspec").symlink_to(runtime / "elsewhere")
    with pytest.raises(UsageError, match="cannot hold this user's sockets"):
        folder()


def test_a_folder_that_others_may_enter_is_not_used(runtime: Path) -> None:
    (runtime / "localspec").mkdir()
    (runtime / "localspec").chmod(0o750)
    with pytest.raises(UsageError, match="other users may enter it"):
        folder()


def test_a_folder_that_others_may_exchange_is_not_used(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder()
    monkeypatch.setattr("platformdirs.user_runtime_path", lambda name: runtime / name)  # older ones do not look
    runtime.chmod(0o777)
    with pytest.raises(UsageError, match="put another in its place"):
        folder()


def test_another_users_folder_and_process_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    listens = OwnSocket()
    monkeypatch.setattr("os.getuid", lambda: os.geteuid() + 1)
    with pytest.raises(LocalspecError, match="Another user's process listens at"):
        connect(listens.path)
    monkeypatch.setattr("platformdirs.user_runtime_path", lambda name: listens.path.parent)
    with pytest.raises(UsageError, match="it belongs to another user"):
        folder()
    listens.close()


@pytest.mark.parametrize("set_to", [None, "/tmp/" + "long" * 30])
def test_without_a_folder_of_the_session_paths_are_short_too(
    set_to: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    if set_to is not None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", set_to)
    listens = OwnSocket()
    try:
        assert len(os.fsencode(listens.path)) <= 103
        assert set_to is None or not listens.path.is_relative_to(set_to)
    finally:
        listens.close()


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not() -> None:
    living = OwnSocket()
    with subprocess.Popen([sys.executable, "-c", LISTENS], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        path = Path(child.stdout.readline().strip())
        try:
            sweep(path.parent)
            with connect(path):
                pass
        finally:
            child.kill()
    left = {path, path.with_suffix(".lock")}
    assert left <= set(path.parent.iterdir())
    sweep(path.parent)
    assert set(path.parent.iterdir()) == {living.path, living.path.with_suffix(".lock")}
    living.close()


def test_a_socket_without_a_claim_is_removed_although_somebody_listens(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stray:
        stray.bind(str(folder() / "stray.sock"))
        stray.listen()
        OwnSocket().close()
    assert list(folder().iterdir()) == []
