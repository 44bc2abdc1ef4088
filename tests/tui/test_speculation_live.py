"""Race, step view, origins and doctor on the real bundled pair."""

from __future__ import annotations

import pytest

from localspec.runner.answering import ChildAnswerer
from localspec.runtime.engine import Engine
from localspec.tui.screens.help import examine
from localspec.tui.screens.race import PLAIN, SPECULATIVE, RaceScreen
from localspec.tui.screens.stats import StepsScreen
from localspec.tui.widgets.origin_view import OriginView
from tests.tui.conftest import MakeApp, front, say, until

pytestmark = pytest.mark.asyncio


async def test_the_bundled_pair_races_against_itself(make_app: MakeApp, live: ChildAnswerer, pair: Engine) -> None:
    app = make_app(answerer=live, begin={"temperature": 0.0})
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.facts is not None, seconds=120)
        await pilot.press("f8")
        await until(pilot, lambda: isinstance(app.screen, RaceScreen))
        screen = app.screen
        assert isinstance(screen, RaceScreen)
        await pilot.press("enter")
        await until(pilot, lambda: screen.speedups, seconds=60)
        plain, speculative = screen.lanes[PLAIN], screen.lanes[SPECULATIVE]
        assert plain.tokens == speculative.tokens
        assert plain.count == speculative.count == len(plain.tokens) > 5
        assert not any(one.guesses for one in plain.passes)
        assert any(one.guesses for one in speculative.passes)
        assert len(plain.passes) >= plain.count
        assert len(speculative.passes) + sum(one.accepted for one in speculative.passes) >= speculative.count
        assert len(speculative.passes) < len(plain.passes) or not any(one.accepted for one in speculative.passes)
        assert "✓ the same" in str(screen.query_one("#result").content)  # type: ignore[attr-defined]
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is app.chat_screen)

        await say(pilot, "Repeat this text exactly: Maria bought 12 lanterns in Lisbon.")
        message = front(app).path[-1]
        await pilot.press("f6")
        await until(pilot, lambda: app.screen.query(OriginView) and app.screen.query_one(OriginView).passes)
        text = "".join(one.text for one in app.screen.query_one(OriginView).passes)
        assert text == message.content
        await pilot.press("f9")
        await until(pilot, lambda: isinstance(app.screen, StepsScreen) and app.screen.passes)
        steps = app.screen
        assert isinstance(steps, StepsScreen)
        assert len(steps.passes) == message.stats["passes"]

        findings = {finding.name: finding for finding in examine(live, [message.stats], 100)}
        assert {"speed", "acceptance", "time", "memory", "target", "passes", "kernels"} <= set(findings)
        assert "tokens/s over 1 answers" in findings["speed"].value
