"""Models to pull in words, with size and expected speed: the same in the welcome, on F5 and in `list`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from localspec import paths
from localspec.errors import LocalspecError
from localspec.llama.exact import facts
from localspec.machine import default_threads
from localspec.models.hub.offer import Offer, first_offers, recommended
from localspec.models.memory import gpu
from localspec.runtime.costs import Rates, read_seconds
from localspec.runtime.memory import gpus

TINY = (
    "It is the tiny pair that comes with localspec, a demonstration: it repeats, sorts and fills in short texts, and "
    "gets much else wrong. For good answers take a larger model."
)
"""Of the bundled pair, to users who have no other model."""
HEADING = "These fit this machine, each with its drafter; speeds without drafts:"
"""Above the models to pull."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast this machine's CPU decodes."""

    rates: Rates
    measured: bool
    """False = nothing was measured here yet: it is taken for a usual machine."""

    def tokens_per_second(self, read_bytes: int) -> float:
        """Of plain decoding, with a model whose passes read so many bytes."""
        return 1.0 / read_seconds(read_bytes, self.rates)

    def words(self, read_bytes: int) -> str:
        """The same in words: by what was measured here, or "perhaps" by what a usual machine does."""
        rate = self.tokens_per_second(read_bytes)
        return f"{'some' if self.measured else 'perhaps'} {rate:.{1 if rate < 3 else 0}f} tok/s"


def is_bundled(target: Path) -> bool:
    """Whether a model's file came with localspec."""
    return paths.real(target).parent == paths.real(paths.bundled(""))


def pace() -> Pace | None:
    """How fast this machine is; None = a GPU computes, whose rates are unknown. Nothing is timed for it."""
    if gpu.used(gpus()):
        return None
    measured = facts.read_limits(default_threads())
    return Pace(Rates(), False) if measured is None else Pace(Rates.of(measured), True)


def offered() -> list[tuple[str, str]]:
    """(name that `localspec pull` takes, what it is) of models for this machine; nothing once one is installed."""
    here = pace()
    try:
        found = first_offers(rate=None if here is None else here.tokens_per_second)
    except LocalspecError:
        return []  # the screen of models, and `list`, say what is wrong with the catalogue
    return [(one.name, words(one, here)) for one in found]


def recommended_names() -> list[str]:
    """Names of the models for this machine, best first, whatever is installed."""
    here = pace()
    return [one.name for one in recommended(None if here is None else here.tokens_per_second)]


def words(offer: Offer, here: Pace | None) -> str:
    """Size, drafter, and the speed without drafts.

    Args:
        offer: what is offered.
        here: this machine; None = its speed is not known, and none is named.
    """
    text = f"about {decimal(offer.bytes)}, {offer.drafter}"
    return text if here is None or not offer.read_bytes else f"{text}, {here.words(offer.read_bytes)}"
