"""The command line tool `llm`, told of the endpoint as of any OpenAI-compatible one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.live import COPIED, COPY, Live

pytestmark = pytest.mark.skipif(importlib.util.find_spec("llm") is None, reason="llm is not installed")


def printed(live: Live, folder: Path, more: list[str]) -> str:
    """What `llm` says, from settings of its own."""
    folder.mkdir()
    known = f"- model_id: here\n  model_name: tiny\n  api_base: {live.url}/v1\n  api_key_name: none\n"
    (folder / "extra-openai-models.yaml").write_text(known)
    (folder / "keys.json").write_text('{"none": "none"}')
    run = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "here", "-o", "temperature", "0", "--no-log", *more, COPY],
        env=os.environ | {"LLM_USER_PATH": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_llm_prints_the_answer(live: Live, tmp_path: Path) -> None:
    """Streamed and whole, at once: starting it takes longest."""
    with ThreadPoolExecutor(2) as crowd:
        streamed = crowd.submit(printed, live, tmp_path / "streamed", [])
        whole = crowd.submit(printed, live, tmp_path / "whole", ["--no-stream"])
    assert streamed.result() == whole.result() == COPIED
