"""Statistics of a request. Formulas are the glossary's; the chat, the command line and the endpoint use these names.

acceptance_rate      = accepted / drafted               (drafted = nodes sent to the target, trees included)
mean_accepted_tokens = accepted / passes that carried a draft
mean_accepted_length = 1 + mean_accepted_tokens         (next token included, as in llama.cpp and vLLM)
tokens_per_pass      = generated / passes               (all passes, also those without a draft)
estimated_speedup    = plain_seconds / compared_seconds (both of the passes whose plain time is known; 0 = unknown, or
                       nothing was drafted: then the answer is plain decoding, and there is nothing to compare)

What plain decoding would have taken for an answer: from passes as they came, since people read it.

The plan's belief will not do. It takes a fast pass at once and a slow one hardly, so its plain pass is that of the
machine's best moment. Here a token of a plain pass took what its pass took, stalls included. A token of a pass that
drafted would have taken the mean of this answer's plain passes. Where these are few, its passes that drafted count,
too, each divided by how many plain ones such a pass takes. The plan's seconds of a plain pass have no part in it: their
unit moves from pass to pass, and more so while drafts run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from typing import Any

from localspec.engine.interfaces import Curve, Review, Undrafted

ENOUGH_UNLIKELY = 8
"""Passes whose guesses were not likely enough, from which on they are called wrong too often: fewer show nothing."""


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` of all do not exceed (nearest rank); 0 for no samples."""
    if not samples:
        return 0.0
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def kept_comparison(stats: Mapping[str, Any]) -> tuple[float, float]:
    """(plain, compared) seconds of a kept answer (`RequestStats.as_dict`, perhaps of an older version): equal where
    nothing was drafted, even if more was estimated; zeros where plain decoding's time is not known."""
    spent = sum(number(stats, f"{part}_seconds") for part in ("draft", "verify", "host"))
    if stats.get("drafted") == 0:
        return spent, spent
    plain, compared = number(stats, "plain_seconds"), number(stats, "compared_seconds") or spent
    return (plain, compared) if plain > 0 and compared > 0 else (0.0, 0.0)


def number(stats: Mapping[str, Any], name: str) -> float:
    """A figure of a kept answer; what is missing, or no number, is 0."""
    value = stats.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


