"""An error that nobody expected: the chat goes on, says so, logs it, and what was typed is there."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.geometry import Size
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from localspec.tui.shell.app import ChatApp, log_file, write
from localspec.tui.talk import files
from localspec.tui.widgets.dialogs import errand
from tests.tui.conftest import MakeApp, front, say, until


class _Fault(Exception):
    """What nobody expects."""


def _raise(*_: object) -> None:
    raise _Fault("it broke")


def _raise_another(*_: object) -> None:
    raise _Fault("this, too")


async def _raise_later() -> None:
    raise _Fault("it broke")


class _Broken(Vertical):
    """Its handlers raise."""

    def compose(self) -> ComposeResult:
        yield Input(id="theirs")

    def on_input_changed(self) -> None:
        raise _Fault("it broke")


class _Undrawable(Widget):
    def render_line(self, y: int) -> Strip:
        raise _Fault("it broke")

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1


async def _mount(app: ChatApp) -> None:
    await front(app).mount(_Broken())
    app.query_one("#theirs", Input).value = "x"


WAYS: dict[str, Callable[[ChatApp], object]] = {
    "a worker": lambda app: app.run_worker(_raise_later()),
    "a thread": lambda app: app.run_worker(_raise, thread=True),
    "an errand": lambda app: front(app).run_worker(errand(_raise)),
    "a timer": lambda app: app.set_timer(0.001, _raise),
    "a timer of a widget": lambda app: front(app).composer.set_timer(0.001, _raise),
    "what comes after a refresh": lambda app: app.call_after_refresh(_raise),
    "what is called later": lambda app: front(app).composer.call_later(_raise),
    "a handler": lambda app: app.run_worker(_mount(app)),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", WAYS)
async def test_an_error_is_said_and_logged_and_the_chat_goes_on(make_app: MakeApp, way: str) -> None:
    app = make_app("still here")
    with app.kept_up():
        async with app.run_test() as pilot:
            front(app).composer.put("not sent yet")
            WAYS[way](app)
            await until(pilot, lambda: app._notifications)
            [note] = app._notifications
            assert note.message.startswith("The chat goes on after an internal error: _Fault('it broke').")
            assert str(log_file()) in note.message
            assert front(app).composer.text == "not sent yet"
            await say(pilot, "And now?")
            assert front(app).path[-1].content == "still here"
    logged = log_file().read_text()
    assert "Traceback" in logged
    assert 'raise _Fault("it broke")' in logged
    assert log_file().stat().st_mode & 0o077 == 0
    assert not app.ended_by


@pytest.mark.asyncio
@pytest.mark.parametrize("way", WAYS)
async def test_without_the_net_an_error_fails_a_test(make_app: MakeApp, way: str) -> None:
    app = make_app("a")

    async def use() -> None:
        async with app.run_test() as pilot:
            WAYS[way](app)
            await until(pilot, lambda: app.return_code)

    with pytest.raises(Exception, match="it broke"):
        await use()


@pytest.mark.asyncio
async def test_a_widget_that_cannot_be_drawn_ends_nothing(make_app: MakeApp) -> None:
    app = make_app("still here")
    with app.kept_up():
        async with app.run_test() as pilot:
            broken = _Undrawable()
            await front(app).mount(broken)
            while not app._notifications:  # `until` would draw, too
                await asyncio.sleep(0.01)
            await broken.remove()
            await say(pilot, "And now?")
            assert front(app).path[-1].content == "still here"


@pytest.mark.asyncio
async def test_a_message_that_could_not_be_sent_is_in_the_input(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "attached", _raise)
    app = make_app("a")
    with app.kept_up():
        async with app.run_test() as pilot:
            front(app).composer.put("dear to me")
            await pilot.press("enter")
            await until(pilot, lambda: app._notifications)
            assert front(app).composer.text == "dear to me"
            assert not front(app).busy
            monkeypatch.setattr("localspec.tui.screens.commands.SlashCommands.pin", _raise_another)
            front(app).composer.put("/pin it")
            await pilot.press("enter")
            await until(pilot, lambda: len(app._notifications) == 2)
            assert front(app).composer.text == "/pin it"


@pytest.mark.asyncio
async def test_the_same_error_again_and_again_is_said_once(make_app: MakeApp) -> None:
    app = make_app("a")
    with app.kept_up():
        async with app.run_test() as pilot:
            for _ in range(5):
                app.call_later(_raise)
            await until(pilot, lambda: app._notifications)
            assert len(app._notifications) == 1
    assert log_file().read_text().count("Traceback") == 1


@pytest.mark.asyncio
async def test_where_nothing_works_the_chat_ends_and_keeps_what_was_typed(make_app: MakeApp) -> None:
    app = make_app("a")
    with app.kept_up():
        async with app.run_test() as pilot:
            chat_id = front(app).chat_id
            front(app).composer.put("not sent yet")
            await pilot.pause()
            for _ in range(200):
                app.call_later(_raise)
            await until(pilot, lambda: app.ended_by)
    assert app.ended_by.startswith("The chat ended by an internal error: _Fault('it broke').")
    assert app.return_code == 1
    assert app.session.archive.chat(chat_id).unsent == "not sent yet"


def test_a_full_log_is_put_aside(folders: Path) -> None:
    assert write(_Fault("first"))
    log_file().write_text("x" * (1024 * 1024 + 1))
    assert write(_Fault("second"))
    assert "second" in log_file().read_text()
    assert (log_file().parent / "errors.old.log").stat().st_size == 1024 * 1024 + 1


def test_a_chat_that_cannot_begin_is_one_sentence_and_exit_code_1(folders: Path) -> None:
    """In a terminal; before it was a page of traceback and exit code 0."""
    code = (
        "import sys\nfrom localspec.tui.screens.chat import ChatScreen\n"
        "def compose(screen): raise KeyError('it broke')\n"
        "ChatScreen.compose = compose\n"
        "from localspec.cli import main\nsys.exit(main(['chat']))"
    )
    ours, theirs = pty.openpty()
    os.set_blocking(ours, True)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            seen += os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(60) == 1
    text = seen.decode()
    assert text.count("localspec: The chat ended by an internal error: KeyError('it broke').") == 1
    assert "Traceback" not in text
