"""Trained heads that lie in tests/data/heads: and every test of `test_heads_contract` runs with it."""

from __future__ import annotations

from pathlib import Path

from localspec import paths

FOLDER = Path(__file__).parents[1] / "data" / "heads"
SHIPPED = {path.name.split("-")[1]: path for path in sorted(FOLDER.glob("tiny-*"))}
"""Method -> file or folder, which has its name."""


def target_of(method: str) -> Path:
    """The target a shipped head was trained for: MTP layers come in a model of their own."""
    return SHIPPED[method] if method == "mtp" else paths.bundled("tiny-target-q8_0.gguf")
