"""Names of the ways in which a file can draft: what the catalogue, files, drafters and screens all go by."""

from __future__ import annotations

HEADS: dict[str, str] = {
    "assistant": "a Gemma 4 assistant, which reads the target's own cache (needs --head)",
    "dflash": "a DFlash head, all guesses in one pass (needs --head)",
    "dflash2": "a DFlash2 head, all guesses in one pass (needs --head)",
    "dspark": "a DSpark head, all guesses in one pass (needs --head)",
    "eagle": "an EAGLE-1 or EAGLE-2 head (needs --head)",
    "eagle3": "an EAGLE-3 head (needs --head)",
    "medusa": "Medusa heads (need --head)",
    "mlp": "an MLP speculator (needs --head)",
    "mtp": "multi-token prediction (of the target's own file, else needs --head)",
    "pard": "a PARD draft model, all guesses in one pass (needs --head or --draft)",
}
"""Those whose files are trained for one target, and a line about each."""

METHODS = ("draft", *HEADS)
"""Those that localspec drafts with: a draft model, and heads."""
