"""A GPU is lost while a stream runs: the client has what was said, and then the error; the next request is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.runtime.pool import Pool
from tests.fake_gpus import CARD, Gpu, list_gpus
from tests.server.live import running

PATH = "/v1/completions"


def test_under_strict_a_stream_ends_with_an_error_and_the_model_is_loaded_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path / "data"))
    list_gpus(monkeypatch, CARD)
    gpu = Gpu(monkeypatch)
    pool = Pool("tiny", settings={"slots": 1, "context": 512, "exact": "strict", "corpus": "off"})
    body = {"prompt": "Once upon a time", "max_tokens": 30, "temperature": 0.0, "speculative": {"enabled": False}}
    with running(pool) as live:
        whole = "".join(event["choices"][0]["text"] for event in live.stream(PATH, **body)[:-1])
        first = pool.loaded()["tiny"]
        gpu.left = 12
        *said, error, done = live.stream(PATH, **body)
        assert done == "[DONE]"
        text = "".join(event["choices"][0]["text"] for event in said)
        assert 0 < len(text) < len(whole)
        assert whole.startswith(text)
        assert error["error"]["message"].startswith("The GPU (CUDA0) failed: llama.cpp could not evaluate a pass")
        gpu.left = 1 << 30
        assert live.complete(**body).json()["choices"][0]["text"] == whole
        assert pool.loaded()["tiny"] is not first
    pool.close()
