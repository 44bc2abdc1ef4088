"""`localspec ps` and `localspec stop`: running localspec processes, and the end of a server of this user."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from localspec.chat.plain_text import plain_text
from localspec.cli.output import print_rows
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.models.installed.processes import Process


def add_options_ps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run_ps(options: argparse.Namespace) -> int:
    from localspec.models.installed.processes import running
    from localspec.models.installed.store import Store

    found = running()
    if options.json:
        print(json.dumps([process.as_dict() for process in found]))
        return 0
    names = {file.path: entry.name for entry in Store().entries() for file in entry.files}
    at = {process.pid: process.at for process in found if process.at}
    busy = {process.pid for process in found if process.target}
    rows = [("PID", "COMMAND", "AT", "TARGET", "DRAFT", "CONTEXT", "MEMORY", "RUNNING")]
    for process in found:
        if not process.target and process.pid in busy:
            continue  # its models say it
        models = [names.get(Path(path), Path(path).name) if path else "-" for path in (process.target, process.draft)]
        context = str(process.context or "-")
        seconds = max(0, int(time.time() - process.started))
        since = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        where, memory = at.get(process.pid, "-"), process.memory()
        taken = decimal(memory) if memory else "-"
        rows.append((str(process.pid), process.command, where, models[0], models[1], context, taken, since))
    print_rows(rows)
    return 0


_LOOK_SECONDS = 0.1
"""How often it is looked whether the server has ended."""


def add_options_stop(parser: argparse.ArgumentParser) -> None:
    told = "its model, port or socket file; default: the one that runs"
    parser.add_argument("server", nargs="?", metavar="NAME|PORT", help=told)


def run_stop(options: argparse.Namespace) -> int:
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
    """The server of that port, socket file or model."""
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
