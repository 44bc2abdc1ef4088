"""The app on a recording, in folders of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.css.query import NoMatches
from textual.pilot import Pilot

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.llama.exact.choice import Progress
from localspec.machine import Place
from localspec.runner.answering import ChildAnswerer
from localspec.runner.child import Child, Load
from localspec.runtime.engine import Engine
from localspec.server.own.serve import Here
from localspec.tools.toolbox import FolderFile
from localspec.tui.shell.app import ChatApp
from localspec.tui.talk.session import Preferences, Session
from localspec.tui.widgets.pane import ChatPane
from tests.tui.replayer import Recorded, Recording, ReplayAnswerer

MakeApp = Callable[..., ChatApp]


async def _handled(pilot: Pilot[Any]) -> None:
    """Waits until what widgets had to do is done, and what that led to."""
    for _ in range(3):
        await pilot._wait_for_screen()


async def _press(self: Pilot[Any], *keys: str) -> None:
    for key in keys:
        await self.app._press_keys([key])
        await _handled(self)
        self.app.screen._on_timer_update()


async def _pause(self: Pilot[Any], delay: float | None = None) -> None:
    await _handled(self)
    if delay:
        await asyncio.sleep(delay)
    self.app.screen._on_timer_update()


async def _no_idling(min_sleep: float = 0.0, max_sleep: float = 1.0) -> None:
    await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits for a process that does nothing: long where the machine is busy, in vain beside an engine.

    These tests wait for what they name (`until`), and between two keys for the widgets alone.
    """
    for module in ("textual.app", "textual.pilot"):
        monkeypatch.setattr(f"{module}.wait_for_idle", _no_idling)
    monkeypatch.setattr(Pilot, "press", _press)
    monkeypatch.setattr(Pilot, "pause", _pause)


@pytest.fixture(autouse=True)
def _same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered to pull does not depend on the machine that the tests run on."""
    monkeypatch.setattr("localspec.runtime.offered.ram", lambda: Place("CPU", "cpu", 12 * 10**9))
    monkeypatch.setattr("localspec.runtime.offered._free_disk", lambda: 100 * 10**9)
    monkeypatch.setattr("localspec.runtime.offered.wide", SimpleNamespace(read_limits=lambda threads: None))
    monkeypatch.setattr("localspec.tui.screens.pull.find_kept", lambda store: [])


@pytest.fixture
def folders(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data, config and runtime folders of this test alone; also the working folder."""
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(tmp_path / "config"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in ("NO_COLOR", "DISPLAY", "WAYLAND_DISPLAY", "TMUX", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def pair(_cache_in_tmp: None) -> Iterator[Engine]:
    """The bundled pair, for all live tests: exact, and it drafts whether that pays or not."""
    with Engine.load(exact="strict", drafter="lookup") as engine:
        yield engine


def here(load: Callable[[Progress], Engine], name: str = "bundled pair") -> ChildAnswerer:
    """Whoever asks an engine of this process, which is closed with it."""
    return ChildAnswerer(partial(Here, load), name)


@pytest.fixture
def live(pair: Engine) -> Iterator[ChildAnswerer]:
    """Whoever asks the pair, which stays open; a fresh one for each app."""
    answerer = asking(pair)
    yield answerer
    answerer.close()


def asking(engine: Engine, name: str = "bundled pair") -> ChildAnswerer:
    """Whoever asks an engine that somebody else closes."""
    return ChildAnswerer(partial(Here, lambda progress: engine, closes=False), name)


def of_child(**settings: Any) -> ChildAnswerer:
    """Whoever asks the pair in a process of its own."""
    target, draft = (str(paths.bundled(f"tiny-{name}-q8_0.gguf")) for name in ("target", "draft"))
    load = Load(target, draft, (), {"slots": 1} | settings)
    return ChildAnswerer(lambda: Child(load), "bundled pair")


@pytest.fixture
def archive(folders: Path) -> Iterator[Archive]:
    with Archive.open(folders / "chats.sqlite3") as opened:
        yield opened


@pytest.fixture
def make_app(archive: Archive) -> MakeApp:
    """`make_app("text", ...)`: answers with these texts; `make_app()`: with the recording of the pair."""

    def make(
        *texts: str,
        answerer: Any = None,
        preferences: Preferences | None = None,
        notices: Sequence[str] = (),
        folder: FolderFile | None = None,
        **options: Any,
    ) -> ChatApp:
        if answerer is None:
            recording = Recording.load("pair")
            if texts:
                recording = Recording([Recorded.of_text(text) for text in texts], {})
            answerer = ReplayAnswerer(recording)
        app = ChatApp(Session(answerer, archive, preferences or Preferences(), **options), notices, folder)
        app.animation_level = "none"
        return app

    return make


def front(app: ChatApp) -> ChatPane:
    """The chat in front."""
    return app.chat_screen.front


async def until(pilot: Pilot[Any], wanted: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for something to become true; what it asks about need not be there yet."""

    def true() -> object:
        try:
            return wanted()
        except (IndexError, NoMatches):
            return False

    deadline = time.monotonic() + seconds
    while not true():
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
