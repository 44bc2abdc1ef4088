"""Long prompts of a server are found again after a restart."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.test_end import process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
TOOLS = "You may read files, write files, run commands and search. Maria bought 12 lanterns in Lisbon. " * 60
MORE = ("--context", "2048")


def ask(url: str, question: str) -> dict[str, Any]:
    messages = [{"role": "system", "content": TOOLS}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 8, "seed": 1, "temperature": 0}
    answer = httpx.post(f"{url}/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached(answer: dict[str, Any]) -> float:
    usage = answer["usage"]
    return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_after_a_restart_the_same_prompt_is_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sign: signal.Signals
) -> None:
    monkeypatch.setenv("LOCALSPEC_CACHE", str(tmp_path))
    with process(*MORE) as (server, url):
        first = ask(url, "What is in Lisbon?")
        assert first["usage"]["prompt_tokens"] > 1000
        assert cached(first) == 0
        server.send_signal(sign)
        assert server.wait(60) == 0
    with process(*MORE) as (_, url):
        again, other = ask(url, "What is in Lisbon?"), ask(url, "Who sold the maps?")
        assert min(cached(again), cached(other)) > 0.95
        assert again["choices"] == first["choices"]
    with process(*MORE, "--prompt-cache-size", "0") as (_, url):
        assert cached(ask(url, "What is in Lisbon?")) == 0
