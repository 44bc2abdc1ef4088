"""What tests compare word for word is the same on any CPU: no token of it is nearly another."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.runtime.pool import Pool
from localspec.types import SamplingParams
from tests.server.live import COPIED, COPY, RECORD, Live, user
from tests.server.named_events import LOOK_UP, WIKIPEDIA

LEAD = 2.0
"""In natural logarithm. It is 3 and more where this was written; rounding moves it by hundredths."""
TOOLS = [{"type": "function", "function": WIKIPEDIA}]


def begun(text: str) -> list[dict[str, Any]]:
    """A copy that goes on."""
    assert COPIED.startswith(text)
    return [user(COPY), {"role": "assistant", "content": text}]


ASKED: dict[str, dict[str, Any]] = {
    "a copy": {"messages": [user(COPY)]},
    "the rest of a copy": {"messages": begun("Maria bought 12")},
    "the rest of a copy, later": {"messages": begun("Maria bought 12 lanterns in")},
    "a copy that needs no tool": {"messages": [user(COPY)], "tools": TOOLS},
    "a call": {"messages": [user(LOOK_UP)], "tools": TOOLS},
    "a record": {"messages": [user(RECORD)]},
}


@pytest.mark.parametrize("name", ASKED)
def test_the_token_that_comes_leads(live: Live, pool: Pool, name: str) -> None:
    prompt = live.http.post("/apply-template", json=ASKED[name]).json()["prompt"]
    lease = pool.lease(pool.default)
    engine = lease.engine
    answer = engine.generate(engine.prompt_tokens(prompt), sampling=SamplingParams(temperature=0.0), top_log_probs=2)
    tops = [one.top for event in answer for one in event.log_probs]
    lease.release()
    assert len(tops) == len(answer.tokens) > 5
    assert min(first - second for (_, first), (_, second) in tops) > LEAD
