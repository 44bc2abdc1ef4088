"""The child process as its parent sees it: started, written to, read, and gone."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from localspec.errors import LocalspecError
from localspec.runner.outbox import Frame, Outbox, received
from localspec.runner.tape import Tape

_WORDS = {"SIGKILL": "was killed", "SIGABRT": "gave up", "SIGTERM": "was ended"}
"""What a signal means; any other one is a crash."""

_EXIT_SECONDS = 10.0
"""Between a process's last word and its end."""


class Process:
    """A running child. Start it on a thread that outlives it: on Linux it ends with the thread that started it."""

    def __init__(self, patience: float) -> None:
        """
        Args:
            patience: see `give`.

        Raises:
            LocalspecError: there can be none.
        """
        if os.name == "nt":
            raise LocalspecError("Models in a process of their own need Linux or macOS.")
        ours, theirs = socket.socketpair()
        self.tape = Tape()
        command = [sys.executable, "-m", "localspec.runner", str(theirs.fileno()), str(os.getpid())]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),  # plug-ins are found where they are found here
            "GGML_NO_BACKTRACE": "1",  # else ggml starts a debugger when it gives up
        }
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self.tape.fileno(),
                stderr=self.tape.fileno(),
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            ours.close()
            self.tape.close()
            raise LocalspecError(f"{sys.executable} cannot be started: {error.strerror}.") from error
        finally:
            theirs.close()
        self._socket = ours
        self._pipe = Connection(os.dup(ours.fileno()))
        self.give(patience)
        self._outbox = Outbox(self._pipe)
        self.hung = 0.0
        """Seconds without a sign of life, for which it was ended; 0 = it was not."""

    @property
    def pid(self) -> int:
        return self._child.pid

    def give(self, patience: float) -> None:
        """Seconds without a frame, after which `receive` ends the child."""
        self._patience = patience
        whole, rest = int(patience), int(patience % 1 * 1e6)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, rest))

    def post(self, message: Any) -> None:
        """Has a message sent; does not wait, and does nothing if the child is gone."""
        self._outbox.post(message)

    def receive(self) -> Frame:
        """Waits for the next frame; ends the child if none comes for too long.

        Raises:
            EOFError, OSError: the child is gone.
        """
        try:
            return received(self._pipe)
        except BlockingIOError:
            self.end_hung(self._patience)
            raise

    def end_hung(self, seconds: float) -> None:
        """Ends a child that gave no sign of life for so long."""
        self.hung = seconds
        self.kill()

    def kill(self) -> None:
        """Ends it at once; any thread may."""
        self._child.kill()

    def bury(self) -> None:
        """Waits until it is gone, and frees what belonged to it, but for the tape."""
        try:
            self._child.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait()
        self._outbox.close()  # its next write fails, if it has one
        self._pipe.close()
        self._socket.close()

    def ended(self) -> str:
        """How it ended, as the end of a sentence; after `bury`."""
        return ended(self._child.returncode, self.hung)


def ended(code: int, hung: float) -> str:
    """How a process ended, as the end of a sentence.

    Args:
        code: what `Popen` says.
        hung: seconds without a sign of life, for which it was ended; 0 = it was not.
    """
    if hung:
        return f"gave no sign of life for {hung:.0f} seconds"
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    return f"{_WORDS.get(name, 'crashed')} ({name})"
