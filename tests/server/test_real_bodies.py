"""Bodies as real clients send them (tests/data/requests says where each is from): every one is answered.

Texts and keys were taken out, lists of tools cut short; every field and every null is as it was sent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from localspec.server.http.reading import HEADER
from tests.server.live import Live

FILES = sorted((Path(__file__).parents[1] / "data" / "requests").glob("*.json"))
LIMITS = {"chat/completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}


def asked(file: Path) -> tuple[str, dict[str, str], dict[str, Any]]:
    """(path, headers, body), for an answer of a few tokens of the default model."""
    sent = json.loads(file.read_text("utf-8"))
    path, body = sent["path"], sent["body"]
    limit = next(limit for name, limit in LIMITS.items() if name in path)
    body["max_completion_tokens" if "max_completion_tokens" in body else limit] = 12
    del body["model"]
    return path, sent["headers"], body


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_it_is_answered(live: Live, file: Path, streamed: bool) -> None:
    path, headers, body = asked(file)
    answer = live.http.post(path, json=body | {"stream": streamed}, headers=headers)
    assert answer.status_code == 200, answer.text
    ends = ("[DONE]", "message_stop", "response.incomplete", "response.completed")
    assert any(end in answer.text for end in ends) == streamed


def test_tools_that_a_server_would_run_are_ignored_and_named(live: Live) -> None:
    (file,) = [file for file in FILES if file.stem.startswith("codex")]
    path, headers, body = asked(file)
    answer = live.http.post(path, json=body | {"stream": False}, headers=headers)
    ignored = answer.headers[HEADER].split(", ")
    assert {"tools.namespace", "tools.web_search"} <= set(ignored)
    assert [tool["name"] for tool in answer.json()["tools"]] == ["exec_command"]


def test_what_open_webui_passes_on_for_ollama_is_ignored_and_named(live: Live) -> None:
    (file,) = [file for file in FILES if file.stem == "open-webui-0.9-chat"]
    path, headers, body = asked(file)
    answer = live.http.post(path, json=body | {"stream": False}, headers=headers)
    ignored = set(answer.headers[HEADER].split(", "))
    assert {"num_ctx", "keep_alive", "think", "use_mmap", "mirostat"} <= ignored
    assert not {"temperature", "top_k", "min_p", "repeat_penalty", "seed", "format"} & ignored
