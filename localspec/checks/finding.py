"""One line of what `localspec doctor` and the doctor screen say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at."""

    name: str
    value: str
    """What was found, with numbers."""
    advice: str = ""
    """What to do, in a sentence; "" = all is well."""
    command: str = ""
    """What to type for it, or the option to start localspec with; "" = nothing to type."""
