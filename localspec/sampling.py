"""How tokens are drawn and drafts verified, as people set it. Light to import: a help text needs it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

from localspec.errors import UsageError
from localspec.settings import MOST, check, declared


class Rule(IntEnum):
    """How a draft is verified (docs/exactness.md). The numbers are those of native/localspec.h."""

    COUPLED = 0
    REJECTION = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from a logits row. Order and defaults are llama.cpp's.

    Order: logit bias, penalties, DRY, top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature.
    At temperature 0 only bias, penalties and DRY count.
    """

    temperature: float = declared(
        0.8,
        "0 picks the most likely token, of equals the first.",
        0,
        100,
        flags=("--temp",),
        openai=True,
    )
    top_k: int = declared(
        40, "Keep this many most likely tokens; 0 keeps all.", 0, MOST, special={0: "all tokens"}, stands_for={-1: 0}
    )
    top_p: float = declared(
        0.95, "Keep the most likely tokens that have this much probability together; 1 keeps all.", 0, 1, openai=True
    )
    min_p: float = declared(0.05, "Drop tokens less likely than this share of the most likely one; 0 keeps all.", 0, 1)
    typical_p: float = declared(
        1.0,
        "Locally typical sampling: keep this much probability, nearest to the entropy first; 1 keeps all.",
        0,
        1,
        flags=("--typical",),
    )
    top_n_sigma: float = declared(
        -1.0,
        "Drop tokens whose logit is more than this many standard deviations below the largest; 0 or less keeps all.",
        -1,
        100,
        flags=("--top-nsigma",),
    )
    xtc_probability: float = declared(
        0.0, "Chance of each token that XTC takes out all likely tokens but the least likely of them; 0 is off.", 0, 1
    )
    xtc_threshold: float = declared(
        0.1, "Probability from which on a token is likely to XTC; above 0.5 XTC is off.", 0, 1
    )
    dynatemp_range: float = declared(
        0.0,
        "The temperature is this much lower where the model is sure, and this much higher where it is not; 0 is off.",
        0,
        100,
    )
    dynatemp_exponent: float = declared(
        1.0,
        "How the temperature goes from the lowest to the highest: entropy, as a share of the largest, to this power.",
        0,
        100,
        flags=("--dynatemp-exp",),
    )
    repeat_penalty: float = declared(
        1.0,
        "Divide (or multiply, if negative) the logit of a token seen lately by this; 1 is off.",
        0.001,  # logits are divided by it, and must not overflow
        100,
        other_names=("repetition_penalty",),
    )
    presence_penalty: float = declared(
        0.0, "Subtract this from the logit of a token seen lately.", -100, 100, openai=True
    )
    frequency_penalty: float = declared(
        0.0, "Subtract this once for every time a token was seen lately.", -100, 100, openai=True
    )
    penalty_last_n: int = declared(
        64,
        'So many last tokens, prompt included, count as "lately"; 0 none, -1 all.',
        -1,
        MOST,
        special={-1: "all", 0: "none"},
        flags=("--repeat-last-n",),
        api_name="repeat_last_n",
    )
    dry_multiplier: float = declared(
        0.0,
        "DRY's penalty of a token that would go on with a repetition of the allowed length; 0 is off.",
        0,
        100,
    )
    dry_base: float = declared(
        1.75, "DRY's penalty grows by this factor for every token that the repetition is longer.", 1, 100
    )
    dry_allowed_length: int = declared(2, "Repetitions of fewer tokens are free to DRY.", 0, MOST)
    dry_penalty_last_n: int = declared(
        -1,
        "How many last tokens, prompt included, DRY looks for repetitions in; 0 none, -1 all.",
        -1,
        MOST,
        special={-1: "all", 0: "none"},
    )
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """Texts that no repetition goes across."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, value added to its logit); -inf bans the token."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.dry_sequence_breakers) > 64 or not all(0 < len(text) <= 40 for text in self.dry_sequence_breakers):
            raise UsageError("dry_sequence_breakers must be at most 64 texts of 1 to 40 characters each.")
        for token, bias in self.logit_bias:
            if token < 0 or bias != bias or bias == math.inf:
                raise UsageError(f"logit_bias has {token}: {bias}; ids start at 0 and values are below infinity.")
