"""Statistics, step view, race and doctor in the app, every key, on the recording of the bundled pair."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from textual.containers import VerticalScroll
from textual.widgets import Input, OptionList, Static

from localspec.checks.doctor import Remark
from localspec.engine.slot import PassRecord
from localspec.remote.answerer import Facts
from localspec.tui.screens.help import DoctorScreen, content_of, ordered, verdict
from localspec.tui.screens.race import HELP, PLAIN, SPECULATIVE, LaneView, RaceScreen
from localspec.tui.screens.stats import SPEEDS, StatsScreen, StepsScreen
from localspec.tui.shell.app import ChatApp
from localspec.tui.widgets.meter import Meter
from localspec.tui.widgets.origin_view import OriginView
from tests.tui.conftest import MakeApp, say, until
from tests.tui.replayer import Pass, Recorded, Recording, ReplayAnswerer

pytestmark = pytest.mark.asyncio


def shown(app: ChatApp, query: str) -> str:
    """Text of a Static."""
    return str(app.screen.query_one(query, Static).content)


async def test_the_meter_shows_the_last_answer(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(100, 30)) as pilot:
        meter = app.screen.query_one(Meter)
        await until(pilot, lambda: "bundled pair" in str(meter.content))
        await say(pilot, "hi")
        await until(pilot, lambda: "tok/s" in str(meter.content))
        assert "acceptance" in str(meter.content)
        assert "x plain" not in str(meter.content), "too short an answer"
        await pilot.resize_terminal(30, 20)
        await until(pilot, lambda: len(str(meter.content)) <= 30)
        assert "tok/s" in str(meter.content)


async def test_statistics_of_this_chat_and_all(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    app = make_app()
    async with app.run_test(size=(100, 50)) as pilot:
        monkeypatch.setattr("localspec.tui.screens.stats.copy", lambda app, text, what: copied.append(text))
        await say(pilot, "one")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: len(app.chat_screen.panes) == 2)
        await say(pilot, "two")
        await say(pilot, "three")
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(app.screen, StatsScreen))
        await until(pilot, lambda: "2 with" in shown(app, "#page"))
        assert shown(app, "#scope") == "This chat"
        assert "Acceptance by position" in shown(app, "#page")
        await pilot.press("a")
        await until(pilot, lambda: "3 with" in shown(app, "#page"))
        assert shown(app, "#scope") == "All chats"
        assert "Drafts accepted at least so deep" in shown(app, "#page")
        await pilot.press("c")
        assert "against plain" in copied[0]
        await pilot.press("tab")
        await until(pilot, lambda: shown(app, "#scope") == "This chat")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat_screen)


async def test_statistics_without_an_answer(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test() as pilot:
        await pilot.press("f7")
        await until(pilot, lambda: isinstance(app.screen, StatsScreen) and "No answer yet" in shown(app, "#page"))


async def steps(app: ChatApp, pilot: Any) -> StepsScreen:
    await say(pilot, "hi")
    await pilot.press("f9")
    await until(pilot, lambda: isinstance(app.screen, StepsScreen) and app.screen.passes)
    screen = app.screen
    assert isinstance(screen, StepsScreen)
    return screen


async def test_stepping_through_an_answer(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await steps(app, pilot)
        count = len(screen.passes)
        assert shown(app, "#headline").startswith(f"Pass 1 of {count}")
        await pilot.press("right", "right", "left")
        assert screen.index == 1
        assert len(screen.query_one(OriginView).passes) == 2
        await pilot.press("d")
        assert screen.passes[screen.index].guesses
        assert "✓" in shown(app, "#verdict") or "✗" in shown(app, "#verdict")
        await pilot.press("end")
        assert screen.index == count - 1
        assert len(screen.query_one(OriginView).passes) == count
        await pilot.press("right", "d")
        assert screen.index == count - 1
        await pilot.press("home", "left")
        assert screen.index == 0
        assert len(screen.query_one(OriginView).passes) == 1


async def test_playing_goes_on_by_itself_and_stops(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await steps(app, pilot)
        await pilot.press(*["minus"] * len(SPEEDS))
        assert f"replay at {SPEEDS[0]:g}x" in shown(app, "#timing")
        await pilot.press("space")
        assert "▶" in shown(app, "#timing")
        await pilot.press("space")
        assert "▶" not in shown(app, "#timing")
        await pilot.press(*["plus"] * len(SPEEDS), "space")
        await until(pilot, lambda: screen.index == len(screen.passes) - 1)
        await until(pilot, lambda: f"replay at {SPEEDS[-1]:g}x" in shown(app, "#timing"))
        await pilot.press("minus", "minus", "minus", "minus", "minus", "space")  # from the start again
        assert screen.index == 0


async def test_nothing_to_step_through(make_app: MakeApp) -> None:
    app = make_app("no passes")
    async with app.run_test() as pilot:
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, StepsScreen))
        assert "no answer to replay" in shown(app, "#headline")
        await pilot.press("right", "space", "d", "end", "plus", "escape")
        await say(pilot, "hi")
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, StepsScreen) and "No passes" in shown(app, "#headline"))


def lane_of(tokens: list[int], width: int) -> Recorded:
    """`width` tokens a pass, each pass a tenth of a second."""
    passes = []
    for at in range(0, len(tokens), width):
        part = tokens[at : at + width]
        record = PassRecord(
            "draft" if width > 1 else "",
            tuple(part[:-1]),
            tuple(range(-1, len(part) - 2)),
            tuple(range(len(part) - 1)),
            part[-1],
            len(part),
            0.1,
        )
        passes.append(Pass("x", tuple(part), (), record))
    return Recorded(passes)


def racing(*answers: Recorded) -> ReplayAnswerer:
    """The first answer is the warm-up's."""
    return ReplayAnswerer(Recording([lane_of([9], 1), *answers], {n: b" t%d" % n for n in range(100)}))


