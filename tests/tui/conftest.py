"""The app on a recording, in folders of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.chat.archive import Archive
from localspec.tui.app import ChatApp
from localspec.tui.preferences import Preferences
from localspec.tui.widgets.pane import ChatPane
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

MakeApp = Callable[..., ChatApp]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data and config folders of this test alone; also the working folder."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("NO_COLOR", "DISPLAY", "WAYLAND_DISPLAY", "TMUX", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def archive(folders: Path) -> Iterator[Archive]:
    with Archive.open(folders / "chats.sqlite3") as opened:
        yield opened


@pytest.fixture
def make_app(archive: Archive) -> MakeApp:
    """`make_app("text", ...)`: answers with these texts; `make_app()`: with the recording of the pair."""

    def make(*texts: str, answerer: Any = None, preferences: Preferences | None = None, **options: Any) -> ChatApp:
        if answerer is None:
            recording = Recording.load("pair")
            if texts:
                recording = Recording([Recorded.of_text(text) for text in texts], {})
            answerer = ReplayAnswerer(recording)
        app = ChatApp(answerer, archive, preferences or Preferences(), **options)
        app.animation_level = "none"
        return app

    return make


def front(app: ChatApp) -> ChatPane:
    """The chat in front."""
    return app.chat_screen.front


async def until(pilot: Pilot[Any], wanted: Callable[[], object], seconds: float = 10.0) -> None:
    """Waits for something to become true."""
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, "it did not happen"
        await pilot.pause(0.01)
    await pilot.pause()


async def answered(pilot: Pilot[Any]) -> None:
    """Waits for the end of the answer that was asked for, painted and stored."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    await until(pilot, lambda: front(app).path and front(app).path[-1].state not in ("streaming",))
    await until(pilot, lambda: front(app).answer is None and front(app).path[-1].role == "assistant")
    await until(pilot, lambda: not any(worker.group in ("settle", "count") for worker in app.workers))


async def say(pilot: Pilot[Any], text: str) -> None:
    """Sends a message and waits for the answer."""
    app = pilot.app
    assert isinstance(app, ChatApp)
    before = len(front(app).path)
    front(app).composer.put(text)
    await pilot.press("enter")
    await until(pilot, lambda: len(front(app).path) >= before + 2)
    await answered(pilot)
