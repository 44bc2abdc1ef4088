"""Everything that guesses: one file per method. `NAMES` is what a user may ask for; `runtime` composes them."""

from __future__ import annotations

from localspec.models.installed.methods import HEADS

__all__ = ["HEADS", "NAMES", "PLAIN"]

PLAIN = "none"
"""The name that means plain decoding."""

NAMES: dict[str, str] = {
    "auto": "those below that there are, each where it pays; plain decoding where none does",
    "draft": "the draft model",
    "grammar": "what the request's grammar or JSON schema forces",
    "lookup": "prompt lookup (n-grams of this conversation, and text that a request predicts)",
    PLAIN: "plain decoding",
    "recycling": "token recycling (what the target thought of saying after a token)",
    "suffix": "suffix decoding (the longest match in this conversation and in past answers that are kept)",
    **HEADS,
}
"""Names of drafters that a user may ask for, and a line about each."""