async def race(app: ChatApp, pilot: Any) -> RaceScreen:
    await pilot.press("f8")
    await until(pilot, lambda: isinstance(app.screen, RaceScreen))
    screen = app.screen
    assert isinstance(screen, RaceScreen)
    await until(pilot, lambda: app.session.facts is not None)
    assert shown(app, "#note") == HELP
    await pilot.press("enter")
    await until(pilot, lambda: screen.speedups)
    return screen


async def test_a_race_measures_both_and_ticks(make_app: MakeApp) -> None:
    tokens = list(range(12))
    answerer = racing(lane_of(tokens, 1), lane_of(tokens, 3))
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await race(app, pilot)
        assert screen.speedups[0] == pytest.approx(3.0)
        assert "✓ the same 12 tokens" in shown(app, "#result")
        assert "3.00x" in shown(app, "#result")
        warm, plain, speculative = answerer.questions
        assert (warm.max_tokens, warm.drafter) == (1, "none")
        assert (plain.drafter, speculative.drafter) == ("none", None)
        assert plain.seed == speculative.seed is not None
        assert plain.sampling == speculative.sampling
        await pilot.press(*["plus"] * 6)
        await until(pilot, lambda: "Both lanes are done (as fast as it was)" in shown(app, "#note"))
        await pilot.press("r")
        await until(pilot, lambda: "Side by side" in shown(app, "#note"))
        await pilot.press("minus")
        await until(pilot, lambda: "0.3 of the real pace" in shown(app, "#note"))


async def test_races_in_the_other_order_are_counted_together(make_app: MakeApp) -> None:
    tokens = list(range(12))
    warm = lane_of([9], 1)
    answerer = ReplayAnswerer(
        Recording(
            [warm, lane_of(tokens, 1), lane_of(tokens, 3), warm, lane_of(tokens, 4), lane_of(tokens, 1)],
            {n: b" t%d" % n for n in range(100)},
        )
    )
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await race(app, pilot)
        await pilot.press("a")
        await until(pilot, lambda: len(screen.speedups) == 2)
        assert [question.drafter for question in answerer.questions[4:]] == [None, "none"]
        assert screen.lanes[PLAIN].count == screen.lanes[SPECULATIVE].count == 12
        assert "of 2 races, 3.00x to 4.00x" in shown(app, "#result")
        await pilot.press("p")
        assert isinstance(app.focused, Input)


async def test_a_fork_is_shown(make_app: MakeApp) -> None:
    app = make_app(answerer=racing(lane_of([1, 2, 3, 4], 1), lane_of([1, 2, 5, 4], 2)))
    async with app.run_test(size=(80, 24)) as pilot:
        await race(app, pilot)
        assert "✗ they differ from token 3 on" in shown(app, "#result")


async def test_a_race_does_not_start_beside_an_answer(make_app: MakeApp) -> None:
    import threading

    answerer = racing(lane_of([1, 2], 1))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        app.chat_screen.front.composer.put("hi")
        await pilot.press("enter")
        await until(pilot, lambda: app.chat_screen.front.answer is not None)
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, RaceScreen))
        assert app.screen.query_one("#prompt", Input).value == "hi"
        await pilot.press("enter")
        assert "An answer is being written" in shown(app, "#note")
        answerer.hold.set()


