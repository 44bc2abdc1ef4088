"""What waits for the network keeps nobody waiting: a newer search wins, and leaving the program takes no answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from localspec.models.hub.hub import FoundRepository, Hub
from localspec.models.installed.store import Store
from localspec.tui.screens.pull import FindModelScreen, PullScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.dialogs import Dialog
from tests.hub.conftest import PAIR, _server, client, draft_bytes, local_hub, quick, target_bytes
from tests.tui.conftest import MakeApp, until

__all__ = ["_server", "client", "draft_bytes", "local_hub", "quick", "target_bytes"]


class Held(Hub):
    """A hub whose first question is answered when a test says so."""

    def __init__(self, real: Hub) -> None:
        super().__init__(endpoint=real.endpoint, cache=real.cache)
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.over = threading.Event()

    def search(self, words: Sequence[str], limit: int = 20) -> list[FoundRepository]:
        first = not self.asked.is_set()
        self.asked.set()
        if first:
            self.go_on.wait()
        try:
            return super().search(words, limit)
        finally:
            if first:
                self.over.set()

    def listing(self, repository: str, revision: str = "") -> Any:
        self.asked.set()
        self.go_on.wait()
        return super().listing(repository, revision)


@pytest.mark.asyncio
async def test_a_newer_search_is_not_kept_waiting_and_the_older_one_is_not_shown(
    make_app: MakeApp, client: Hub
) -> None:
    app, hub = make_app(), Held(client)
    async with app.run_test(size=(100, 40)) as pilot:
        app.push_screen(FindModelScreen(lambda: hub))
        await until(pilot, lambda: isinstance(app.screen, FindModelScreen))
        find: Any = app.screen
        find.query_one("#words", Input).value = "us"  # both repositories
        await pilot.press("enter")
        await until(pilot, hub.asked.is_set)
        find.query_one("#words", Input).value = "us tiny gguf"
        find.query_one("#words", Input).focus()
        await pilot.press("enter")
        await until(pilot, lambda: PAIR[0] in {one.repository for one in find._found.items})
        found = list(find._found.items)
        shown = list[object]()
        find._show = lambda *arguments: shown.append(arguments)
        hub.go_on.set()
        await until(pilot, hub.over.is_set)
        await until(pilot, lambda: not any(thread.name == "localspec-errand" for thread in threading.enumerate()))
        await pilot.pause()
        assert not shown
        assert find._found.items == found


@pytest.mark.parametrize("screen", ["search", "plan"])
def test_leaving_does_not_wait_for_the_hub(screen: str, make_app: MakeApp, client: Hub, tmp_path: Path) -> None:
    """With the end of the event loop, which waits for all workers."""
    hub = Held(client)

    def dialog() -> Dialog[str | None]:
        if screen == "search":
            return FindModelScreen(lambda: hub)
        return PullScreen(lambda: hub, Store(tmp_path / "models"), PAIR[0])

    async def session(app: ChatApp) -> None:
        async with app.run_test(size=(100, 40)) as pilot:
            app.push_screen(dialog())
            await until(pilot, lambda: isinstance(app.screen, Dialog))
            if screen == "search":
                app.screen.query_one("#words", Input).value = "tiny"
                await pilot.press("enter")
            await until(pilot, hub.asked.is_set)
            app.exit(0)

    too_long = threading.Timer(60.0, hub.go_on.set)
    too_long.daemon = True
    too_long.start()
    try:
        asyncio.run(session(make_app()))
        assert not hub.go_on.is_set(), "it was left only once the hub had answered"
    finally:
        too_long.cancel()
        hub.go_on.set()
