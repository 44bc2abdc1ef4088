"""A device is lost while it computes: llama.cpp's backend throws, and the text goes on, or ends with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.runtime.pool import Pool
from localspec.server.front import Processes
from localspec.server.http.settings import ServerSettings
from tests.gpu.conftest import LAYER, NAME, Run
from tests.server.live import error_of, running

pytestmark = pytest.mark.trial
SUBMISSIONS = {"off": "100", "strict": "300"}
"""After how many it is lost: in the middle of the answer. Under strict some hundred compare rows at the start."""
ASKED = ("--drafter", "none", "--temperature", "0", "--max-tokens", "40", "--context", "256", "Once upon a time")


@pytest.mark.parametrize("exact", SUBMISSIONS)
def test_an_answer_goes_on_on_the_cpu_but_not_under_strict(program: Run, exact: str) -> None:
    words = ("run", "--raw", "--device", NAME, "--exact", exact, *ASKED)
    whole = program(*words)
    assert whole.returncode == 0, whole.stderr
    done = program(*words, **LAYER, LOST_AFTER=SUBMISSIONS[exact])
    failed = f"The GPU ({NAME}) failed: llama.cpp could not evaluate a pass: vk::Queue::submit: ErrorDeviceLost."
    assert failed in done.stderr
    if exact == "off":
        assert (done.returncode, len(done.stdout) > 40) == (0, True)
        assert "The CPU goes on with the answers, marked exact: no." in done.stderr
    else:
        assert done.returncode == 5
        assert 0 < len(done.stdout.strip()) < len(whole.stdout.strip())
        assert whole.stdout.startswith(done.stdout.strip())
        assert "an answer does not go on on another device; ask again." in done.stderr


def test_a_server_that_lost_it_under_strict_serves_from_a_new_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in {**LAYER, "LOST_AFTER": SUBMISSIONS["strict"], "LOST_ONCE": str(tmp_path / "once")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    settings = ServerSettings(drain_seconds=0.0)
    processes = Processes(settings)
    given = {"slots": 1, "context": 256, "exact": "strict", "device": NAME, "drafter": "none"}
    pool = Pool("tiny", settings=given, make=processes.make)
    with running(pool, settings, processes=processes) as live:
        body = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.0}
        assert "ErrorDeviceLost. Under --exact strict" in error_of(live.complete(**body))["message"]
        assert (tmp_path / "once").exists()
        answer = live.complete(**body).json()
        assert answer["usage"]["completion_tokens"] == 40
    pool.close()
