"""How much likelier than usual the guesses in one request are right, followed as they come true or not.

In log-odds: a Kalman filter (logistic likelihood, to first order) whose steps shrink as it grows sure. Residuals three
standard deviations off say that the content has changed, and it starts to follow quickly again. While nothing is heard
it goes back to where it began.

Requests that follow one another are often of a kind: a chat, a folder of documents, one program. So a request begins
with what was found for those before it (`Kind`), measured against the table they share and not against what was
expected, and is as unsure of it as of anything new. A second filter, whose steps are requests: kinds differ more than
requests of a kind, so three wrong guesses in one request already say much of the next. Where nothing is heard, a kind
fades.
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
"""Furthest that a request may be shifted ..."""
_KINDS, _MOST_KIND = 2.0, 3.0
"""... variance of kinds, in squared log-odds, and furthest that a kind may be."""
_STAYS = 0.95
"""Of a kind's shift, what is left at the next request."""


@dataclass(slots=True)
class Kind:
    """What the last requests had in common."""

    shift: float = 0.0
    variance: float = _KINDS

    def heard(self, surplus: float, information: float) -> None:
        """A request is over.

        Args:
            surplus: guesses of it that were right, less those expected by what is usual.
            information: of these guesses (Fisher's, by log-odds); 0 = there were none.
        """
        step = self.variance / (1.0 + (self.variance + _UNSURE) * information)
        shift = self.shift + step * (surplus - information * self.shift)
        self.variance *= 1.0 - step * information
        self.shift = _STAYS * min(_MOST_KIND, max(-_MOST_KIND, shift))
        self.variance = _KINDS + _STAYS * _STAYS * (self.variance - _KINDS)


class Shift:
    """Of one request."""

    __slots__ = ("_information", "_kind", "_residual", "_spread", "_surplus", "_variance", "odds", "value")

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self.value = kind.shift
        self.odds = math.exp(self.value)
        self._variance = _UNSURE
        self._residual = self._spread = 0.0  # faded sum of residuals, and its variance
        self._surplus = self._information = 0.0  # of what is usual, over the whole request

    def of(self, usual: float, off: float = 0.0) -> float:
        """The probability here, where usually it is this; or if this request is so many standard deviations better."""
        raised = usual * (self.odds if not off else self.odds * math.exp(off * math.sqrt(self._variance)))
        return raised / (raised + 1.0 - usual)

    def learn(self, usual: float, hit: bool) -> float:
        """A guess that usually is right with this probability was right or not; returns what was expected here."""
        self._surplus += hit - usual
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
        return predicted

    def fade(self, share: float) -> None:
        """Nothing was heard for a while: this share of what was learned of the request does not hold any more."""
        self.value += share * (self._kind.shift - self.value)
        self.odds = math.exp(self.value)
        self._variance += share * (_UNSURE - self._variance)

    def close(self) -> None:
        """The request is over."""
        self._kind.heard(self._surplus, self._information)
