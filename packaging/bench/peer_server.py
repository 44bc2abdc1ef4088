"""llama-server as a contender: started on a free port, asked over HTTP, stopped again; nothing of it outlives us."""

from __future__ import annotations

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

START_SECONDS = 300.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

SETTINGS: dict[str, tuple[str, ...]] = {
    "server none": ("--spec-type", "none"),
    "server draft 3": ("--spec-type", "draft-simple", "--spec-draft-n-max", "3"),
    "server ngram": ("--spec-type", "ngram-simple"),
}
"""Contender -> llama-server's options; everything else is its default."""


class ServerProcess:
    """A server in a process of its own, which answers /health with 200 once it is ready."""

    def __init__(self, name: str, port: int, command: Sequence[str], log: Path) -> None:
        """Starts it and waits until it answers.

        Args:
            name: for errors.
            port: it listens on, on this machine.
            command: that starts it.
            log: file for what it prints.
        """
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self._log: IO[bytes] = log.open("wb")
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_die_with_parent
        )
        try:
            self._wait(log)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the process."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def _wait(self, log: Path) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                last = " | ".join(log.read_text("utf-8", "replace").splitlines()[-3:])
                raise SystemExit(f"{self.name} ended with {self.process.returncode}: {last}")
            try:
                with urlopen(f"{self.url}/health", timeout=2) as response:
                    if response.status == 200:
                        return
            except (URLError, OSError):
                pass  # not listening yet, or still loading
            time.sleep(0.2)
        raise SystemExit(f"{self.name} was not ready after {START_SECONDS:g} s; see {log}")


class PeerServer(ServerProcess):
    """One llama-server process."""

    def __init__(
        self,
        binary: Path,
        name: str,
        target: Path,
        draft: Path,
        n_ctx: int,
        threads: int,
        log: Path,
        slots: int,
    ) -> None:
        """Starts it and waits until it answers.

        Args:
            binary: llama-server.
            name: of `SETTINGS`.
            target: GGUF file.
            draft: its draft model; given to those that take one.
            n_ctx: tokens of context of a slot.
            threads: of every pass.
            log: file for what it prints.
            slots: requests at once.
        """
        port = free_port()
        options = [*SETTINGS[name]]
        if "draft-simple" in options[1]:
            options += ["--spec-draft-model", str(draft)]
        command = [
            *(str(binary), "--model", str(target), "--host", "127.0.0.1", "--port", str(port)),
            *("--ctx-size", str(n_ctx * slots), "--parallel", str(slots), "--threads", str(threads)),
            *("--cache-ram", "0"),
            *options,
        ]
        super().__init__(f"llama-server ({name})", port, command, log)
        self.name = name


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _die_with_parent() -> None:
    """A benchmark that is killed leaves no server running (Linux)."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)
