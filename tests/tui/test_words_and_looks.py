"""What reads without colour, at any size, and without the inner names of errors."""

from __future__ import annotations

import httpx
import pytest
from textual.widgets import Static

from localspec.config import EngineSettings
from localspec.errors import reason
from localspec.settings import settings_of
from localspec.tui.screens.settings import (
    Form,
    ParametersScreen,
    Pick,
    SettingsScreen,
    Tick,
    looks,
    parameters,
)
from localspec.tui.talk.session import Fit
from localspec.tui.widgets.transcript import Welcome
from tests.tui.conftest import MakeApp, front, say, until


@pytest.mark.asyncio
async def test_a_switch_reads_without_colour(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.query("#look-enter_sends"))
        tick = app.screen.query_one("#look-enter_sends", Tick)
        before = tick.value
        assert str(tick.render()).startswith("[x]" if before else "[ ]")
        tick.focus()
        await pilot.press("space")
        assert str(tick.render()).startswith("[ ]" if before else "[x]")


@pytest.mark.asyncio
async def test_a_small_terminal_shows_the_beginning_of_the_welcome(make_app: MakeApp) -> None:
    app = make_app("\n\n".join(["line"] * 30))
    async with app.run_test(size=(40, 12)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        transcript = front(app).transcript
        await until(pilot, lambda: transcript.max_scroll_y > 0)
        assert transcript.scroll_y == 0
        app.chat_screen.learn_anew()
        await pilot.pause(0.05)
        assert transcript.scroll_y == 0
        assert transcript.query_one(Welcome).display
        await say(pilot, "go")
        assert not transcript.query_one(Welcome).display
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y > 0)


def test_every_parameter_is_explained() -> None:
    for setting in parameters():
        assert len(setting.doc) > 10, setting.name
        assert "`" not in setting.doc, setting.name


@pytest.mark.asyncio
async def test_f3_explains_seed_limit_and_stop(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, ParametersScreen) and app.screen.query("#chat-stop"))
        text = "\n".join(str(static.content) for static in app.screen.query(Static))
        assert "the same question gets the same answer" in text
        assert "ends after so many tokens" in text
        assert "Texts that end the answer" in text


@pytest.mark.parametrize(
    ("tokens", "words"), [(10, "1% full"), (999, "99% full"), (1000, "full"), (1010, "full"), (0, "0% full")]
)
def test_a_context_is_never_more_than_full(tokens: int, words: str) -> None:
    assert Fit(tokens, 1000).share == words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(13, "Permission denied", "/x"), "Permission denied"),
        (httpx.ConnectError("[Errno -2] Name or service not known"), "Name or service not known"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "it is not UTF-8 text"),
        (ValueError(), "ValueError"),
    ],
)
def test_why_something_failed_has_no_numbers(error: Exception, words: str) -> None:
    assert reason(error) == words


@pytest.mark.asyncio
async def test_f2_takes_two_widgets_a_setting(make_app: MakeApp) -> None:
    """Each widget costs some milliseconds before the screen is seen."""
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.query("#load-threads"))
        forms = app.screen.query(Form)
        rows = len(looks()) + len(parameters()) + len(settings_of(EngineSettings))
        assert sum(len(form.query("*")) for form in forms) == 2 * rows


@pytest.mark.asyncio
async def test_a_word_of_a_few_is_picked_by_keys_and_mouse(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test() as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await pilot.press("f2")
        await until(pilot, lambda: isinstance(app.screen, SettingsScreen) and app.screen.query("#load-kernels"))
        pick = app.screen.query_one("#load-kernels", Pick)
        assert "auto" in str(pick.render())
        pick.focus()
        await pilot.press("right")
        assert "wide" in str(pick.render())
        await pilot.press("left", "left")
        assert pick.value == "plain"
        await pilot.press("enter", "space")
        assert pick.value == "wide"
        await pilot.click(pick)
        assert pick.value == "repacked"
        await pilot.press("ctrl+s")
        await until(pilot, lambda: not isinstance(app.screen, SettingsScreen))
        assert app.session.preferences.engine == {"kernels": "repacked"}
