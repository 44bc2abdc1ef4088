"""What to offer where no model is installed: models of the catalogue with a drafter, that fit this memory and disk."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from localspec.models.installed.catalog import Catalog
from localspec.models.installed.methods import METHODS
from localspec.models.installed.store import Store
from localspec.models.memory.memory import Place, ram

OFFER_ORDER = (
    "qwen3.6-35b-a3b-mtp",
    "qwen3.8-27b-dflash2",
    "lfm2.5-8b-a1b-dspark",
    "qwen3.5-4b-dflash",
    "lfm2.5-2.6b-dspark",
    "lfm2.5-1.2b-dspark",
)
"""Pairs of the catalogue, and models that draft for themselves, that are offered first: the largest first. From the
catalogue's entries of late 2026 that have a drafter trained for them."""
MOST_OFFERS = 3
"""Offers at once."""
BYTES_PER_PARAMETER = 0.65
"""Size of a Q4_K_M file with its drafter, for entries whose size is not listed: the catalogue's Qwen3 files of 8 to 32
billion parameters have 0.60 to 0.61, and a head has up to a tenth of its target."""
_OTHER_BYTES = 3 << 29
"""Bytes of memory for the cache, the passes and other programs."""
_SPARE_DISK = 1 << 30
"""Bytes of disk that are left free."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Something to pull."""

    name: str
    """What `localspec pull` takes."""
    bytes: int
    """Target and drafter together, estimated where the catalogue does not list them."""
    drafter: str
    """What drafts for it, in words."""
    read_bytes: int
    """Weights that a pass of one row reads, estimated: of a mixture of experts a part of its file; 0 = unknown."""


def first_offers(store: Store | None = None) -> list[Offer]:
    """What to offer on this machine as it is now; nothing once a model is installed.

    Args:
        store: None = the user's.

    Raises:
        UsageError: the user's catalogue cannot be read.
    """
    if (Store() if store is None else store).entries():
        return []
    return offers(Catalog.load(), ram(), _free_disk())


def offers(catalog: Catalog, memory: Place, disk_bytes: int) -> list[Offer]:
    """The largest of `OFFER_ORDER` that fit, at most `MOST_OFFERS`.

    Args:
        catalog: what is known; names that it does not have are left out.
        memory: the CPU's; where its free bytes are unknown (0), only the disk counts.
        disk_bytes: free where models are kept.
    """
    found = [offer for name in OFFER_ORDER if (offer := _offer(catalog, name)) is not None]
    room = memory.free_bytes - _OTHER_BYTES if memory.free_bytes else disk_bytes
    return [one for one in found if one.bytes <= min(room, disk_bytes - _SPARE_DISK)][:MOST_OFFERS]


def _offer(catalog: Catalog, name: str) -> Offer | None:
    pair = catalog.pairs.get(name)
    target = catalog.models.get(name if pair is None else pair.target)
    if target is None or (pair is not None and pair.method not in METHODS):
        return None
    draft = None if pair is None else catalog.models[pair.draft]
    drafter = "layers of its own file draft" if draft is None or pair is None else f"drafter: {pair.method}"
    listed = target.bytes + draft.bytes if draft is not None and target.bytes and draft.bytes else 0
    read = _estimate(target.name, "a") or target.bytes or _estimate(target.name)
    return Offer(name, listed or _estimate(target.name), drafter, read)


def _estimate(name: str, kind: str = "") -> int:
    """Bytes by the billions of parameters in a model's name: of all, or with the kind "a" of those active for a token
    (35b-a3b); 0 = the name does not say.
    """
    billions = re.search(rf"-{kind}(\d+(?:\.\d+)?)b\b", name)
    return int(float(billions[1]) * 1e9 * BYTES_PER_PARAMETER) if billions else 0


def _free_disk() -> int:
    """Bytes free on the disk that the hub's files are, or will be, on."""
    folder = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), Path.cwd())
    return shutil.disk_usage(there).free
