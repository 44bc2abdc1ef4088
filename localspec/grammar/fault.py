"""What is wrong with a grammar, in the words of whoever wrote it: without names, places and copies of what it was made
into.
"""

from __future__ import annotations

import re

ENDLESS = "it never gets to a text: a rule or a reference only leads back to itself"
_ENDLESS = "NoExtensionBias"
"""llguidance's word where no token can come first."""
_COPY = re.compile(r" \d+ \| .*")
"""The lines of the grammar around a mistake; they are those of a translation."""
_PLACE = re.compile(r"\bat \d+\(\d+\): |\(in \w+\): |(?:lexer|parser) error: ", re.IGNORECASE)
_PATTERN = re.compile(r"(?:invalid regex .*?)?regex parse error: (?P<pattern>.*?) \^+ error: (?P<why>.*)")
_FOREIGN = re.compile(r"Resource '(?P<name>.*?)' is not present.*")


def words(text: str) -> str:
    """A sentence without its full stop.

    Args:
        text: what llguidance, or what translates for it, says; any number of lines.
    """
    said = _COPY.sub("", " ".join(text.split("<state>")[0].split()))
    if _ENDLESS in said:
        return ENDLESS
    said = _PLACE.sub("", said)
    if found := _PATTERN.search(said):
        said = f"the pattern {found['pattern']!r}: {found['why']}"
    if found := _FOREIGN.search(said):
        said = f"the reference {found['name']!r} is not to a part of the schema, and nothing is fetched"
    return said.rstrip(" ^.") or "it gives no reason"
