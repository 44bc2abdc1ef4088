"""`localspec ps`: running localspec processes that serve or have models open."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from rich.filesize import decimal

from localspec.cli.output import print_rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(options: argparse.Namespace) -> int:
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
        since = _since(process.started)
        where, memory = at.get(process.pid, "-"), process.memory()
        taken = decimal(memory) if memory else "-"
        rows.append((str(process.pid), process.command, where, models[0], models[1], context, taken, since))
    print_rows(rows)
    return 0


def _since(started: float) -> str:
    seconds = max(0, int(time.time() - started))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours}:{minutes:02d}:{seconds % 60:02d}"
