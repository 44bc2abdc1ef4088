"""What a drafter that costs something promises for a pass (see `costly`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Offer:
    """What a drafter promises before it has guessed."""

    value: float
    """Tokens a pass over sending nothing, at lambda; small readings charged, investments not."""
    tokens: float
    """Expected a pass and slot, the target's own included."""
    at_best: float
    """Tokens a pass over plain decoding that it may bring, were it alone and had it nothing to read."""
    first_seconds: float
    """Of the first level of its draft ..."""
    level_seconds: float
    """... and of each further one."""
    reading: float
    """Seconds it must read first."""
    missing: list[int]
    """Tokens of that, for each request that lets it guess."""
    small: bool
    """The reading is no investment."""
    nodes: int
    """Length at which it promises most."""
    charged: list[float | None]
    """Seconds by nodes, the levels drawn for them included."""
