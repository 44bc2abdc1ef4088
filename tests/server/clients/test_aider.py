"""aider, told of the endpoint as its manual says. It pins old packages: install it apart and put it on the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.live import COPIED, COPY, Live

AIDER = shutil.which("aider")
QUIET = (
    "--no-git --yes-always --no-check-update --no-show-model-warnings --no-show-release-notes --analytics-disable "
    "--no-pretty --no-gitignore --no-detect-urls --map-tokens 0"
)


@pytest.mark.trial
@pytest.mark.skipif(AIDER is None, reason="aider is not installed")
@pytest.mark.parametrize("more", [[], ["--no-stream"]])
def test_aider_prints_the_answer_and_counts_its_tokens(live: Live, tmp_path: Path, more: list[str]) -> None:
    assert AIDER is not None
    where = ["--model", "openai/tiny", "--openai-api-base", f"{live.url}/v1", "--openai-api-key", "none"]
    run = subprocess.run(
        [AIDER, *where, *QUIET.split(), *more, "--chat-mode", "ask", "--message", COPY],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert COPIED in run.stdout.splitlines()
    assert "Tokens: " in run.stdout
