"""Every theme draws the chat, and what can be clicked does what its key does."""

from __future__ import annotations

import base64

import pytest
from textual.widgets import Collapsible
from textual.widgets._collapsible import CollapsibleTitle
from textual.widgets._tabbed_content import ContentTab

from localspec.tui.widgets.answer_text import AnswerText
from localspec.tui.widgets.origin_view import OriginView
from localspec.tui.widgets.transcript import FigureLine
from tests.tui.conftest import MakeApp, front, say, until
from tests.tui.recorder import MARIA
from tests.tui.scenes import MARKDOWN

pytestmark = pytest.mark.asyncio


async def test_every_theme_draws_the_chat(make_app: MakeApp) -> None:
    app = make_app(MARKDOWN)
    async with app.run_test(size=(80, 40)) as pilot:
        await say(pilot, "Everything an answer may have")
        texts, backgrounds = set[str](), set[object]()
        assert {"localspec-dark", "localspec-light", "textual-dark"} <= set(app.available_themes)
        for theme in app.available_themes:
            app.theme = theme
            await until(pilot, lambda: not app.screen._layout_required)
            strips = app.screen._compositor.render_strips()
            texts.add("\n".join(strip.text for strip in strips))
            backgrounds.add(app.screen.background_colors[1])
        assert len(texts) == 1, "a theme changes colours only"
        assert "def fibonacci" in texts.pop()
        assert len(backgrounds) > len(app.available_themes) // 2, "they were really switched"


async def test_a_tab_is_clicked(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        first = front(app).chat_id
        await say(pilot, "Hello")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: len(app.chat_screen.panes) == 2 and front(app).chat_id != first)
        await pilot.click(app.screen.query(ContentTab).first())
        await until(pilot, lambda: front(app).chat_id == first)


async def test_a_thought_is_unfolded_and_folded_by_clicks(make_app: MakeApp) -> None:
    app = make_app("<think>\nLet me see.\n</think>\n\nFour.")
    async with app.run_test() as pilot:
        await say(pilot, "2 + 2?")
        fold = app.screen.query_one(Collapsible)
        await pilot.click(fold.query_one(CollapsibleTitle))
        await until(pilot, lambda: not fold.collapsed)
        await pilot.click(fold.query_one(CollapsibleTitle))
        await until(pilot, lambda: fold.collapsed)


async def test_a_click_on_the_figures_shows_where_tokens_came_from(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await say(pilot, MARIA)
        await pilot.click(app.screen.query_one(FigureLine))
        await until(pilot, lambda: app.screen.query_one(OriginView).passes)
        for _ in range(3):
            await until(pilot, lambda: app.screen.query_one(FigureLine).region.height)
            await pilot.click(app.screen.query_one(FigureLine))
            await pilot.pause()
        await until(pilot, lambda: app.screen.query(AnswerText))


async def test_over_ssh_the_terminal_takes_what_is_copied(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clipboard of the machine far away is not the reader's: the text goes through the terminal (OSC 52)."""
    app = make_app("to the reader")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    monkeypatch.setenv("DISPLAY", ":0")
    async with app.run_test() as pilot:
        await say(pilot, "Go")
        await until(
            pilot, lambda: app.session.facts is not None and not any(one.group == "import" for one in app.workers)
        )
        sent = list[str]()
        assert app._driver is not None
        with monkeypatch.context() as patch:
            patch.setattr(type(app), "is_headless", False)
            patch.setattr(app._driver, "write", sent.append)
            await pilot.press("ctrl+l")
            await until(pilot, lambda: any("]52;c;" in one for one in sent))
        (sequence,) = (one for one in sent if "]52;c;" in one)
        assert base64.b64decode(sequence.split(";")[2].rstrip("\x07")) == b"to the reader"
        await until(pilot, lambda: any("through the terminal" in note.message for note in app._notifications))
