"""What to pull here: models of the catalogue with a drafter that fit this memory and disk and are not too slow. Their
words, with size and expected speed, are the same in the welcome, on F5 and in `list`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from localspec import paths
from localspec.errors import LocalspecError
from localspec.llama.exact import wide
from localspec.machine import Place, default_threads, ram
from localspec.methods import FROM_FILES
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import hub_cache
from localspec.models.installed.store import Store
from localspec.runtime.costs import Rates, read_seconds
from localspec.runtime.memory import gpus, used_gpus

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
MOST_OFFERS = 3  # offers at once
BYTES_PER_PARAMETER = 0.65
"""Size of a Q4_K_M file with its drafter, for entries whose size is not listed: the catalogue's Qwen3 files of 8 to 32
billion parameters have 0.60 to 0.61, and a head has up to a tenth of its target."""
_BYTES_OF_Q8_0 = 1.1  # the same of a Q8_0 file: 1.06 by the format itself
LEAST_RATE = 3.0  # tokens a second below which reading along is a wait: such models come last
_OVERHEAD = 1.15  # memory over its file where no header can be read: a rule of thumb
_OTHER_BYTES = 512 << 20  # bytes of memory that it takes besides, however small it is
_SPARE_DISK = 1 << 30  # bytes of disk that are left free


@dataclass(frozen=True, slots=True)
class Offer:
    name: str
    bytes: int  # target and drafter together, estimated where the catalogue does not list them
    drafter: str
    read_bytes: int  # weights that a pass of one row reads, estimated; 0 = unknown
    listed: bool = False  # its size is the catalogue's, no estimate


def needed_bytes(files: int) -> int:
    """Memory that a model takes whose files have so many bytes, with a margin, before its headers can be read."""
    return int(files * _OVERHEAD) + _OTHER_BYTES


Rate = Callable[[int], float]  # tokens a second of a model whose passes read so many bytes


def recommended(here: Pace | None = None) -> list[Offer]:
    """What to recommend on this machine as it is now, best first, whatever is installed."""
    rate = None if here is None else here.tokens_per_second
    return offers(Catalog.load(), ram(), _free_disk(), rate)


def offers(catalog: Catalog, memory: Place, disk_bytes: int, rate: Rate | None = None) -> list[Offer]:
    """The largest of `OFFER_ORDER` that fit, at most `MOST_OFFERS`; such as are too slow come last, the fastest first.
    `memory` is the CPU's; where its free bytes are unknown (0), only the disk counts. `rate` None = no model is too
    slow."""
    found = [offer for name in OFFER_ORDER if (offer := offer_of(catalog, name)) is not None]
    free = memory.free_bytes
    fit = [one for one in found if one.bytes <= disk_bytes - _SPARE_DISK]
    fit = [one for one in fit if not free or needed_bytes(one.bytes) <= free]

    def slowness(one: Offer) -> float:
        speed = rate(one.read_bytes) if rate is not None and one.read_bytes else LEAST_RATE
        return 0.0 if speed >= LEAST_RATE else 1.0 / speed

    return sorted(fit, key=slowness)[:MOST_OFFERS]


def offer_of(catalog: Catalog, name: str) -> Offer | None:
    """A pair or model of the catalogue as it would be offered; None = there is none, or localspec cannot draft so."""
    pair = catalog.pairs.get(name)
    target = catalog.models.get(name if pair is None else pair.target)
    if target is None or (pair is not None and pair.method not in FROM_FILES):
        return None
    drafter, listed = "layers of its own file draft", target.bytes
    if pair is not None:
        drafter, more = f"drafter: {pair.method}", catalog.models[pair.draft].bytes
        listed = listed + more if listed and more else 0
    read = estimate(target.name, "a") or target.bytes or estimate(target.name)
    return Offer(name, listed or estimate(target.name), drafter, read, bool(listed))


def estimate(name: str, kind: str = "") -> int:
    """Bytes by the billions of parameters in a model's name: of all, or with the kind "a" of those active for a token
    (35b-a3b); 0 = the name does not say."""
    billions = re.search(rf"-{kind}(\d+(?:\.\d+)?)b\b", name)
    each = _BYTES_OF_Q8_0 if name.endswith("q8_0") else BYTES_PER_PARAMETER
    return int(float(billions[1]) * 1e9 * each) if billions else 0


def _free_disk() -> int:
    return paths.free_bytes(hub_cache())


TINY = (
    "It is the tiny pair that comes with localspec, a demonstration: it repeats, sorts and fills in short texts, and "
    "gets much else wrong. For good answers take a larger model."
)  # of the bundled pair, to users who have no other model
HEADING = "These fit this machine, each with its drafter; speeds without drafts:"  # above the models to pull


@dataclass(frozen=True, slots=True)
class Pace:
    rates: Rates
    measured: bool  # false = nothing was measured here yet: it is taken for a usual machine

    def tokens_per_second(self, read_bytes: int) -> float:
        """Of plain decoding, with a model whose passes read so many bytes."""
        return 1.0 / read_seconds(read_bytes, self.rates)

    def words(self, read_bytes: int) -> str:
        """The same in words: by what was measured here, or "perhaps" by what a usual machine does."""
        rate = self.tokens_per_second(read_bytes)
        return f"{'some' if self.measured else 'perhaps'} {rate:.{1 if rate < 3 else 0}f} tok/s"


def is_bundled(target: Path) -> bool:
    return paths.real(target).parent == paths.real(paths.bundled(""))


def pace() -> Pace | None:
    """How fast this machine is; None = a GPU computes, whose rates are unknown. Nothing is timed for it."""
    if used_gpus(gpus()):
        return None
    measured = wide.read_limits(default_threads())
    return Pace(Rates(), False) if measured is None else Pace(Rates.of(measured), True)


def offered() -> list[tuple[str, str]]:
    """(name that `localspec pull` takes, what it is) of models for this machine; nothing once one is installed."""
    here = pace()
    try:
        found = [] if Store().entries() else recommended(here)
    except LocalspecError:
        return []  # the screen of models, and `list`, say what is wrong with the catalogue
    return [(one.name, words(one, here)) for one in found]


def words(offer: Offer, here: Pace | None) -> str:
    """Size, drafter, and the speed without drafts, where that of this machine is known."""
    text = f"about {decimal(offer.bytes)}, {offer.drafter}"
    return text if here is None or not offer.read_bytes else f"{text}, {here.words(offer.read_bytes)}"