@dataclass(slots=True)
class RequestStats:
    """Counters of one request. Times in seconds."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were cached before the request, or copied from another slot."""
    generated: int = 0
    passes: int = 0
    draft_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    """[d] = how often the draft was accepted at least d + 1 deep."""
    accepted_histogram: Counter[int] = field(default_factory=Counter)
    """{a: passes with a draft of which exactly a nodes were accepted}."""
    accepted_by_drafter: Counter[str] = field(default_factory=Counter)
    drafted_by_drafter: Counter[str] = field(default_factory=Counter)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    host_seconds: float = 0.0
    """Everything else between two passes: kernels, bookkeeping, text."""
    plain_seconds: float = 0.0
    """Time that plain decoding takes for `compared` tokens (`comparison`); 0 = unknown, or nothing was drafted."""
    compared: int = 0
    """Tokens of passes whose plain time is known, plain ones among them."""
    compared_seconds: float = 0.0
    """Time of the passes of `compared`, drafting and host work included."""
    guarded_passes: int = 0
    """Passes whose draft a setting forced, where the plan's guard would have decoded plain."""
    undrafted: Counter[Undrafted] = field(default_factory=Counter)
    """{reason: number of passes without a draft for this reason}."""
    row_cost: float = 0.0
    """Cost of a further row of a pass, in plain passes, as the plan last reported it; 0 = unknown."""
    ttft_seconds: float = 0.0
    """Time to first token, from the request's start, waiting included."""
    gaps: list[float] = field(default_factory=list)
    """Seconds between the tokens of two passes, for which a reader waits. One sample a pass."""
    exact: bool = True
    """The text is the target's own, byte for byte: *coupled*, and every pass of a width whose bits equal one row's."""

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_tokens(self) -> float:
        return self.accepted / self.draft_passes if self.draft_passes else 0.0

    @property
    def mean_accepted_length(self) -> float:
        return 1.0 + self.mean_accepted_tokens

    @property
    def tokens_per_pass(self) -> float:
        return self.generated / self.passes if self.passes else 0.0

    @property
    def decode_seconds(self) -> float:
        """Draft, verify and host together; prefill left out."""
        return self.draft_seconds + self.verify_seconds + self.host_seconds

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over decode time, prefill left out."""
        return self.generated / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def estimated_speedup(self) -> float:
        """`plain_seconds` over `compared_seconds`, which include drafting and its reading; 0 = nothing to compare."""
        return self.plain_seconds / self.compared_seconds if self.drafted and self.compared_seconds else 0.0

    @property
    def undrafted_reasons(self) -> list[tuple[str, int]]:
        """(reason of passes without a draft in words, number of passes), the most frequent first."""
        found = self.undrafted.copy()
        if found[Undrafted.UNLIKELY] < ENOUGH_UNLIKELY:  # a copy so short that it says nothing yet
            found[Undrafted.NOTHING] += found.pop(Undrafted.UNLIKELY, 0)
        return [(why.value.format(row=self.row_cost), passes) for why, passes in found.most_common() if passes]

    @property
    def undrafted_reason(self) -> str:
        """Most frequent reason of passes without a draft; "" = every pass had one, or no drafter may guess."""
        return next((words for words, _ in self.undrafted_reasons), "")

    @property
    def itl_p50_seconds(self) -> float:
        return percentile(self.gaps, 0.50)

    @property
    def itl_p99_seconds(self) -> float:
        return percentile(self.gaps, 0.99)

    def add_pass(self, drafter: str, drafted: int, accepted: int, generated: int) -> None:
        """Counts one pass by the nodes that a drafter guessed, those accepted, and the tokens emitted, the next token
        included."""
        self.passes += 1
        self.generated += generated
        if not drafted:
            return
        self.draft_passes += 1
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_histogram[accepted] += 1
        self.drafted_by_drafter[drafter] += drafted
        self.accepted_by_drafter[drafter] += accepted  # one that was never right is named, too
        self.accepted_per_position += [0] * (accepted - len(self.accepted_per_position))
        for depth in range(accepted):
            self.accepted_per_position[depth] += 1

    def review(self, review: Review) -> None:
        self.guarded_passes += review.guarded
        if review.undrafted is not None:
            self.undrafted[review.undrafted] += 1
        self.row_cost = review.row or self.row_cost

    def compare(self, plain: float, tokens: int, seconds: float) -> None:
        self.plain_seconds, self.compared, self.compared_seconds = plain, tokens, seconds

    def before(self, later: RequestStats) -> RequestStats:
        """Of an answer of two rounds, of which these are the first one's. The time to the first token is the first
        round's; all else is of both. `prompt_tokens` and `reused_tokens` are sums, too, so that their difference, the
        tokens that were read, took `prefill_seconds`."""
        both = replace(later)
        for one in fields(self):
            if one.name != "row_cost":
                mine, theirs = getattr(self, one.name), getattr(later, one.name)
                if isinstance(mine, Counter):  # whose sum would leave zeros out
                    theirs = {key: mine[key] + theirs[key] for key in {**mine, **theirs}}
                setattr(both, one.name, Counter(theirs) if isinstance(mine, Counter) else mine + theirs)
        depths = zip_longest(self.accepted_per_position, later.accepted_per_position, fillvalue=0)
        both.accepted_per_position = [sum(pair) for pair in depths]
        both.ttft_seconds, both.exact = self.ttft_seconds, self.exact and later.exact
        return both

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, names as in the glossary."""

        def rounded(digits: int, *names: str) -> dict[str, float]:
            return {name: round(getattr(self, name), digits) for name in names}

        return {
            **rounded(0, "prompt_tokens", "reused_tokens"),
            "generated_tokens": self.generated,
            **rounded(0, "passes", "draft_passes", "drafted", "accepted"),
            **rounded(4, "acceptance_rate", "mean_accepted_tokens", "mean_accepted_length", "tokens_per_pass"),
            "accepted_per_position": list(self.accepted_per_position),
            "accepted_histogram": {str(k): v for k, v in sorted(self.accepted_histogram.items())},
            "accepted_by_drafter": dict(self.accepted_by_drafter),
            "drafted_by_drafter": dict(self.drafted_by_drafter),
            **rounded(6, "ttft_seconds", "itl_p50_seconds", "itl_p99_seconds"),
            **rounded(3, "tokens_per_second"),
            **rounded(6, "prefill_seconds", "draft_seconds", "verify_seconds", "host_seconds", "plain_seconds"),
            "compared_tokens": self.compared,
            **rounded(6, "compared_seconds"),
            **rounded(4, "estimated_speedup"),
            "guarded_passes": self.guarded_passes,
            "undrafted_passes": {why.name.lower(): passes for why, passes in self.undrafted.most_common()},
            "undrafted_reason": self.undrafted_reason,
            **rounded(4, "row_cost"),
            "exact": self.exact,
        }


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
class _Part:
    """The passes of an answer with one number of slots."""

    curve: Curve  # of the last of them
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

    def add(self, review: Review, seconds: float, spent: float, beside: Beside, tokens: int) -> None:
        """Takes in a reviewed pass that has a curve, brought `tokens` and took `seconds` but for planning and
        drafting, `spent` with these. `beside` is of as many slots as shared it, and learns from it."""
        curve = review.curve
        assert curve is not None
        part = self._parts.get(beside)
        if part is None:
            part = self._parts[beside] = _Part(curve)
        part.curve = curve
        part.tokens += tokens
        part.spent += spent
        if review.plain:
            part.passes += 1
            part.seconds += seconds
            part.late += (seconds - part.late) / min(part.passes, ENOUGH_PASSES // 2)
        else:
            part.wanted += tokens
            if curve.width:
                count, before = part.widths.get(curve.width, (0, 0.0))
                part.widths[curve.width] = count + 1, before + seconds
        if 2 * part.passes >= ENOUGH_PASSES:
            beside.known = True
            if not review.plain and curve.width:
                beside.learn(curve.width, seconds / part.late)

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
