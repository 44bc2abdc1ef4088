"""What the next level of a draft must bring, for a drafter that can stop in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from localspec.engine.interfaces import Price


@dataclass(slots=True)
class DraftPrice(Price):
    """Goes on while some longer draft is worth more than the best one that could be sent now.

    With reach[i] = probability that the first i guesses are all accepted (from the confidences so far), a draft of m
    nodes is worth sum(reach[1..m]) - rate * (pass_seconds[m] - pass_seconds[0]) tokens. After level k the guesses to
    come are taken at their typical acceptance, and every further level costs the drafter `level_seconds`. All
    lengths are compared, not the next node alone: after a bad width a good one may follow.
    """

    rate: float
    """Tokens that a second must bring (`Coming.rate`)."""
    pass_seconds: Sequence[float]
    """By nodes sent, 0 included; infinity where no pass of that width may run."""
    level_seconds: float
    """Seconds that the drafter takes for one more level."""
    probability: Callable[[float], float]
    """From a node's confidence, the probability that it is accepted if its parent is."""
    typical: Sequence[float]
    """By depth - 1, the probability of acceptance before the confidence is known."""

    def pays(self, path: Sequence[float], nodes: int) -> bool:
        prices, rate = self.pass_seconds, self.rate
        plain = prices[0]
        breadth = max(1, nodes // len(path))
        reach, total, best = 1.0, 0.0, 0.0
        for depth, confidence in enumerate(path, 1):
            reach *= self.probability(confidence)
            total += reach
            if depth * breadth < len(prices):
                best = max(best, total - rate * (prices[depth * breadth] - plain))
        drafting = 0.0
        for depth in range(len(path) + 1, min(len(self.typical), (len(prices) - 1) // breadth) + 1):
            reach *= self.typical[depth - 1]
            total += reach
            drafting += self.level_seconds
            if total - rate * (prices[depth * breadth] - plain + drafting) > best:
                return True
        return False
