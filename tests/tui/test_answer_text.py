"""How answers are drawn: line by line, each part once, and what the mouse does with it."""

from __future__ import annotations

import re

import pytest
from textual.geometry import Offset
from textual.selection import Selection

from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.answer_text import SOFT, AnswerText
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio

LONG = "".join(f"Paragraph {number} " + "of some words " * 30 + "\n\n" for number in range(40))


def text_of(app: ChatApp) -> AnswerText:
    return front(app).transcript.bubbles[-1].texts[-1]


def drawn(text: AnswerText) -> list[str]:
    return [text.render_line(y).text.rstrip() for y in range(text.size.height)]


async def test_blocks_are_drawn_and_links_are_no_terminal_links(make_app: MakeApp) -> None:
    said = (
        "# Head\n\nSee [this](https://x.org/a) and ![a picture](https://x.org/b.png).\n\n1. one\n2. two\n   - three\n\n"
        "> quoted\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n---\n\n```python\ndef f():\n    return 1\n```\n"
    )
    app = make_app(said)
    async with app.run_test(size=(60, 50)) as pilot:
        await say(pilot, "Go")
        text = text_of(app)
        lines = drawn(text)
        assert lines[:6] == ["Head", "", "See this and 🖼 a picture.", "", " 1 one", " 2 two"]
        assert "▌ quoted" in lines
        assert lines[lines.index("a  b") :][:3] == ["a  b", "────", "1  2"]
        assert lines[-3:] == ["  code 1 · python", "  def f():", "      return 1"]
        parts = [part for y in range(len(lines)) for part in text.render_line(y)]
        links = {part.style.meta["href"] for part in parts if part.style and "href" in part.style.meta}
        assert links == {"https://x.org/a", "https://x.org/b.png"}
        assert not any(part.style and part.style.link for part in parts)


async def test_blocks_of_code_have_the_numbers_that_are_asked_for(make_app: MakeApp) -> None:
    long = "```c\n" + "int x = 1;\n" * 600 + "```\n\n"
    app = make_app(long + "1. In a list:\n\n   ~~~\n   ls\n   ~~~\n\n" + "word " * 400 + "\n\n```sh\nls")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        await until(pilot, lambda: text_of(app).complete)
        lines = [line.strip() for line in drawn(text_of(app))]
        assert lines.count("int x = 1;") == 600
        assert [line for line in lines if line.startswith("code ")] == ["code 1 · c", "code 2", "code 3 · sh"]


async def test_new_text_costs_only_the_last_part(make_app: MakeApp) -> None:
    app = make_app(LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        text = text_of(app)
        assert len(text.segments) > len(LONG) // SOFT // 2
        await until(pilot, lambda: text.complete)
        before = list(text.segments)
        await text.settle(front(app).path[-1].content)
        assert all(now is then for now, then in zip(text.segments, before, strict=True))
        assert len(list(text.query("*"))) == 0


async def test_only_what_is_near_the_view_is_kept_drawn(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.tui.widgets.transcript._KEPT_PAGES", 1)  # a shorter answer shows it, too
    app = make_app(LONG * 4)
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        text, transcript = text_of(app), front(app).transcript

        def ready() -> list[bool]:
            return [segment.lines is not None for segment in text.segments]

        await until(pilot, lambda: text.complete and not any(ready()[: len(ready()) // 2]))
        assert ready()[-1]
        tall = text.size.height
        transcript.scroll_to(y=tall // 2, animate=False)
        await until(pilot, lambda: any(ready()[len(ready()) // 3 : len(ready()) * 2 // 3]) and not ready()[-1])
        assert "Paragraph" in _screen(app)
        assert text.size.height == tall, "heights stay known"


async def test_a_change_of_width_or_theme_draws_again(make_app: MakeApp) -> None:
    app = make_app(LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        await until(pilot, lambda: text_of(app).complete)
        text, tall = text_of(app), text_of(app).size.height
        await pilot.resize_terminal(140, 24)
        await until(pilot, lambda: text.complete and text.size.height < tall)
        assert [line.split()[1] for line in drawn(text) if line.startswith("Paragraph")] == list(map(str, range(40)))
        colours = {part.style.color for part in text.render_line(0) if part.style}
        app.theme = "textual-light"
        await until(pilot, lambda: colours.isdisjoint({part.style.color for part in text.render_line(0) if part.style}))


async def test_what_is_selected_is_copied_as_it_stands(make_app: MakeApp) -> None:
    app = make_app("Some words\n\n```\na = 1\n```\n\n漢字 and more")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        text = text_of(app)
        selection = Selection(Offset(5, 0), Offset(2, 5))
        app.screen.selections = {text: selection}
        await pilot.pause()
        assert app.screen.get_selected_text() == "words\n\n  code 1\n  a = 1\n\n漢字"
        marked = app.screen.get_component_rich_style("screen--selection").bgcolor
        shown = [part.text for part in text.render_line(5) if part.style and part.style.bgcolor == marked]
        assert "".join(shown) == "漢字"


async def test_what_the_reader_sees_stays_while_more_is_drawn_above(make_app: MakeApp) -> None:
    app = make_app("unused")
    async with app.run_test(size=(80, 24)) as pilot:
        pane = front(app)
        for number in range(14):
            user = app.session.archive.append_user(pane.chat_id, f"Question {number}")
            writer = app.session.archive.begin_answer(user.id)
            writer.extend(f"Answer {number}.\n\n" + LONG[:1500])
            writer.finish()
        await pane.transcript.show(pane.path)
        pane.transcript.to_end()
        await until(pilot, lambda: pane.transcript.scroll_y == pane.transcript.max_scroll_y > 0)
        drawn_at_first = len(pane.transcript.bubbles)
        seen = list[str]()
        for _ in range(200):
            await pilot.press("pageup")
            await until(
                pilot, lambda: all(text.complete for bubble in pane.transcript.bubbles for text in bubble.texts)
            )
            seen += re.findall(r"Answer \d+\.", _screen(app))
            if pane.transcript.scroll_y == 0 and pane.transcript.bubbles[0].message.content == "Question 0":
                break
        assert len(pane.transcript.bubbles) > drawn_at_first
        assert set(seen) >= {f"Answer {number}." for number in range(13)}  # no page was skipped


def _screen(app: ChatApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())
