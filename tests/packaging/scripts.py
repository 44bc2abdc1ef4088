"""Scripts of packaging/ as modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


@contextmanager
def imported(folder: str, *names: str) -> Iterator[dict[str, ModuleType]]:
    """Scripts of a folder of packaging/, which import one another by these short names; these are free again then."""
    place = str(PACKAGING / folder)
    before = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, place)
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(place)
        for name, old in before.items():
            sys.modules.pop(name, None)
            if old is not None:
                sys.modules[name] = old
