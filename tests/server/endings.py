"""Words of the bundled model whose beginning may differ between CPUs: its near-ties fall with the rounding."""

from __future__ import annotations


class Ending(str):
    """Equal to every text that ends so."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.endswith(other, str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


CASTLE = Ending("violet castle")
CASTLE_JSON = Ending('violet castle"}')
