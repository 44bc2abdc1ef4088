"""Trained heads that lie in tests/data/heads: a line each, and every test of `test_heads_contract` runs with it."""

from __future__ import annotations

from pathlib import Path

from localspec import paths

FOLDER = Path(__file__).parents[1] / "data" / "heads"
SHIPPED = {
    "dflash": FOLDER / "tiny-dflash-q8_0.gguf",
    "dspark": FOLDER / "tiny-dspark-q8_0.gguf",
    "eagle3": FOLDER / "tiny-eagle3-q8_0.gguf",
    "medusa": FOLDER / "tiny-medusa",
    "mlp": FOLDER / "tiny-mlp-speculator",
    "mtp": FOLDER / "tiny-mtp-q8_0.gguf",
    "pard": FOLDER / "tiny-pard-q4_0.gguf",
}
"""Method -> file or folder."""


def target_of(method: str) -> Path:
    """The target a shipped head was trained for: MTP layers come in a model of their own."""
    return SHIPPED[method] if method == "mtp" else paths.bundled("tiny-target-q8_0.gguf")
