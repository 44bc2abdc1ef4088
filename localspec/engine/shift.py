"""How much likelier than usual the guesses in one request are right, followed as they come true or not.

In log-odds: a Kalman filter (logistic likelihood, to first order) whose steps shrink as it grows sure. Residuals three
standard deviations off say that the content has changed, and it starts to follow quickly again. While nothing is heard
it goes back to where it began.

Requests that follow one another are often of a kind: a chat, a folder of documents, one program. So a request begins
with part of what was found for those before it (`Kind`), measured against the table they share and not against what
was expected, and is as unsure of it as of anything new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_UNSURE, _CHANGED = 0.5, 2.0
"""Variance, in squared log-odds, of a request nobody knows yet and of one whose content has changed."""
_WANDER = 0.0005
"""How much the variance grows with every guess: contents drift."""
_FADE = 0.9
_ALARM = 3.3
_MOST = 5.0
_KINSHIP, _MOST_KINSHIP = 0.6, 3.0
"""Of what was found for a request, what the next one takes over, and the most it may be."""


@dataclass(slots=True)
class Kind:
    """What the last requests had in common."""

    shift: float = 0.0


class Shift:
    """Of one request."""

    __slots__ = ("_information", "_kind", "_misses", "_residual", "_spread", "_variance", "odds", "value")

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.value = kind.shift
        self.odds = math.exp(self.value)
        self._variance = _UNSURE
        self._residual = self._spread = 0.0  # faded sum of residuals, and its variance
        self._misses = self._information = 0.0  # of what is usual, over the whole request

    def of(self, usual: float, off: float = 0.0) -> float:
        """The probability here, where usually it is this; or if this request is so many standard deviations better."""
        raised = usual * (self.odds if not off else self.odds * math.exp(off * math.sqrt(self._variance)))
        return raised / (raised + 1.0 - usual)

    def learn(self, usual: float, hit: bool) -> None:
        """A guess that usually is right with this probability was right or not."""
        self._misses += hit - usual
        self._information += usual * (1.0 - usual)
        predicted = self.of(usual)
        miss, information = hit - predicted, predicted * (1.0 - predicted)
        gain = self._variance / (1.0 + self._variance * information)
        self.value = min(_MOST, max(-_MOST, self.value + gain * miss))
        self._variance += _WANDER - gain * information * self._variance
        self._residual = _FADE * self._residual + miss
        self._spread = _FADE * _FADE * self._spread + information
        if self._residual * self._residual > _ALARM * _ALARM * self._spread:
            self._variance, self._residual, self._spread = _CHANGED, 0.0, 0.0
        self.odds = math.exp(self.value)

    def fade(self, share: float) -> None:
        """Nothing was heard for a while: this share of what was learned of the request does not hold any more."""
        self.value += share * (self._kind.shift - self.value)
        self.odds = math.exp(self.value)
        self._variance += share * (_UNSURE - self._variance)

    def close(self) -> None:
        """The request is over."""
        weight = self._information + 1.0 / _UNSURE
        found = min(_MOST_KINSHIP, max(-_MOST_KINSHIP, self._misses / weight))
        self._kind.shift += _KINSHIP * self._information / weight * (found - self._kind.shift)
