"""Pictures of the screens about speculation and models, on recorded passes: sizes, dark, light, without colour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from localspec.checks.finding import Finding
from localspec.engine.request import PassRecord
from localspec.models.hub import Hub
from localspec.models.store import Store
from localspec.tui.app import ChatApp
from localspec.tui.preferences import Preferences
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.screens.import_file import ImportScreen
from localspec.tui.screens.models import ModelsScreen
from localspec.tui.screens.pull import PullScreen
from localspec.tui.screens.race import RaceScreen
from localspec.tui.screens.stats import StatsScreen
from localspec.tui.screens.steps import StepsScreen
from localspec.tui.shelf import Item
from localspec.tui.transfers import Transfers
from localspec.tui.widgets.origin_view import OriginView
from tests.tui.conftest import MakeApp, say, until
from tests.tui.replayer import Pass, Recorded, Recording, ReplayAnswerer

PAIR = Recording.load("pair")
LOOKS = {
    "dark-80": ("localspec-dark", (80, 24), False),
    "dark-120": ("localspec-dark", (120, 40), False),
    "light-80": ("localspec-light", (80, 24), False),
    "light-120": ("localspec-light", (120, 40), False),
    "mono-80": ("localspec-dark", (80, 24), True),
    "mono-120": ("localspec-dark", (120, 40), True),
}
LATER = ("dark-120", "light-80", "mono-120")
"""Taken with the trials, so that a usual run stays short: each size, theme and screen is in both halves."""
SHELF = [
    Item("tiny", "tiny-draft", "here", 8_400_000, "shipped with localspec", "MIT", (), True, "It fits.", 312.0, 1.42),
    Item("mine", "", "broken", 5_000_000_000, "mine.gguf is gone"),
    Item(
        "qwen3-8b", "qwen3-0.6b-q8_0", "hub", 5_670_000_000, "a strong pair", "apache-2.0", (), True, "It should fit."
    ),
    Item(
        "qwen3-14b [b]", "qwen3-0.6b-q8_0", "hub", 9_640_000_000, "larger", "apache-2.0", (), False, "It hardly fits."
    ),
    Item("mistral-small-3.2-24b", "mistral-small-draft", "hub", 0, "unknown size"),
]
FINDINGS = [
    Finding(
        "GPU", "CUDA0 (a card) is idle: the target is on the CPU", "Put the target's layers on it.", "--gpu-layers -1"
    ),
    Finding("speed", "41.2 tokens/s over 12 answers, 1.62x plain decoding (estimated from what one-row passes cost)"),
    Finding("acceptance", "acceptance rate 0.71: 710 of 1000 guesses"),
    Finding("time", "draft 21%, verify 74%, host 5% of decoding"),
]


def plainly(recorded: Recorded) -> Recorded:
    """The same tokens, one a pass."""
    tokens = [token for one in recorded.passes for token in one.tokens]
    return Recorded([Pass("", (token,), (), PassRecord("", (), (), (), token, 1, 0.0021)) for token in tokens])


async def origins(app: ChatApp, pilot: Pilot[Any], presses: int) -> None:
    await say(pilot, "Repeat this text exactly: Maria bought 12 lanterns in Lisbon and 3 lanterns in Oslo.")
    await pilot.press(*["f6"] * presses)
    await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)


async def stats(app: ChatApp, pilot: Pilot[Any]) -> None:
    for text in ("Maria", "Sort", "Say", "Repeat"):
        await say(pilot, text)
    await pilot.press("f7")
    await until(pilot, lambda: isinstance(app.screen, StatsScreen) and app.screen._figures.answers == 4)


async def step_view(app: ChatApp, pilot: Pilot[Any]) -> None:
    await say(pilot, "Maria")
    await pilot.press("f9")
    await until(pilot, lambda: isinstance(app.screen, StepsScreen) and app.screen.passes)
    await pilot.press("d", "d")


async def race(app: ChatApp, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: app.facts is not None)
    await pilot.press("f8")
    await until(pilot, lambda: isinstance(app.screen, RaceScreen))
    app.screen.query_one("#prompt", Input).cursor_blink = False
    await pilot.press("enter")
    screen: Any = app.screen
    await until(pilot, lambda: screen.heats)
    await pilot.press(*["plus"] * 6)
    await until(pilot, lambda: "Both lanes are done" in str(screen.query_one("#note").content))


async def doctor(app: ChatApp, pilot: Pilot[Any]) -> None:
    app.open_screen("doctor")
    await until(pilot, lambda: isinstance(app.screen, DoctorScreen) and app.screen.findings)
    screen: Any = app.screen
    screen._show(FINDINGS)
    await pilot.pause()


def shelf_screen(folder: Path) -> ModelsScreen:
    return ModelsScreen(lambda: Hub(endpoint="http://127.0.0.1:9", cache=folder / "hf"), Store(folder / "models"))


async def models(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    screen = shelf_screen(folder)
    app.push_screen(screen)
    await until(pilot, lambda: screen.items and screen.items[0].fit)
    screen._show(SHELF)
    await pilot.press("down", "down")


async def pull(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    screen: Any = PullScreen(lambda: Hub(endpoint="http://127.0.0.1:9", cache=folder / "hf"), Store(folder / "models"))
    app.push_screen(screen)
    await until(pilot, lambda: app.screen is screen and screen.query("#note"))
    for field in screen.query(Input):
        field.cursor_blink = False
    transfers = Transfers(3_000_000_000)
    transfers("Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 0, 2_500_000_000, "loading")
    transfers("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", 0, 640_000_000, "loading")
    transfers("Qwen/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", 900_000_000, 2_500_000_000, "loading")
    transfers("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", 640_000_000, 640_000_000, "checking")
    screen.query_one("#name", Input).value = "qwen3-4b"
    screen.query_one("#plan").update(transfers.lines(screen.query_one("#plan-scroll").size.width, now=0.0))
    screen._say("Loading. Esc stops; what has come is kept, and the next pull goes on there.")
    await pilot.pause()


async def take_in(app: ChatApp, pilot: Pilot[Any], folder: Path) -> None:
    app.push_screen(ImportScreen(Store(folder / "models")))
    await until(pilot, lambda: isinstance(app.screen, ImportScreen))
    for field in app.screen.query(Input):
        field.cursor_blink = False
    await pilot.pause()


SCENES: dict[str, Callable[[ChatApp, Pilot[Any], Path], Awaitable[None]]] = {
    "origins": lambda app, pilot, folder: origins(app, pilot, 1),
    "ghosts": lambda app, pilot, folder: origins(app, pilot, 2),
    "signs": lambda app, pilot, folder: origins(app, pilot, 3),
    "stats": lambda app, pilot, folder: stats(app, pilot),
    "steps": lambda app, pilot, folder: step_view(app, pilot),
    "race": lambda app, pilot, folder: race(app, pilot),
    "doctor": lambda app, pilot, folder: doctor(app, pilot),
    "models": models,
    "pull": pull,
    "import": take_in,
}


@pytest.mark.parametrize("look", [pytest.param(name, marks=[pytest.mark.trial] * (name in LATER)) for name in LOOKS])
@pytest.mark.parametrize("scene", SCENES)
def test_picture(
    scene: str, look: str, make_app: MakeApp, snap_compare: Any, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theme, size, no_color = LOOKS[look]
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    recording = PAIR
    if scene == "race":
        answer = PAIR.answers[0]
        recording = Recording([plainly(answer), plainly(answer), answer], PAIR.pieces)
    app = make_app(answerer=ReplayAnswerer(recording), preferences=Preferences(theme=theme))

    async def arrange(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: app.pane is not None and app.facts is not None)
        for area in app.screen.query(TextArea):
            area.cursor_blink = False
        await SCENES[scene](app, pilot, folders)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
