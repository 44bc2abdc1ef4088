"""What can be opened: the screens and the ways to look at a message. A row here is all a new one needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class ScreenRow(NamedTuple):
    """A screen of its own: key, slash command and palette entry come from this row."""

    name: str
    """The slash command without its slash; the binding's id is `open.NAME`."""
    home: str
    """`module:Class`, imported when it is first opened and called without arguments."""
    title: str
    """Two words at most, for footer and palette."""
    doc: str
    """What it is for, in half a sentence: tooltip, palette and list of slash commands."""
    key: str = ""
    """Key that opens it; "" = none."""
    show: bool = False
    """Its key is in the footer."""


class ViewRow(NamedTuple):
    """Another body for an answer: a Widget made with (StoredMessage), with `extend(AnswerPart)` and `settle(...)`."""

    name: str
    home: str
    title: str
    doc: str


SCREENS: tuple[ScreenRow, ...] = (
    ScreenRow("help", "localspec.tui.screens.help:HelpScreen", "Help", "keys, commands, and what is where", "f1", True),
    ScreenRow("settings", "localspec.tui.screens.settings:SettingsScreen", "Settings", "models, looks, keys", "f2"),
    ScreenRow(
        "parameters",
        "localspec.tui.screens.parameters:ParametersScreen",
        "Parameters",
        "system prompt, sampling and presets of this chat",
        "f3",
    ),
    ScreenRow(
        "history",
        "localspec.tui.screens.history:HistoryScreen",
        "History",
        "all chats, and search in them",
        "f4,ctrl+o",
    ),
    ScreenRow(
        "models",
        "localspec.tui.screens.models:ModelsScreen",
        "Models",
        "use another model; search, pull, import, remove",
        "f5",
    ),
    ScreenRow("stats", "localspec.tui.screens.stats:StatsScreen", "Statistics", "what drafts brought", "f7"),
    ScreenRow("race", "localspec.tui.screens.race:RaceScreen", "Race", "plain against speculative", "f8"),
    ScreenRow("steps", "localspec.tui.screens.steps:StepsScreen", "Step view", "an answer pass by pass", "f9"),
    ScreenRow("doctor", "localspec.tui.screens.doctor:DoctorScreen", "Doctor", "why is it slow, and what mends it"),
)

VIEWS: tuple[ViewRow, ...] = (
    ViewRow("origins", "localspec.tui.widgets.origins:OriginText", "Origins", "where each token came from, in colours"),
    ViewRow("ghosts", "localspec.tui.widgets.origins:GhostText", "Rejected", "the same with rejected guesses"),
    ViewRow("signs", "localspec.tui.widgets.origins:SignText", "Signs", "origins as signs, readable without colour"),
)


def load(home: str) -> Any:
    """The class a row names."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)