async def test_the_prompt_of_a_race_is_replaced_by_typing(make_app: MakeApp) -> None:
    app = make_app("a")
    async with app.run_test(size=(80, 24)) as pilot:
        await say(pilot, "Tell me of whales")
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, RaceScreen) and isinstance(app.focused, Input))
        field = app.screen.query_one("#prompt", Input)
        assert field.value == "Tell me of whales"
        await pilot.press(*"Whales")
        assert field.value == "Whales"
        await pilot.press("home", *"Of ")  # a cursor key goes on with what is there
        assert field.value == "Of Whales"
        offered = {key.binding.id or "" for key in app.screen.active_bindings.values() if key.enabled}
        assert not {name for name in offered if name.startswith("race.")}, "they are letters of the prompt"


async def test_a_race_shows_both_answers_in_40_columns_and_12_lines(make_app: MakeApp) -> None:
    tokens = list(range(12))
    app = make_app(answerer=racing(lane_of(tokens, 1), lane_of(tokens, 3)))
    async with app.run_test(size=(40, 12)) as pilot:
        screen = await race(app, pilot)
        await until(pilot, lambda: "Both lanes are done" in shown(app, "#note"))
        for lane in screen.query(LaneView):
            text = lane.query_one(VerticalScroll)
            await until(pilot, partial(lambda text: text.region.height >= 2, text))
            assert "12 tokens" in str(lane.query_one(".clock", Static).content)
            assert lane.query_one(".clock").region.height == 3, "name, clock, speed"
            assert lane.region.contains_region(text.region)
            assert screen.region.contains_region(text.region)


async def test_a_pass_is_seen_in_40_columns_and_12_lines(make_app: MakeApp) -> None:
    app = make_app()
    async with app.run_test(size=(40, 12)) as pilot:
        await say(pilot, "Maria")
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, StepsScreen) and app.screen.passes)
        for part in ("#text", "#verdict-scroll"):
            found = app.screen.query_one(part, VerticalScroll)
            await until(pilot, partial(lambda found: found.content_region.height >= 2, found))


async def test_the_race_leaves_no_answer_behind(make_app: MakeApp) -> None:
    import threading

    answerer = racing(lane_of([1, 2], 1))
    answerer.hold = threading.Event()
    app = make_app(answerer=answerer)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, RaceScreen) and app.session.facts)
        screen = app.screen
        assert isinstance(screen, RaceScreen)
        await pilot.press("enter")
        await until(pilot, lambda: screen._answer is not None)
        answer: Any = screen._answer
        await pilot.press("escape")
        await until(pilot, lambda: answer.cancelled.is_set())
        answerer.hold.set()
        assert app.screen is app.chat_screen


async def test_the_doctor_examines_and_copies(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    app = make_app()
    async with app.run_test(size=(100, 40)) as pilot:
        monkeypatch.setattr("localspec.tui.screens.help.copy", lambda app, text, what: copied.append(text))
        await say(pilot, "hi")
        app.chat_screen.open("doctor")
        await until(pilot, lambda: isinstance(app.screen, DoctorScreen) and app.screen.findings)
        screen = app.screen
        assert isinstance(screen, DoctorScreen)
        names = [finding.name for finding in screen.findings]
        assert {"speed", "acceptance", "time", "models", "memory"} <= set(names)
        assert "tokens/s over 1 answers" in next(one.value for one in screen.findings if one.name == "speed")
        screen._show([Remark("GPU", "[red]idle[/red]", "Use it.", "--gpu-layers -1"), Remark("load", "0.1")])
        await pilot.pause()
        assert "1 thing to look at: GPU" in shown(app, "#verdict")
        await pilot.press("enter")
        await pilot.press("c")
        assert copied == ["--gpu-layers -1", "--gpu-layers -1"]
        await pilot.press("R")
        assert "[red]idle[/red]" in copied[2]
        await pilot.press("down", "c")
        assert len(copied) == 3
        await pilot.press("r")
        await until(pilot, lambda: len(screen.findings) > 2)
        assert app.screen.query_one(OptionList).option_count == len(screen.findings)


async def test_findings_with_advice_come_first() -> None:
    findings = ordered([Remark("a", "good"), Remark("b", "bad", "mend it", "command"), Remark("c", "good")])
    assert [finding.name for finding in findings] == ["b", "a", "c"]
    assert content_of(findings[0]).plain == "! b  bad\n    mend it\n    command"
    assert "nothing to mend" in verdict(findings[1:]).plain


async def test_an_endpoint_cannot_race(make_app: MakeApp) -> None:
    recording = Recording([Recorded.of_text("x")], {}, Facts("far away", remote=True))
    app = make_app(answerer=ReplayAnswerer(recording))
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, RaceScreen))
        await pilot.press("enter")
        await until(pilot, lambda: "endpoint cannot be told" in shown(app, "#note"))
