"""What a model may say to break a screen or a terminal, and that it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.segment import Segment

from localspec.tui.shell.app import ChatApp
from tests.tui.conftest import MakeApp, answered, front, say
from tests.tui.replayer import FACTS, Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio

HOSTILE = {
    "Rich and Textual tags": "[bold]x[/bold] [/] [@click=app.quit()]press[/] [link=file:///etc]a[/link] $x [[ ]]",
    "escape sequences": "a\x1b[2Jb\x1b]0;title\x07c\x1b]52;c;AAAA\x07d\x1bP1$r\x1b\\e\x9b31mf",
    "control characters": "".join(map(chr, range(32))) + "end\x7f\x80\x9f",
    "bidirectional overrides": "abc \u202etxet desrever\u202c \u2067x\u2069 \u05e9\u05dc\u05d5\u05dd \u0645\u0631",
    "a very long line": "x" * 12_000,  # more would not leave room for the next question
    "wide and joined characters": "漢字" * 400 + " 👩‍👩‍👧‍👦 é̂́ " * 50,
    "HTML": "<script>alert(1)</script> <b>bold</b>\n\n<div>\n<p>block</p>\n</div>\n\n<!-- comment -->",
    "broken Markdown": "```python\nnever closed\n| a | b |\n|--\n**bold [link](x\n> " + "> " * 200 + "deep",
    "deep lists": "\n".join("  " * depth + "- item" for depth in range(60)),
    "a broken table": "| a | b |\n|---|---|\n| 1 |\n| 1 | 2 | 3 |\n|",
    "strange links": "[a](javascript:alert(1)) [b](file:///etc/passwd) ![i](http://x/'\")') <http://a'b\"c> www.x.org",
    "strange fences": "```[bold]\nx\n```\n~~~nosuchlanguage {a=b}\ny\n~~~\n```\u0000\nz\n```",
    "headings": "# \n## [x]\n### " + "é" * 300 + "\n#### a\n#### a\n",
    "entities": "&lt;b&gt; &#27;[31m &#x1b;[2J &nbsp;&#0; &#x202e;abc",
    "lone surrogate": "a \ud800 b",
    "nothing": "",
    "blank": "\n\n   \n\t\n",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
async def test_hostile_text_is_only_text(make_app: MakeApp, text: str) -> None:
    app = make_app(text, "still here")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        picture = app.export_screenshot()
        drawn = "".join(segment.text for strip in _strips(app) for segment in strip)
        assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in drawn)
        assert not any(character in "\u202a\u202b\u202d\u202e\u2066\u2067\u2068" for character in drawn)
        assert picture
        assert app.title == "localspec"
        assert len(app.screen_stack) == 1
        await say(pilot, "And now?")
        assert front(app).path[-1].content == "still here"


async def test_tags_are_shown_as_they_are(make_app: MakeApp) -> None:
    app = make_app("[bold]x[/bold] <b>y</b> &lt;z&gt;")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "[red]Go[/red] [@click=app.quit]x[/]")
        drawn = "\n".join("".join(segment.text for segment in strip) for strip in _strips(app))
        assert "[bold]x[/bold] <b>y</b> <z>" in drawn
        assert "[red]Go[/red] [@click=app.quit]x[/]" in drawn


async def test_titles_with_tags_are_titles(make_app: MakeApp) -> None:
    app = make_app("ok")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "x")
        app.session.archive.update_chat(front(app).chat_id, title="[bold]T[/] \x1b[31m[@click=app.quit]q")
        await pilot.press("ctrl+n")
        await pilot.pause()
        app.chat_screen.show_titles()
        await pilot.press("f4")
        await pilot.pause(0.2)
        assert app.export_screenshot()


async def test_an_endless_code_block_streams_and_is_cut_into_segments(make_app: MakeApp) -> None:
    app = make_app("```python\n" + "x = [1, 2, 3]  # comment\n" * 1200)
    async with app.run_test(size=(80, 24)) as pilot:
        front(app).composer.put("Go")
        await pilot.press("enter")
        await answered(pilot)
        (text,) = front(app).transcript.bubbles[-1].texts
        parts = text.segments
        assert len(parts) > 3
        assert sum(part.text.count("x = [1") for part in parts) == 1200


async def test_a_line_of_forty_thousand_characters_keeps_nobody_waiting(make_app: MakeApp) -> None:
    roomy = replace(FACTS, context=1 << 20)
    answers = [Recorded.of_text("x" * 40_000), Recorded.of_text("still here")]
    app = make_app(answerer=ReplayAnswerer(Recording(answers, {}, roomy)))
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Go")
        await say(pilot, "And now?")
        assert front(app).path[-1].content == "still here"


def _strips(app: ChatApp) -> list[list[Segment]]:
    return [list(strip) for strip in app.screen._compositor.render_strips()]
