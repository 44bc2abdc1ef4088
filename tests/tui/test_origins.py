"""Origin views in the chat: stored and live, coloured, signed, and safe against what models say."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from textual.color import Color
from textual.widgets import Static

from localspec.chat.archive.archive import Archive
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall, Message
from localspec.engine.slot import Origin, PassRecord
from localspec.methods import TABLE
from localspec.tui.shell.app import ChatApp
from localspec.tui.text.origin_lines import AnswerPass, OriginCell, of_results, read_passes
from localspec.tui.widgets.origin_view import NOTHING, OriginText, OriginView, Shares, legend
from tests.tui.conftest import MakeApp, answered, front, say, until
from tests.tui.replayer import Pass, Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio

PIECES = {1: b"Maria", 2: b" bought", 3: b" [red]12[/red]", 4: b"\x1b[31m lanterns", 5: b" sold", 6: b"."}
PASSES = [
    Pass("Maria", (1,), (Origin("", 0),), PassRecord("", (), (), (), 1, 1, 0.01)),
    Pass(
        " bought [red]12[/red]",
        (2, 3),
        (Origin("lookup", 1), Origin("", 0)),
        PassRecord("lookup", (2, 5), (-1, 0), (0,), 3, 3, 0.02),
    ),
    Pass(
        "\x1b[31m lanterns.",
        (4, 6),
        (Origin("draft", 1), Origin("", 0)),
        PassRecord("draft", (4,), (-1,), (0,), 6, 2, 0.02),
    ),
]
RECORDING = Recording([Recorded(PASSES)], PIECES)


def text_of(view: OriginView) -> str:
    """What the view shows, line by line."""
    return "\n".join(view.render_line(y).text.rstrip() for y in range(view.size.height))


def said(app: ChatApp, query: str, words: str) -> bool:
    """Whether a Static of the screen in front says so."""
    return any(words in str(one.content) for one in app.screen.query(query).results(Static))


async def test_f6_goes_through_the_views(make_app: MakeApp) -> None:
    app = make_app(answerer=ReplayAnswerer(RECORDING))
    async with app.run_test(size=(80, 30)) as pilot:
        await say(pilot, "hi")
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
        view = app.screen.query_one(OriginView)
        assert text_of(view) == "Maria bought [red]12[/red]␛[31m lanterns."
        assert "prompt lookup 20%" in str(app.screen.query_one(".legend").content)  # type: ignore[attr-defined]
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query_one(OriginView).ghosts and app.screen.query_one(OriginView).passes)
        assert "Maria bought sold [red]12" in text_of(app.screen.query_one(OriginView))
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query_one(OriginView).mode == "signs")
        await until(pilot, lambda: app.screen.query_one(OriginView).passes)
        lines = text_of(app.screen.query_one(OriginView)).splitlines()
        assert lines[1].replace(" ", "") == "·lx·d·"
        assert lines[1][0] == "·"
        assert lines[0].index(" bought") == lines[1].index("l")
        await pilot.press("f6")
        await until(pilot, lambda: not app.screen.query(OriginView))


async def test_it_follows_an_answer_that_streams(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(RECORDING)
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 30)) as pilot:
        await pilot.press("f6")
        front(app).composer.put("hi")
        await pilot.press("enter")
        await until(pilot, lambda: app.screen.query(OriginView) and len(app.screen.query_one(OriginView).passes) == 2)
        assert text_of(app.screen.query_one(OriginView)) == "Maria bought [red]12[/red]"
        answerer.hold.set()
        await answered(pilot)
        await until(pilot, lambda: len(app.screen.query_one(OriginView).passes) == 3)


async def test_opened_in_the_middle_it_loses_nothing(make_app: MakeApp) -> None:
    answerer = ReplayAnswerer(RECORDING)
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 30)) as pilot:
        front(app).composer.put("hi")
        await pilot.press("enter")
        await until(pilot, lambda: front(app).path and "12" in front(app).path[-1].content)
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query(OriginView) and len(app.screen.query_one(OriginView).passes) == 2)
        answerer.hold.set()
        await until(pilot, lambda: len(app.screen.query_one(OriginView).passes) == 3)
        await answered(pilot)
        await until(pilot, lambda: text_of(app.screen.query_one(OriginView)).endswith("lanterns."))


async def test_an_answer_without_passes_says_so(make_app: MakeApp) -> None:
    app = make_app("Plain *text*.")
    async with app.run_test() as pilot:
        await say(pilot, "hi")
        await pilot.press("f6")
        text = app.screen.query_one(OriginText)
        await until(pilot, lambda: NOTHING in str(text.query_one(".legend").content))  # type: ignore[attr-defined]
        assert "Plain *text*." in str(text.query_one(".legend").content)  # type: ignore[attr-defined]


async def test_old_chats_replay_without_the_model(make_app: MakeApp, archive: Archive) -> None:
    chat = archive.new_chat(model="gone")
    user = archive.append_user(chat.id, "hi")
    writer = archive.begin_answer(user.id, piece=lambda token: PIECES[token])
    for one in PASSES:
        writer.extend(one.text, record=one.record)
    writer.finish("done")
    app = make_app("nothing like it")
    async with app.run_test() as pilot:
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
        assert "Maria bought" in text_of(app.screen.query_one(OriginView))


async def test_old_chats_show_a_drafter_that_is_gone(make_app: MakeApp, archive: Archive) -> None:
    """`recycling` was one in version 0.2."""
    user = archive.append_user(archive.new_chat(model="gone").id, "hi")
    writer = archive.begin_answer(user.id, piece=lambda token: PIECES[token])
    writer.extend(" bought[red]12[/red]", record=PassRecord("recycling", (2, 5), (-1, 0), (0,), 3, 3, 0.02))
    figures = {"generated_tokens": 2, "passes": 1, "draft_passes": 1, "drafted": 2, "accepted": 1}
    by_drafter = {"drafted_by_drafter": {"recycling": 2}, "accepted_by_drafter": {"recycling": 1}}
    writer.finish("done", stats={**figures, **by_drafter})
    app = make_app("nothing like it")
    async with app.run_test(size=(80, 40)) as pilot:
        for mode in ("colours", "ghosts", "signs"):
            await pilot.press("f6")
            await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
            view = app.screen.query_one(OriginView)
            assert text_of(view).strip().startswith("bought"), mode
            assert "recycling 50%" in str(app.screen.query_one(".legend").content)  # type: ignore[attr-defined]
        assert text_of(app.screen.query_one(OriginView)).splitlines()[1].startswith("r")
        for key, place in (("f7", "#page"), ("f9", "#headline")):
            await pilot.press(key)
            await until(pilot, partial(said, app, place, "recycling"))
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.chat_screen)


async def test_colours_differ_and_underlines_stand_in_for_them(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def styles(no_color: bool) -> list[tuple[object, ...]]:
        if no_color:
            monkeypatch.setenv("NO_COLOR", "1")
        app = make_app(answerer=ReplayAnswerer(RECORDING))
        async with app.run_test(size=(80, 30)) as pilot:
            await say(pilot, "hi")
            await pilot.press("f6")
            await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
            segments = list(app.screen.query_one(OriginView).render_line(0))[:4]
            return [
                (segment.style.bgcolor, segment.style.underline, segment.style.underline2)
                for segment in segments
                if segment.style is not None
            ]

    own, lookup, own_again, draft = await styles(no_color=False)
    assert own == own_again
    assert len({own, lookup, draft}) == 3
    own, lookup, own_again, draft = await styles(no_color=True)
    assert own == own_again
    assert len({own[1:], lookup[1:], draft[1:]}) == 3


async def test_what_came_out_of_a_result_says_of_which_tool(make_app: MakeApp, archive: Archive) -> None:
    words = ['call read {"path": "a"}', "Line", " one", " two", " three", " Line", " four"]
    pieces = {number: word.encode() for number, word in enumerate(words)}
    chat = archive.new_chat(model="gone")
    user = archive.append_user(chat.id, "Line one?")
    writer = archive.begin_answer(user.id, piece=lambda token: pieces[token])
    writer.extend(record=PassRecord("", (), (), (), 0, 1, 0.01))
    writer.add_call(MadeCall(ToolCall("1", "read", '{"path": "a"}'), "Line one two three."))
    writer.extend("Line one two three four", record=PassRecord("", (), (), (), 1, 1, 0.01))
    writer.extend(record=PassRecord("", (), (), (), 2, 1, 0.01))
    writer.extend(record=PassRecord("lookup", (3, 4), (-1, 0), (0, 1), 6, 3, 0.01))
    writer.finish("done")
    app = make_app("nothing like it")
    async with app.run_test(size=(80, 30)) as pilot:
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
        await until(pilot, lambda: said(app, ".legend", "from a result of read 33%"))
        assert said(app, ".legend", "the target's own 67%")


READ = MadeCall(ToolCall("1", "read", '{"path": "/a b"}'), "x = 1\ny = x + 1\n")
CALL, CODE = ('read {"path": "/a b"}',), (("x",), (" =",), (" 1", "\n", "y"))
SHOWN = Message("tool", READ.result, name="read")


@pytest.mark.parametrize(
    ("passes", "prompt", "drafter"),
    [
        ((CALL, *CODE), [], "from a result of read"),
        ((*CODE, CALL), [], "lookup"),  # it had not been called
        ((CALL, ("x",), (" = 1", "\n", "y")), [], "lookup"),  # one token before it
        ((*CODE,), [SHOWN], "from a result of read"),
        ((*CODE,), [SHOWN, Message("user", "And x = 1\n?")], "lookup"),  # it stood there last
    ],
)
async def test_a_guess_is_of_where_it_stood_last(
    passes: tuple[tuple[str, ...], ...], prompt: list[Message], drafter: str
) -> None:
    made = list[AnswerPass]()
    for *guesses, own in passes:
        cells = [OriginCell(text, "lookup", depth) for depth, text in enumerate(guesses, 1)]
        made.append(AnswerPass("lookup", (), (*cells, OriginCell(own)), 1, 0.0))
    found = of_results(made, prompt, [READ] if CALL in passes else [])
    assert [cell.drafter for one in found for cell in one.emitted if cell.depth] == [drafter] * 2


async def test_the_palette_keeps_its_contrast() -> None:
    colours = [Color.parse(row.look.colour) for row in TABLE if row.kind != "head"]
    for index, one in enumerate(colours):
        for other in colours[index + 1 :]:
            assert sum(abs(a - b) for a, b in zip(one.rgb, other.rgb, strict=True)) > 120


async def test_a_legend_counts_every_token() -> None:
    records = [one.record for one in PASSES if one.record is not None]
    passes = read_passes(records, lambda token: PIECES[token])
    words = legend(Shares(passes), mode="signs", ghosts=True).plain
    for expected in ("the target's own 60%", "draft model 20%", "prompt lookup 20%", "rejected guesses 1", "position"):
        assert expected in words


async def test_a_long_answer_never_keeps_keys_waiting(make_app: MakeApp) -> None:
    """20,000 tokens are laid out in slices; all of them arrive."""
    passes = [AnswerPass("draft", (), tuple([OriginCell(" word", "draft", 1)] * 4), 5, 0.01) for _ in range(5000)]
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        view = OriginView()
        view.show(passes)
        await app.screen.mount(view)
        assert view._laid_out < len(passes)
        await until(pilot, lambda: view._laid_out == len(passes))
        assert sum(len(line) for line in view._lines) == 20_000
        await until(pilot, lambda: view.size.height == len(view._lines))
