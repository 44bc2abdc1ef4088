"""The end of a long answer is told to the terminal, as the setting has it."""

from __future__ import annotations

import pytest
from textual import events
from textual.drivers.headless_driver import HeadlessDriver

from localspec.tui.shell.app import BELL, sign
from localspec.tui.talk.session import Preferences
from tests.tui.conftest import MakeApp, say, until

NOTE = "\x1b]9;localspec: the answer of Say hello is there\a"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a terminal would get."""
    found: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda driver, text: found.append(text))
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("wish", "in_front", "seconds", "told"),
    [
        ("auto", True, 0.0, ""),
        ("auto", False, 0.0, BELL),
        ("auto", False, 10.0, ""),
        ("bell", True, 0.0, BELL),
        ("notify", True, 0.0, NOTE),
        ("off", False, 0.0, ""),
    ],
)
async def test_the_end_of_a_long_answer_is_told(
    make_app: MakeApp,
    written: list[str],
    monkeypatch: pytest.MonkeyPatch,
    wish: str,
    in_front: bool,
    seconds: float,
    told: str,
) -> None:
    monkeypatch.setattr("localspec.tui.widgets.pane._LONG_SECONDS", seconds)
    app = make_app("Hello.", preferences=Preferences(answer_end=wish))  # type: ignore[arg-type]
    async with app.run_test() as pilot:
        await say(pilot, "Say hello")
        if not in_front:
            written.clear()
            app.post_message(events.AppBlur())
            await until(pilot, lambda: not app.app_focus)
            app.chat_screen.action_regenerate()  # a key would say that it is in front
            await until(pilot, lambda: app.chat_screen.front.path[-1].siblings[1:])
            await until(pilot, lambda: app.chat_screen.front.answer is None)
        await pilot.pause()
        assert "".join(text for text in written if text in (BELL, NOTE)) == told


def test_a_title_cannot_write_to_the_terminal() -> None:
    assert sign("notify", True, "a\x1b]52;c;\a\nb") == "\x1b]9;localspec: the answer of a␛]52;c;␇↵b is there\a"


def test_tmux_passes_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/x,1,0")
    assert sign("notify", True, "x") == "\x1bPtmux;\x1b\x1b]9;localspec: the answer of x is there\a\x1b\\"
