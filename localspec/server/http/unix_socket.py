"""A listening socket that is a file of the user's own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from pathlib import Path

from localspec.errors import UsageError

PREFIX = "unix:"
"""Begins a host that is the path of a socket."""


class UnixSocket(socket.socket):
    """Listens at a path that only this user may use (mode 0600), and takes the file away when it is closed."""

    def __init__(self, path: Path) -> None:
        """
        Raises:
            UsageError: this system has no such sockets, a server listens there, or the path cannot be one.
        """
        family = getattr(socket, "AF_UNIX", None)
        if family is None:
            raise UsageError("This system has no sockets that are files.", "Leave --host out.")
        _make_room(path, family)
        super().__init__(family, socket.SOCK_STREAM)
        self._path = path
        before = os.umask(0o177)
        try:
            self.bind(str(path))
        except OSError as error:
            self._inode = None
            super().close()
            if error.errno == errno.EADDRINUSE:
                raise _taken(path) from None
            raise UsageError(f"Cannot listen at {path}: {error.strerror or error}.") from None
        finally:
            os.umask(before)
        self._inode = _inode(path)
        self.listen(512)

    def close(self) -> None:
        """Closes it. A file that another server has put there meanwhile stays."""
        super().close()
        inode, self._inode = self._inode, None
        if inode is not None and inode == _inode(self._path):
            with contextlib.suppress(OSError):
                self._path.unlink()


def _make_room(path: Path, family: int) -> None:
    """Removes the socket of a server that is gone."""
    try:
        kind = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or `bind` says what is wrong
    if not stat.S_ISSOCK(kind):
        raise UsageError(f"{path} is there and is no socket.", "Choose another path.")
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise UsageError(f"Cannot listen at {path}: {error.strerror or error}.") from None
    raise _taken(path)


def _taken(path: Path) -> UsageError:
    return UsageError(f"A server listens at {path} already.", "End it, or choose another path.")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
