"""How many tokens of a prompt are read at once: measured costs decide, so that no answer waits long for a prompt.

vLLM calls it chunked prefill. Where the cache depends on how a prompt is cut, prompts are read in whole chunks instead.
"""

from __future__ import annotations

from collections import deque
from statistics import median

PASSES_BETWEEN = 5
"""Plain passes that the time between two tokens of an answer may take while a prompt is read: a piece, and a pass."""
ALONE_SECONDS = 1.0
"""Seconds of a piece while no answer is decoded: a new request waits this long, and a cancel loses no more."""
ALONE_PASSES = 16
"""Plain passes that such a piece may take where these are more: every piece reads the weights, as a pass does."""
LEAST_PIECE, LEAST_ALONE = 4, 64
"""Tokens of a piece at least, beside answers and alone: fewer cost about as much."""
FIRST_PIECE = 32
"""Tokens of the first piece, when no cost is known."""
_PASSES_KEPT = 16
"""Number of last passes whose median counts as the pass: it ignores a stall and follows the load."""


class Reading:
    """The size of the next piece, from what the last piece and the last passes took."""

    def __init__(self, largest: int) -> None:
        """`largest`: most tokens of a piece."""
        self._largest = largest
        self._passes: deque[float] = deque(maxlen=_PASSES_KEPT)
        self._token = 0.0
        """Seconds for each token of the last piece; 0 = nothing was read yet."""

    def passed(self, seconds: float) -> None:
        """Learns what plain decoding takes for a pass now."""
        self._passes.append(seconds)

    def read(self, tokens: int, seconds: float) -> None:
        """Learns what a piece of `tokens` took. A slow one is believed by half: it may have been a stall."""
        if tokens > 0 and seconds > 0.0:
            found = seconds / tokens
            self._token = min(found, 2.0 * self._token) if self._token else found

    def piece(self, beside: bool) -> int:
        """Most tokens of the next piece; `beside`: whether answers are decoded meanwhile."""
        if not self._token or (beside and not self._passes):
            return min(FIRST_PIECE, self._largest)
        plain = median(self._passes or [0.0])
        seconds = (PASSES_BETWEEN - 1) * plain if beside else max(ALONE_SECONDS, ALONE_PASSES * plain)
        least = min(LEAST_PIECE if beside else LEAST_ALONE, self._largest)
        return max(least, int(min(seconds / self._token, self._largest)))
