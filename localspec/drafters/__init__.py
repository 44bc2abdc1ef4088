"""Everything that guesses: one file per method. `NAMES` is what a user may ask for; `runtime` composes them."""

from __future__ import annotations

HEADS: dict[str, str] = {
    "eagle": "an EAGLE-1 or EAGLE-2 head (needs --head)",
    "eagle3": "an EAGLE-3 head (needs --head)",
    "medusa": "Medusa heads (need --head)",
    "mlp": "an MLP speculator (needs --head)",
    "mtp": "multi-token prediction (of the target's own file, else needs --head)",
    "pard": "a PARD draft model, all guesses in one pass (needs --head or --draft)",
}
"""Drafters that are trained for one target, and come as a file of their own."""

NAMES: dict[str, str] = {
    "auto": "those below that there are, each where it pays; plain decoding where none does",
    "draft": "the draft model",
    "grammar": "what the request's grammar or JSON schema forces",
    "lookup": "prompt lookup (n-grams of this conversation, and text that a request predicts)",
    "none": "plain decoding",
    "recycling": "token recycling (what the target thought of saying behind a token; in auto without a draft model)",
    "suffix": "suffix decoding (the longest match in this conversation and in past answers that are kept)",
    **HEADS,
}
"""What may be asked for, and a line about each."""
