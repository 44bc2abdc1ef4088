"""`localspec rm`: removes models; bytes that another model, program or link still uses are kept, and that is said."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from localspec.cli.output import print_plain
from localspec.errors import ModelError, UsageError

if TYPE_CHECKING:
    from localspec.models.installed.store import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="installed model, or pair of the catalogue")
    parser.add_argument("--partial", action="store_true", help="interrupted downloads instead")
    parser.add_argument("--force", action="store_true", help="also what is open, or is another model's draft")
    parser.add_argument("--json", action="store_true", help="what was removed and kept, as JSON")


def run(options: argparse.Namespace) -> int:
    from localspec.models.installed.adopt import forget, is_begun, work_folder
    from localspec.models.installed.store import Store

    if options.partial:
        return _partial(options)
    if not options.names:
        raise UsageError("There is nothing to remove.", "localspec list shows what is installed.")
    store, removed = Store(), []
    installed = {entry.name for entry in store.entries()}
    begun = [name for name in options.names if name not in installed and is_begun(name)]
    doomed = _models([name for name in options.names if name not in begun], store)
    if not options.force:
        for name in doomed:
            _check_unused(name, store, doomed)
    for name in doomed:
        for removal in store.remove(name):
            removed.append({"name": name, "path": str(removal.path), "bytes": removal.bytes, "kept": removal.kept})
            freed = f"{removal.bytes / 1e6:.1f} MB given back" if not removal.kept else f"kept: {removal.kept}"
            if not options.json:
                print_plain(f"{name}: {removal.path}: {freed}.")
    for name in dict.fromkeys([*begun, *doomed]):
        if freed_bytes := forget(name):
            removed.append({"name": name, "path": str(work_folder(name)), "bytes": freed_bytes, "kept": ""})
            if not options.json:
                print_plain(f"{name}: what it was trained with: {freed_bytes / 1e6:.1f} MB given back.")
    if options.json:
        print(json.dumps(removed))
    return 0


def _models(names: list[str], store: Store) -> list[str]:
    """Entry names; a pair of the catalogue stands for its two models, as far as they are installed."""
    from localspec.models.installed.catalog import Catalog

    catalog, found = Catalog.load(), []
    for name in names:
        catalog.check_local(name)
        pair = catalog.pairs.get(name) if not any(entry.name == name for entry in store.entries()) else None
        wanted = [pair.target, pair.draft] if pair else [name]
        there = [store.find(one) for one in wanted]
        if not any(there):
            shipped = pair is not None and catalog.models[pair.target].bundled
            shipped = shipped or (name in catalog.models and catalog.models[name].bundled)
            why = "is shipped with localspec and goes with it" if shipped else "is not installed"
            raise ModelError(f"{name!r} {why}.", "localspec list shows what is installed.")
        found += [entry.name for entry in there if entry is not None]
        if pair is not None and len(found) > 1:
            users = [other.name for other in store.entries() if other.draft == pair.draft and other.name not in found]
            if users and pair.draft in found:
                found.remove(pair.draft)
                print(f"{pair.draft}: kept: it is the draft of {', '.join(users)} too.", file=sys.stderr)
    entries = store.entries()
    mine = {entry.draft for entry in entries if entry.name in found}
    mine -= {entry.draft for entry in entries if entry.name not in found}
    # nothing else can use them
    heads = (entry.name for entry in entries if entry.role == "head" and entry.name in mine)
    return list(dict.fromkeys([*found, *heads]))


def _check_unused(name: str, store: Store, doomed: list[str]) -> None:
    from localspec.processes import users_of

    entries = store.entries()
    entry = next(entry for entry in entries if entry.name == name)
    users = users_of({file.path for file in entry.files})
    if users:
        what = f"process {users[0].pid} ({users[0].command})"
        raise ModelError(f"{name!r} is open in {what}.", "End it first, or use --force.")
    others = [other.name for other in entries if other.draft == name and other.name not in doomed]
    if others:
        raise ModelError(f"{name!r} is the draft of {', '.join(others)}.", "Remove that first, or use --force.")


def _partial(options: argparse.Namespace) -> int:
    """Removes what interrupted downloads have left, unless they go on at this moment."""
    from localspec.models.hub.download import remove_partials
    from localspec.models.hub.hub import Hub
    from localspec.models.installed.store import Store

    if options.names:
        raise UsageError("--partial takes no names.")
    removed = remove_partials(Hub(offline=True), Store().files)
    if options.json:
        print(json.dumps([{"path": str(path), "bytes": size} for path, size in removed]))
    else:
        for path, size in removed:
            print(f"{path}: {size / 1e6:.1f} MB given back.")
        print(f"{len(removed)} interrupted downloads removed.")
    return 0
