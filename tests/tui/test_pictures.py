"""Pictures of every screen on recorded passes: two sizes, dark, light, without colour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pytest_textual_snapshot import SVGImageExtension  # type: ignore[import-untyped]
from rich.segment import Segment
from syrupy.assertion import SnapshotAssertion
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences
from localspec.tui.widgets.registry import SCREENS, VIEWS
from tests.tui.conftest import MakeApp, until
from tests.tui.replayer import ReplayAnswerer
from tests.tui.scenes import SCENES, recording

DARK, LIGHT = "localspec-dark", "localspec-light"
SMALL, LARGE = (80, 24), (120, 40)
NARROW = {"chat": (30, 40, 60), "code": (30, 40, 60), "markdown": (20, 30, 40, 60)}
"""Scenes with answers, and widths at which they are pictured, too."""
PICTURES = Path(__file__).parent / "__snapshots__/test_pictures"


async def settled(pilot: Pilot[Any]) -> None:
    """Waits until two pictures in a row are the same: text, colours and all else that is drawn."""
    app, before = pilot.app, list[list[Segment]]()
    assert isinstance(app, ChatApp)
    for _ in range(100):
        await pilot.pause()
        now = [list(strip) for strip in app.screen._compositor.render_strips()]
        if now == before:
            return
        before = now
        await pilot.pause(0.02)
    pytest.fail("it never comes to rest")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "no_color", [pytest.param(False, id="colour"), pytest.param(True, id="mono", marks=pytest.mark.trial)]
)
@pytest.mark.parametrize("scene", SCENES)
async def test_picture(
    scene: str,
    no_color: bool,
    make_app: MakeApp,
    snapshot: SnapshotAssertion,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One app for all sizes and themes of a scene: it changes under an open screen, as in life."""
    monkeypatch.setattr("localspec.tui.screens.history.stamp", lambda seconds: "2026-11-21 12:00")
    for field in (Input, TextArea):  # a cursor that blinks is there or not
        monkeypatch.setattr(field.cursor_blink, "_default", False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    pictures = snapshot.use_extension(SVGImageExtension)
    app = make_app(answerer=ReplayAnswerer(recording(scene)), preferences=Preferences(theme=DARK))
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
        await SCENES[scene](app, pilot, folders)
        for size, themes in ((SMALL, (DARK, LIGHT)), (LARGE, (LIGHT, DARK))):
            await pilot.resize_terminal(*size)
            for theme in themes[:1] if no_color else themes:
                app.theme = theme
                await settled(pilot)
                look = "mono" if no_color else theme.removeprefix("localspec-")
                assert app.export_screenshot(title="localspec", simplify=True) == pictures(name=f"{look}-{size[0]}")
    app.session.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("scene", NARROW)
async def test_narrow_picture(
    scene: str, make_app: MakeApp, snapshot: SnapshotAssertion, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers wrap and are not cut."""
    monkeypatch.setattr(TextArea.cursor_blink, "_default", False)
    pictures = snapshot.use_extension(SVGImageExtension)
    app = make_app(answerer=ReplayAnswerer(recording(scene)), preferences=Preferences(theme=DARK))
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.chat_screen.pane is not None and app.session.facts is not None)
        await SCENES[scene](app, pilot, folders)
        for width in NARROW[scene]:
            await pilot.resize_terminal(width, 48)
            await settled(pilot)
            assert app.export_screenshot(title="localspec", simplify=True) == pictures(name=str(width))


def test_every_screen_and_view_is_pictured() -> None:
    names = {row.name for row in SCREENS} | {row.name for row in VIEWS}
    assert names <= set(SCENES)


def test_no_picture_is_left_over() -> None:
    looks = [f"colour][{look}" for look in ("dark", "light")] + ["mono][mono"]
    wanted = {
        f"test_picture[{scene}-{look}-{size[0]}]" for scene in SCENES for look in looks for size in (SMALL, LARGE)
    }
    wanted |= {f"test_narrow_picture[{scene}][{width}]" for scene, widths in NARROW.items() for width in widths}
    assert {path.stem for path in PICTURES.iterdir()} == wanted
