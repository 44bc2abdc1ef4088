"""Everything that guesses: one file per method. `NAMES` is what a user may ask for; `runtime` composes them."""

from __future__ import annotations

NAMES: dict[str, str] = {
    "auto": "prompt lookup and the draft model, if there is one, each where it pays; plain decoding where none does",
    "draft": "the draft model",
    "lookup": "prompt lookup (n-grams of this conversation)",
    "none": "plain decoding",
}
"""What may be asked for, and a line about each."""
