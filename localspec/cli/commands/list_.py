"""`localspec list`: what is installed and whether it is sound (exit code 1 if not), or what could be pulled by name."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.cli.output import print_plain, print_rows

if TYPE_CHECKING:
    from localspec.models.installed.store import Entry


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verify", action="store_true", help="read every byte and compare sha256")
    parser.add_argument("--catalog", action="store_true", help="the pairs and models that localspec knows by name")
    parser.add_argument("--names", action="store_true", help="the names alone, a line each, as shells complete them")
    parser.add_argument("--json", action="store_true", help="the list as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.store import Store

    if options.catalog:
        return _print_catalog(options.json)
    entries = Store().entries()
    if options.names:
        from localspec.models.installed.installed import names

        print("\n".join(sorted({*names(), *(entry.name for entry in entries)})))
        return 0
    faults = {
        entry.name: entry.fault or _unreadable(entry) or (_verify(entry) if options.verify else "") for entry in entries
    }
    if options.json:
        found = [
            entry.as_dict() | {"fault": fault, "completes_only": _completes(entry, fault)}
            for entry, fault in zip(entries, faults.values(), strict=True)
        ]
        facts = {"role": "endpoint", "source": "server", "path": "", "fault": ""}
        servers = [asdict(entry) | facts for entry in Catalog.load().endpoints.values()]  # no keys
        print(json.dumps(found + _bundled() + servers))
    else:
        _print(entries, faults)
    return 1 if any(faults.values()) else 0


def _unreadable(entry: Entry) -> str:
    """What is wrong with a header, which is read anyway to tell what the model can do; "" = nothing."""
    from localspec.errors import LocalspecError
    from localspec.gguf import read_header

    try:
        read_header(entry.path)
    except LocalspecError as error:
        return error.message.rstrip(".")
    return ""


def _completes(entry: Entry, fault: str) -> bool:
    """Whether a target only completes texts: it has no chat template."""
    from localspec.gguf import read_header

    return entry.role == "target" and not fault and read_header(entry.path).chat_template is None


def _verify(entry: Entry) -> str:
    """What reading every byte finds; "" = sound."""
    from localspec.paths import sha256_of

    for file in entry.files:
        try:
            if sha256_of(file.path) != file.sha256:
                return f"{file.path} is damaged: its sha256 has changed"
        except OSError as error:
            return f"{file.path} cannot be read: {error.strerror}"
    return ""


def _bundled() -> list[dict[str, Any]]:
    """The models shipped with localspec."""
    from localspec.models.installed.catalog import Catalog

    return [
        {"name": model.name, "role": model.role, "source": "bundled", "path": str(model.path), "fault": ""}
        for model in Catalog.load().models.values()
        if model.bundled
    ]


def _print_catalog(as_json: bool) -> int:
    """Pairs first, as they are what one pulls; "~" where the size was not compared with the file yet."""
    from localspec.cli.output import not_used
    from localspec.models.installed.catalog import Catalog
    from localspec.runtime.offered import offer_of, pace

    catalog = Catalog.load()
    if as_json:
        print(
            json.dumps(
                {
                    "pairs": [*map(asdict, catalog.pairs.values())],
                    "models": [*map(asdict, catalog.models.values())],
                    "endpoints": [*map(asdict, catalog.endpoints.values())],
                }
            )
        )
        return 0
    here = pace()
    rows: list[tuple[str, ...]] = [("PAIR", "TARGET", "DRAFT", "SIZE", "HERE", "LICENCE")]
    for pair in catalog.pairs.values():
        target = catalog.models[pair.target]
        offer = offer_of(catalog, pair.name)
        known = offer is not None and offer.bytes
        size = f"{'' if target.verified and offer.listed else '~'}{decimal(offer.bytes)}" if offer and known else ""
        speed = here.words(offer.read_bytes) if here and offer and offer.read_bytes and not target.bundled else ""
        unused = f" ({pair.method}: no drafter yet)" if not_used(pair.method) else ""
        rows.append((pair.name, pair.target, pair.draft + unused, size, speed, target.licence))
    print_rows(rows)
    paired = {name for pair in catalog.pairs.values() for name in (pair.target, pair.draft)}
    alone = sorted(set(catalog.models) - paired)
    print(f"\nFetch one: localspec pull PAIR. Further models by name: {', '.join(alone) or 'none'}.")
    return 0


def _print(entries: list[Entry], faults: dict[str, str]) -> None:
    from localspec.chat.prompt.prompt import NO_TEMPLATE
    from localspec.models.installed import installed
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import called, can_draft, same_files

    rows: list[tuple[str, ...]] = [("NAME", "ROLE", "SIZE", "QUANT", "STATE")]
    rows += [(model["name"], model["role"], "", "", "shipped with localspec") for model in _bundled()]
    default = called(found := installed.default())
    unused = {entry.name for entry in entries if not faults[entry.name] and not can_draft(entry)}
    for entry in entries:
        drafted = f"good, drafted by {entry.draft}" if entry.draft else "good"
        if entry.draft in unused or entry.name in unused:
            drafted = "good; such heads are kept and not used yet"
        if _completes(entry, faults[entry.name]):
            drafted = f"{drafted}; {NO_TEMPLATE}"
        if same := same_files(entry, entries):
            drafted += f"; the same file as {', '.join(same)}"
        state = faults[entry.name] or drafted
        first = "default; " if entry.name == default else ""
        rows.append((entry.name, entry.role, decimal(entry.bytes), entry.quant, first + state))
    rows += [(one.name, "endpoint", "", "", one.title) for one in Catalog.load().endpoints.values()]
    print_rows(rows)
    if found.fault:
        print_plain(f"{found.fault} {default} answers where no model is named.")
    if not entries:
        from localspec.runtime.offered import HEADING, offered

        if offers := offered():  # as the chat's welcome has them
            print(f"\n{HEADING}")
            print_rows(offers)
            print("localspec pull NAME fetches one.")
    broken = [name for name, fault in faults.items() if fault]
    if broken:
        print(f"localspec: {len(broken)} cannot be used; pull or import them again, or remove them.", file=sys.stderr)
