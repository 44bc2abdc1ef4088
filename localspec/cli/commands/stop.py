"""`localspec stop`: the end of a server of this user, in order."""

from __future__ import annotations

import argparse
import os
import signal
import time
from typing import TYPE_CHECKING

from localspec.chat.plain_text import plain_text
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.models.installed.processes import Process

_LOOK_SECONDS = 0.1
"""How often it is looked whether the server has ended."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "server", nargs="?", metavar="NAME|PORT", help="its model, port or socket file; default: the one that runs"
    )


def run(options: argparse.Namespace) -> int:
    from localspec.models.installed.processes import servers

    server = _meant(servers(), options.server)
    try:
        os.kill(server.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass  # it ended by itself meanwhile
    except PermissionError:
        raise LocalspecError(f"{_told(server)} is another user's, who alone can end it.") from None
    while server in servers():
        time.sleep(_LOOK_SECONDS)
    print(plain_text(f"{_told(server)} has ended."))
    return 0


def _meant(found: list[Process], word: str | None) -> Process:
    """The server of that port, socket file or model.

    Raises:
        LocalspecError: none runs, or none so called.
        UsageError: several could be meant.
    """
    if not found:
        raise LocalspecError("No server of yours runs.", "`localspec serve` starts one.")
    meant = [one for one in found if word is None or word == one.at] or [one for one in found if word == one.name]
    running = ", ".join(f"{one.name} at {one.at}" for one in meant or found)
    if not meant:
        raise LocalspecError(f"No server of yours is at {word!r}, or has a model of that name.", f"Running: {running}.")
    if len(meant) > 1:
        raise UsageError(f"Several servers run: {running}.", "Say which one: localspec stop PORT")
    return meant[0]


def _told(server: Process) -> str:
    return f"The server of {server.name} at {server.at} (process {server.pid})"
