"""The command line tool `llm`, told of the endpoint as of any OpenAI-compatible one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.live import COPIED, COPY, Live

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm") is None, reason="llm is not installed")


@pytest.mark.parametrize("more", [[], ["--no-stream"]])
def test_llm_prints_the_answer(live: Live, tmp_path: Path, more: list[str]) -> None:
    known = f"- model_id: here\n  model_name: tiny\n  api_base: {live.url}/v1\n  api_key_name: none\n"
    (tmp_path / "extra-openai-models.yaml").write_text(known)
    (tmp_path / "keys.json").write_text('{"none": "none"}')
    run = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "here", "-o", "temperature", "0", "--no-log", *more, COPY],
        env=os.environ | {"LLM_USER_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == COPIED
