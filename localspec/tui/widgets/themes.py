"""Two calm themes: one accent, readable contrast; all of Textual's can be chosen, too."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="localspec-dark",
    dark=True,
    primary="#7aa7d9",
    secondary="#6d8299",
    accent="#e0a458",
    foreground="#d7dae0",
    background="#14171c",
    surface="#191d23",
    panel="#222831",
    success="#7fb685",
    warning="#d9a441",
    error="#d9706c",
)
LIGHT = Theme(
    name="localspec-light",
    dark=False,
    primary="#2b5f96",
    secondary="#5a6b7d",
    accent="#9a5b00",
    foreground="#1f242b",
    background="#f7f7f4",
    surface="#efefea",
    panel="#e3e4df",
    success="#2f6b3a",
    warning="#8a5a00",
    error="#a1312d",
)
THEMES = (DARK, LIGHT)
