"""The process of one model, for the localspec that starts it (`localspec.runner.child`): what it does, in order.

Everybody waits for its start: loading begins before what answers is imported.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import secrets
import signal
import sys
from typing import Any

from localspec.chat.prompt.template import environment
from localspec.errors import LocalspecError, told
from localspec.llama.library import lib
from localspec.llama.library.contention import cpus
from localspec.runner import child
from localspec.runner.place import Place, key_of
from localspec.runtime.pool import Pool
from localspec.server.own.life import Life

_PR_SET_PDEATHSIG = 1


def run() -> int:
    """Reads on standard input what to load, a `Load` as a dict, says on standard output where it listens, or what is
    wrong, and serves; returns the exit code.
    """
    try:
        load: dict[str, Any] = pickle.load(sys.stdin.buffer)
    except (EOFError, ValueError, pickle.UnpicklingError):
        sys.stderr.write("localspec: Only localspec itself starts this. `localspec serve` is for everybody.\n")
        return 2
    _live_with(load["parent"])
    lib.log.echo = child.write
    settings = load["settings"]
    try:
        pool = Pool(
            load["target"],
            load["draft"],
            heads=load["heads"],
            settings=settings,
            called=load["called"],
            announced=False,
        )
        files = pool.files(pool.default)
        place = Place(key_of([one for one in (files.target, files.draft, *files.heads) if one], settings))
    except LocalspecError as error:
        _say({"failed": told(error)})
        return error.exit_code
    life, secret = Life(pool), secrets.token_urlsafe()
    life.load()
    _say({"at": str(place.path), "secret": secret})
    os.dup2(2, 1)  # the parent has read its one line; what is printed from now on goes to the tape
    environment()  # while it loads
    from localspec.server.own.serve import serve

    try:
        serve(life, place.socket, secret, load["public"])
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


def _say(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
