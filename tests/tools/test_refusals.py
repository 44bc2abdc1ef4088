"""Calls that are not made as they were asked for, and what is left to the servers to check."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.chat.reply.tool import ToolCall
from localspec.tools.toolbox import Toolbox
from tests.tools.conftest import Connect, demo
from tests.tools.scripted import Said, Scripted, call
from tests.tools.test_answers import ADD, made, told


def test_a_tool_that_changed_since_it_was_offered_is_refused_to_the_model(connect: Connect, tmp_path: Path) -> None:
    box = Toolbox(connect(demo("changes", str(tmp_path / "changed"))))
    first = told(Scripted([Said(calls=[call("say"), ADD]), Said("Done.")]), box, "always")
    assert [one.made.failed for one in made(first)] == [False, True]
    assert made(first)[1].made.result == "The server demo has changed its tool add meanwhile: it was not called."
    again = told(Scripted([Said(calls=[ADD]), Said("Done.")]), box, "no")
    assert [one.made.failed for one in made(again)] == [True], "what changed is asked for again"
    assert [one.made.result for one in made(told(Scripted([Said(calls=[ADD]), Said("Done.")]), box))] == ["5"]


@pytest.mark.parametrize("asked", [call("pattern", text="b"), call("references")])
def test_a_check_that_might_take_for_ever_is_left_to_the_server(connect: Connect, asked: ToolCall) -> None:
    (one,) = made(told(Scripted([Said(calls=[asked]), Said("Done.")]), Toolbox(connect("endlessly"))))
    assert one.made.result == f"Unknown tool: {asked.name}"
