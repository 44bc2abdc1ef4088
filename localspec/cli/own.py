"""`localspec serve --own`: the process of one model, for the localspec that starts it (`localspec.runner.child`)."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import secrets
import signal
import sys

from localspec.errors import LocalspecError, UsageError, told
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.runner import tape
from localspec.runner.child import Load
from localspec.runner.place import Place, key_of
from localspec.runtime.pool import Pool
from localspec.server.own.life import Life

_PR_SET_PDEATHSIG = 1


def run() -> int:
    """Reads what to load on standard input, says on standard output where it listens, or what is wrong, and serves.

    Raises:
        UsageError: nothing of that kind is said.
    """
    try:
        load: Load = pickle.load(sys.stdin.buffer)
    except (EOFError, ValueError, pickle.UnpicklingError):
        raise UsageError("--own is for localspec itself.", "Leave it out.") from None
    _live_with(load.parent)
    lib.log.echo = tape.write
    try:
        pool = Pool(
            load.target, load.draft, heads=load.heads, settings=load.settings, called=load.called, announced=False
        )
        files = pool.files(pool.default)
        place = Place(key_of([one for one in (files.target, files.draft, *files.heads) if one], load.settings))
    except LocalspecError as error:
        print(json.dumps({"failed": told(error)}), flush=True)
        return error.exit_code
    life, secret = Life(pool), secrets.token_urlsafe()
    life.load()
    print(json.dumps({"at": str(place.path), "secret": secret}), flush=True)
    os.dup2(2, 1)  # the parent has read its one line; what is printed from now on goes to the tape
    from localspec.server.own.serve import serve  # while it loads

    try:
        serve(life, place.socket, secret, load.public)
    finally:
        place.close()
    return 0


def _live_with(parent: int) -> None:
    """This process ends when its parent does, and its fate is written to standard error."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    cpus.join(parent)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(all_threads=False)  # the others run on meanwhile: reading their frames may crash
