"""The first run in words: what the bundled pair is, and models to pull in its place, with size and expected speed."""

from __future__ import annotations

from pathlib import Path

from rich.filesize import decimal

from localspec import paths
from localspec.errors import LocalspecError
from localspec.llama.exact import limits
from localspec.llama.exact.limits import Limits
from localspec.llama.library import lib
from localspec.models.hub.offer import Offer, first_offers
from localspec.models.memory import gpu
from localspec.runtime.memory.estimate import Rates, read_seconds
from localspec.runtime.memory.memory import gpus

TINY = (
    "It is the tiny pair that comes with localspec, a demonstration: it repeats, sorts and fills in short texts, and "
    "gets much else wrong. For good answers take a larger model."
)
"""Of the bundled pair, to users who have no other model."""
HEADING = "These fit this machine, each with its drafter:"
"""Above the models to pull."""


def is_bundled(target: Path) -> bool:
    """Whether a model's file came with localspec."""
    return target.resolve().parent == paths.bundled("").resolve()


def offered() -> list[tuple[str, str]]:
    """(name that `localspec pull` takes, what it is) of models for this machine; nothing once one is installed.

    Nothing is timed: a speed is named where this machine's rates were measured while it was idle.
    """
    try:
        found = first_offers()
    except LocalspecError:
        return []  # the screen of models, and `list`, say what is wrong with the catalogue
    measured = _measured() if found else None
    return [(one.name, words(one, measured)) for one in found]


def words(offer: Offer, measured: Limits | None) -> str:
    """Size, drafter, and the speed without drafts.

    Args:
        offer: what is offered.
        measured: what this machine can do; None = that is not known, and no speed is named.
    """
    text = f"about {decimal(offer.bytes)}, {offer.drafter}"
    if measured is None or not offer.read_bytes:
        return text
    rate = 1.0 / read_seconds(offer.read_bytes, Rates.of(measured))
    return f"{text}, some {rate:.{1 if rate < 3 else 0}f} tokens/s before it drafts"


def _measured() -> Limits | None:
    """What the CPU was measured to do at most; None = it was not, or a GPU will compute, whose rates are unknown."""
    return None if gpu.used(gpus()) else limits.read(paths.machine_dir(), lib.default_threads())
