"""`python -m localspec.server.own`: the process of one model. Only `localspec.runner.child` starts it.

Its start is waited for: loading begins, on a thread, before what answers is imported.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import pickle
import secrets
import signal
import sys
from typing import TYPE_CHECKING, Any

from localspec.errors import LocalspecError, told

if TYPE_CHECKING:
    from localspec.runner.own_socket import OwnSocket
    from localspec.server.own.life import Life

_PR_SET_PDEATHSIG = 1
_MOST_BYTES = 1 << 18
"""Of the log; it begins anew when so much is written."""


def main() -> int:
    """Reads on standard input what to load (the dict of `runner.child`), says on standard output where it listens, or
    what is wrong, and serves; returns the exit code.
    """
    gc.disable()  # until the models are loaded (`memory.settle`): what imports make is no garbage
    try:
        load: dict[str, Any] = pickle.load(sys.stdin.buffer)
    except (EOFError, ValueError, pickle.UnpicklingError):
        sys.stderr.write("localspec: Only localspec itself starts this. `localspec serve` is for everybody.\n")
        return 2
    try:
        life, listening = begin(load)
    except LocalspecError as error:
        _say({"failed": told(error)})
        return error.exit_code
    secret = secrets.token_urlsafe()
    _say({"at": str(listening.path), "secret": secret})
    os.dup2(2, 1)  # the parent has read its one line; what is printed from now on goes to the log
    try:
        from localspec.chat.prompt.template import environment

        environment()  # while it loads
        from localspec.server.own.serve import serve

        serve(life, listening.socket, secret, load["public"])
    finally:
        listening.close()
    return 0


def begin(load: dict[str, Any]) -> tuple[Life, OwnSocket]:
    """Begins to load, and listens; nothing is answered yet."""
    if sys.platform == "linux":  # first: it ends when its parent does
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != load["parent"]:  # which ended before we asked
        os._exit(0)
    from localspec.llama.library import lib
    from localspec.llama.library.contention import cpus
    from localspec.runner.own_socket import OwnSocket
    from localspec.runtime.pool import Pool
    from localspec.server.own.life import Life

    cpus.join(load["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on meanwhile: reading their frames may crash
    lib.log.echo = _write
    files = {name: load[name] for name in ("draft", "heads", "settings", "called")}
    pool = Pool(load["target"], **files, announced=False)
    listening, life = OwnSocket(), Life(pool)
    life.load()
    return life, listening


def _write(text: str) -> None:
    """Writes to standard error at once, past Python's buffer: its parent has a file there."""
    if os.fstat(2).st_size > _MOST_BYTES:
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
    os.write(2, text.encode("utf-8", "replace"))


def _say(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
