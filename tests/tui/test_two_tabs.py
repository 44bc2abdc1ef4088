"""A short question is answered beside a long answer of another tab."""

from __future__ import annotations

import argparse
import threading
from typing import Any

import pytest

from localspec.cli.commands import chat
from localspec.engine.interfaces import Request
from localspec.engine.slot import Event
from localspec.llama.exact import wide
from localspec.runner.answering import ChildAnswerer
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.server.own.serve import Here
from localspec.tui.talk.session import Preferences
from tests.tui.conftest import MakeApp, answered, front, until

LONG, SHORT = 200, 16
"""Tokens of answers."""


def local(liked: dict[str, Any], *arguments: str) -> ChildAnswerer:
    """What the chat asks, in this process."""
    parser = argparse.ArgumentParser()
    chat.add_options(parser)
    options = parser.parse_args(["--no-process", "--no-tune", "--context", "1024", *arguments])
    options.command = "chat"
    found = chat._local(options, None, None, liked)
    assert isinstance(found, ChildAnswerer)
    return found


def ends(engine: Engine, order: list[int]) -> None:
    """Notes the tokens of answers in the order of their ends."""
    begin = engine.submit

    def beginning(request: Request) -> Generation:
        generation = begin(request)  # the engine's thread is held meanwhile
        deliver = generation.deliver

        def delivered(item: Event | BaseException) -> None:
            if isinstance(item, Event) and item.finish is not None:
                order.append(generation.stats.generated)
            deliver(item)

        generation.deliver = delivered  # type: ignore[method-assign]
        return generation

    engine.submit = beginning  # type: ignore[method-assign]


@pytest.mark.asyncio
@pytest.mark.parametrize("liked", [{}, {"second_slot": False}], ids=str)
async def test_a_short_answer_ends_before_a_long_one_that_began_before_it(
    make_app: MakeApp, liked: dict[str, Any]
) -> None:
    if not wide.available():
        pytest.skip("no wide kernels here")
    answerer, order, asked = local(liked), list[int](), threading.Event()
    rest = {"temperature": 0.0, "drafter": "none"}
    app = make_app(
        answerer=answerer,
        begin=rest | {"max_tokens": LONG},
        preferences=Preferences(parameters=rest | {"max_tokens": SHORT}),
    )
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.session.facts is not None)
        assert isinstance(answerer.child, Here)
        engine = answerer.child.engine
        assert isinstance(engine, Engine)
        ends(engine, order)
        threading.Thread(target=engine.on_engine_thread, args=(asked.wait,)).start()  # until both have asked
        first = front(app)
        first.composer.put("Tell a long story.")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine._waiting) == 1)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: front(app).path == [] and front(app) is not first)
        front(app).composer.put("Count to three.")
        await pilot.press("enter")
        await until(pilot, lambda: len(engine._waiting) == 2)
        asked.set()
        await answered(pilot)
        await until(pilot, lambda: first.answer is None and first.path[-1].role == "assistant")
        lengths = [pane.path[-1].stats["generated_tokens"] for pane in (first, front(app))]
    app.session.answerer.close()
    assert lengths == [LONG, SHORT]
    assert order == ([LONG, SHORT] if liked else [SHORT, LONG])
