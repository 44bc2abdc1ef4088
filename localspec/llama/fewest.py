"""How few tokens a text can have, told from its bytes, before llama.cpp makes tokens of it.

For every special token that llama.cpp finds it walks the list of what it has found, from the start: its steps grow with
the square of their number, and megabytes take minutes. Code that takes texts from strangers asks here first.
"""

from __future__ import annotations

from collections.abc import Sequence

_NOTHING = b"\xff"  # no byte of UTF-8: what stands around it does not become a special token


class FewestTokens:
    """For the tokenizer of one model. Thread-safe."""

    def __init__(self, texts: Sequence[bytes], control: Sequence[bytes], user_defined: Sequence[bytes]) -> None:
        """
        Args:
            texts: of all tokens, as the vocabulary writes them, which is never shorter than what they stand for.
            control: of those among them that are found only where special tokens are read as such.
            user_defined: of those that are found in every text.
        """
        self._longest = max(map(len, texts), default=1)
        self._everywhere = _longest_first(user_defined)
        self._marked = _longest_first([*control, *user_defined])

    def of(self, text: str, most: int, *, special: bool) -> int:
        """A text has this many tokens or more. No token is longer than the longest, and no two special ones are one.

        Args:
            text: any string.
            most: tokens that would be too many if there were one more; what is beyond is not counted.
            special: special tokens are read as such.
        """
        data = text.encode("utf-8", "replace")
        by_length = -(-len(data) // self._longest)
        specials = self._marked if special else self._everywhere
        if by_length > most or not specials or len(data) <= most * len(specials[-1]):
            return by_length
        found = 0
        for one in specials:
            count = data.count(one)
            if count:
                found += count
                if found > most:
                    break
                data = data.replace(one, _NOTHING)
        return max(by_length, found)


def _longest_first(texts: Sequence[bytes]) -> list[bytes]:
    """In the order in which llama.cpp looks for them: what is part of a longer one is not found there."""
    return sorted(filter(None, texts), key=len, reverse=True)
