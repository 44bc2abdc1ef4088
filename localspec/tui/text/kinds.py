"""Where tokens come from, as colours and as signs: what the origin view, its legend, the bars and the race share.

The colours are Okabe and Ito's, made to be told apart with any kind of colour vision; deeper guesses are stronger. The
signs say the same without colour: the letter of the drafter at position 1 of a draft, then the position.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

REJECTED = "x"
"""Sign of a rejected guess."""
OWN = "·"
"""Sign of the target's own token."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A source of tokens."""

    name: str
    """What people call it."""
    letter: str
    colour: str
    """Of its background, #rrggbb; "" = none."""
    underline: int = 0
    """Lines under its tokens where there is no colour: 0, 1 or 2."""
    italic: bool = False


TARGET = Kind("the target's own", OWN, "")
_DRAFTERS = {
    "draft": Kind("draft model", "d", "#56B4E9", 1),
    "lookup": Kind("prompt lookup", "l", "#E69F00", 2),
    "grammar": Kind("grammar", "g", "#CC79A7", 1, True),
    "suffix": Kind("suffix decoding", "s", "#009E73", 2, True),
    "recycling": Kind("token recycling", "r", "#F0E442", 0, True),
}
_OTHERS = ("#D55E00", "#0072B2")


def kind_of(drafter: str) -> Kind:
    """The kind of a drafter by its name; "" = the target. Names not known here get a letter and colour of their own."""
    if not drafter:
        return TARGET
    known = _DRAFTERS.get(drafter)
    if known is not None:
        return known
    letters = [letter for letter in drafter.lower() if letter.isalpha()]
    taken = {kind.letter for kind in _DRAFTERS.values()}
    letter = next((letter for letter in letters if letter not in taken), "o")
    return Kind(drafter, letter, _OTHERS[sum(map(ord, drafter)) % len(_OTHERS)], 1)


def sign(drafter: str, depth: int) -> str:
    """One character: the letter at position 1, the position after it, + beyond 9; · for the target's own."""
    if not drafter or depth < 1:
        return OWN
    if depth == 1:
        return kind_of(drafter).letter
    return str(depth) if depth <= 9 else "+"


def strength(depth: int) -> float:
    """How much of the colour a background takes, 0 to 1: the deeper the guess, the more."""
    return min(0.75, 0.3 + 0.075 * (max(1, depth) - 1))


def ordered(drafters: Iterable[str]) -> list[str]:
    """Names of drafters, each once: those known here first, as they are listed, then by name."""
    known = list(_DRAFTERS)
    return sorted(set(drafters) - {""}, key=lambda name: (known.index(name) if name in known else len(known), name))
