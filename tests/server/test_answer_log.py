"""The log's lines of an answer: what was asked for, what was read, how fast it was, and why it ended."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from tests.server.held import Stop, eventually, send
from tests.server.live import Live, engine_of

SECRET = "Maria's secret words"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="localspec.server")
    return caplog


def ends(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if " answered: " in record.getMessage()]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"max_tokens": 3, "ignore_eos": True}, "its limit was reached"),
        ({"max_tokens": 20, "grammar": 'root ::= "ab"'}, "done"),
        ({"ignore_eos": True}, "the context is full"),
    ],
)
def test_an_answer_has_a_line_when_it_begins_and_one_at_its_end(
    live: Live, log: pytest.LogCaptureFixture, fields: dict[str, Any], why: str
) -> None:
    body = live.complete(SECRET, **fields).json()
    usage = body["usage"]
    assert eventually(lambda: bool(ends(log)))
    assert f"tiny reads a prompt of {usage['prompt_tokens']} tokens" in log.text
    (line,) = ends(log)
    found = re.fullmatch(
        r"tiny answered: (\d+) of (\d+) prompt tokens read, (\d+) cached; (\d+) tokens, [\d.]+ tokens/s, "
        r"(?:\d+ of [1-9]\d* guesses accepted|plain: nothing drafted \(.+\)); (.*)",
        line,
    )
    assert found is not None, line
    read, prompt, cached, said = map(int, found.groups()[:4])
    assert (prompt, said, found[5]) == (usage["prompt_tokens"], usage["completion_tokens"], why)
    assert cached == usage["prompt_tokens_details"]["cached_tokens"]
    assert read + cached == prompt
    assert SECRET not in log.text


def test_a_client_that_leaves_while_its_prompt_is_read_is_told_of(live: Live, log: pytest.LogCaptureFixture) -> None:
    assert eventually(lambda: not live.service.live["tiny"])
    engine = engine_of(live.service.pool)
    engine.forget()
    grid = engine.loaded.context.grid
    first, second = Stop(engine), Stop(engine)
    first.queue()
    try:
        assert first.begun.wait(60)
        asking = send(live, "/v1/completions", {"prompt": [9 + n % 70 for n in range(grid + 200)], "stream": True})
        assert eventually(lambda: live.service.live["tiny"] == 1)
        second.queue()  # its turn is after one chunk
        first.end()
        assert second.begun.wait(60)
        asking.close()
        assert eventually(lambda: any(one.cancelled for one in engine.running.values()))
    finally:
        first.end()
        second.end()
    assert eventually(lambda: bool(ends(log)))
    (line,) = ends(log)
    found = re.search(r"(\d+) of (\d+) prompt tokens read, 0 cached; 0 tokens, .*; the client left after \d", line)
    assert found is not None, line
    read, prompt = int(found[1]), int(found[2])
    assert prompt == grid + 200
    assert 0 < read <= grid, "one piece: a slow machine reads less than a chunk at once"
