"""What a model says reaches a terminal without its escape sequences, and a pipe byte for byte."""

from __future__ import annotations

import sys

import pytest

from localspec.cli import output
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams


@pytest.mark.parametrize("terminal", [True, False])
def test_escapes_go_to_pipes_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    parts: list[str] = []
    with Engine.load() as engine:
        escape = engine.tokenize("a\x1b", special=False)[-1]
        sampling = SamplingParams(temperature=0.0, logit_bias=((int(escape), 1e4),))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        output.stream_answer(engine.generate("Hello", sampling=sampling, max_tokens=3), parts)
    said = "".join(parts)
    assert said.count("\x1b") == 3  # the conversation keeps what was said
    assert capsys.readouterr().out == ("\n" if terminal else said + "\n")
