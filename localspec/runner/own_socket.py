"""Where a process of models listens: a socket file in a folder that only this user may enter.

No name is used twice, so two processes do not meet. A claimed file beside each socket says whether its process lives;
the next process, or the parent, removes what a dead one left.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import struct
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from localspec.errors import LocalspecError, UsageError
from localspec.processes import Claim, is_held

HEADER = "Localspec-Own"
"""Of a request that comes from the program itself: has the secret of the process."""
_MOST_BYTES = 103
"""Of a socket's path; macOS takes 104 with the 0 at its end, Linux 108."""
_NAME_BYTES = len("/0123456789abcdef.sock")


class OwnSocket:
    """Listens. For the process of the models itself, which closes it."""

    def __init__(self) -> None:
        """Raises UsageError: there can be no such socket."""
        home = folder()
        sweep(home)
        self.path = home / f"{secrets.token_hex(8)}.sock"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._claim = Claim(self.path.with_suffix(".lock"))  # first: a socket without a claim is a dead one's
            self.socket.bind(str(self.path))
            self.path.chmod(0o600)
        except OSError as error:
            self.socket.close()
            raise UsageError(f"Cannot listen at {self.path}: {error.strerror or error}.") from None
        self.socket.listen()

    def close(self) -> None:
        """Listens no more; nothing is left in the folder."""
        self.socket.close()
        self.path.unlink(missing_ok=True)
        self._claim.release()


def folder() -> Path:
    """Where the sockets are; made if it is not there. Raises UsageError: others could reach into it."""
    import platformdirs

    found, fault = Path(f"/tmp/localspec-{os.getuid()}"), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said where XDG_RUNTIME_DIR is not set
            named = platformdirs.user_runtime_path("localspec")
        if len(os.fsencode(named)) + _NAME_BYTES <= _MOST_BYTES:
            found = named
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen, above = found.lstat(), found.parent.stat()
        if not stat.S_ISDIR(seen.st_mode):
            fault = "it is no folder"
        elif seen.st_uid != os.getuid():
            fault = "it belongs to another user"
        elif seen.st_mode & 0o077:
            fault = "other users may enter it"
        elif above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX:
            fault = "other users may put another in its place"
    except OSError as error:
        fault = error.strerror or str(error)
    if fault:
        raise UsageError(f"{found} cannot hold this user's sockets: {fault}.", "Remove it, or set XDG_RUNTIME_DIR.")
    return found


def sweep(home: Path) -> None:
    """Removes what processes left that are gone."""
    with suppress(OSError):
        for path in {one.with_suffix(".sock") for one in home.iterdir()}:
            if not is_held(path.with_suffix(".lock")):
                path.unlink(missing_ok=True)


def connect(path: Path) -> socket.socket:
    """A connection to this user's process; nothing has been sent. Raises OSError: nothing listens there;
    LocalspecError: another user's process does."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.connect(str(path))
        check(made)
    except BaseException:
        made.close()
        raise
    return made


def check(made: socket.socket) -> None:
    """Raises LocalspecError: the connection is to another user's process."""
    if sys.platform == "linux":
        found = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        user = struct.unpack("3i", found)[1]
    else:
        found = made.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED, sizeof(struct xucred) of macOS
        user = struct.unpack_from("2I", found)[1]
    if user != os.getuid():
        raise LocalspecError(f"Another user's process listens at {made.getpeername()}.")
