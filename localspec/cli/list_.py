"""`localspec list`: what is installed, and whether it is still sound. Exit code 1 if something is not."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from localspec.cli.places import size

if TYPE_CHECKING:
    from localspec.models.store import Entry


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verify", action="store_true", help="read every byte and compare sha256")
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.models.store import Store

    entries = Store().entries()
    faults = {entry.name: entry.fault or (_verify(entry) if options.verify else "") for entry in entries}
    if options.json:
        print(json.dumps([entry.as_dict() | {"fault": faults[entry.name]} for entry in entries] + _bundled()))
    else:
        _print([*entries], faults)
    return 1 if any(faults.values()) else 0


def _verify(entry: Entry) -> str:
    """What reading every byte finds; "" = sound."""
    from localspec.models.adopt import sha256_of

    for file in entry.files:
        if sha256_of(file.path) != file.sha256:
            return f"{file.path} is damaged: its sha256 has changed"
    return ""


def _bundled() -> list[dict[str, Any]]:
    """The models shipped with localspec."""
    from localspec.models.catalog import Catalog

    shipped = [model for model in Catalog.load().models.values() if model.bundled]
    return [
        {"name": model.name, "role": model.role, "source": "bundled", "path": str(model.path), "fault": ""}
        for model in shipped
    ]


def _print(entries: list[Entry], faults: dict[str, str]) -> None:
    rows = [("NAME", "ROLE", "SIZE", "QUANT", "STATE")]
    rows += [(model["name"], model["role"], "", "", "shipped with localspec") for model in _bundled()]
    for entry in entries:
        state = faults[entry.name] or (f"good, drafted by {entry.draft}" if entry.draft else "good")
        rows.append((entry.name, entry.role, size(entry.bytes), entry.quant, state))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for *cells, state in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)), state, sep="  ")
    broken = [name for name, fault in faults.items() if fault]
    if broken:
        print(f"localspec: {len(broken)} cannot be used; pull or import them again, or remove them.", file=sys.stderr)
