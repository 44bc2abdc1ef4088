"""What plain decoding would have taken for an answer: from passes as they came, since people read it.

The plan's belief will not do. It takes a fast pass at once and a slow one hardly, so its plain pass is that of the
machine's best moment. Here a token of a plain pass took what its pass took, stalls included. A token of a pass that
drafted would have taken the mean of this answer's plain passes. Where these are few, its passes that drafted count,
too, each divided by how many plain ones such a pass takes. The plan's seconds of a plain pass have no part in it: their
unit moves from pass to pass, and more so while drafts run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from localspec.engine.plan import Curve

ENOUGH_PASSES = 16
"""Plain passes of an answer from which on they say alone how slow plain passes are; half as many where nothing else
is known, and no figure under that. On a quiet machine the mean of 16 is off by 6 % (tests/data/pass_noise.json)."""
_REMEMBERED = 32
"""Passes of a width that its mean is of: older ones fade."""


@dataclass(slots=True, eq=False)
class Beside:
    """How slow passes that draft are beside plain ones, with one number of slots; the loop keeps it for all answers."""

    known: bool = False
    """Whether an answer had enough plain passes since the model was loaded."""
    widths: dict[int, tuple[int, float]] = field(default_factory=dict)
    """By width: number of passes, and how many plain passes one takes, measured in answers with enough of these. The
    curve does not serve for it: where only wide passes run, it takes a slower machine for dearer rows."""

    def learn(self, width: int, plain: float) -> None:
        """Learns from a pass that took as long as so many plain ones."""
        count, mean = self.widths.get(width, (0, 0.0))
        count = min(count + 1, _REMEMBERED)
        self.widths[width] = count, mean + (plain - mean) / count

    def over_plain(self, width: int, curve: Curve) -> float:
        """How many plain passes one of this width takes: by the curve, as far as that is right of the nearest width
        that was measured."""
        found = curve.over_plain(width)
        if not self.widths:
            return found
        near = min(self.widths, key=lambda one: abs(one - width))
        return found * self.widths[near][1] / curve.over_plain(near)


@dataclass(slots=True)
class Step:
    """One pass, with all that a slot waits for."""

    curve: Curve
    plain: bool
    """Whether it was plain decoding: nothing was sent, whether drafters were asked or not."""
    seconds: float
    """Of everything but planning and drafting."""
    spent: float
    """Of everything."""


@dataclass(slots=True)
class _Part:
    """The passes of an answer with one number of slots."""

    curve: Curve
    """Of the last of them."""
    passes: int = 0
    """Plain ones."""
    seconds: float = 0.0
    """Of these."""
    late: float = 0.0
    """Mean seconds of the last of these: what a pass beside them is compared with."""
    tokens: int = 0
    spent: float = 0.0
    """Seconds of all passes that are compared."""
    wanted: int = 0
    """Tokens of passes that drafted."""
    widths: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of passes that drafted, by width: their number and their seconds."""

    def add(self, step: Step, tokens: int) -> None:
        self.curve = step.curve
        if step.plain:
            self.passes += 1
            self.seconds += step.seconds
            self.late += (step.seconds - self.late) / min(self.passes, ENOUGH_PASSES // 2)
        elif step.curve.width:
            count, seconds = self.widths.get(step.curve.width, (0, 0.0))
            self.widths[step.curve.width] = count + 1, seconds + step.seconds
        self.tokens += tokens
        self.spent += step.spent
        self.wanted += 0 if step.plain else tokens

    def usual(self, beside: Beside) -> float:
        """Seconds of a plain pass; 0 = not known."""
        missing, few = ENOUGH_PASSES - self.passes, 2 * self.passes < ENOUGH_PASSES
        if missing > 0 and beside.known and self.widths and (beside.widths or few):
            expected = sum(count * beside.over_plain(width, self.curve) for width, (count, _) in self.widths.items())
            others = sum(seconds for _, seconds in self.widths.values()) / expected
            return (self.seconds + missing * others) / ENOUGH_PASSES
        return 0.0 if few else self.seconds / self.passes


class Comparison:
    """Of one answer with plain decoding."""

    def __init__(self) -> None:
        self._parts: dict[Beside, _Part] = {}

    def add(self, step: Step, beside: Beside, tokens: int) -> None:
        """Takes in a pass that brought `tokens`.

        Args:
            step: the pass.
            beside: of as many slots as shared it; learns from it.
            tokens: that it brought.
        """
        part = self._parts.get(beside)
        if part is None:
            part = self._parts[beside] = _Part(step.curve)
        part.add(step, tokens)
        if 2 * part.passes >= ENOUGH_PASSES:
            beside.known = True
            if not step.plain and step.curve.width:
                beside.learn(step.curve.width, step.seconds / part.late)

    def totals(self) -> tuple[float, int, float]:
        """(seconds that plain decoding takes, tokens, seconds taken) of passes that can be compared; zeros where
        nothing was drafted among them."""
        plain, tokens, spent, drafted = 0.0, 0, 0.0, False
        for beside, part in self._parts.items():
            usual = part.usual(beside) if part.wanted else 0.0
            if usual or not part.wanted:
                plain += part.seconds + usual * part.wanted
                tokens += part.tokens
                spent += part.spent
                drafted = drafted or bool(part.wanted)
        return (plain, tokens, spent) if drafted else (0.0, 0, 0.0)
