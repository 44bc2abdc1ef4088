"""Honest words about draft files that localspec knows and cannot use yet."""

from __future__ import annotations

from localspec.drafters import NAMES


def drafts(method: str) -> bool:
    """Whether a draft of this method can be named after `--draft`."""
    return method in NAMES


def not_used(method: str) -> str:
    """What localspec does not do with a draft of this method (`heads.DraftKind.method`); "" = it uses it in full."""
    if method in NAMES:
        return ""
    return "localspec cannot draft with such a file yet: it is kept and not used, prompt lookup drafts alone"
