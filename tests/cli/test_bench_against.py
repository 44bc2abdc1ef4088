"""`localspec bench run --against URL`: another program's server beside us."""

from __future__ import annotations

import json
import socket

import pytest

from localspec.bench.sides import ServedSide
from localspec.checks.compare import AskedTurn, TimedAnswer
from tests.bench.openai_server import Behaviour, openai_server
from tests.cli.conftest import Command

QUICK = (
    *("bench", "run", "--workloads", "copy", "--limit", "1", "--temperature", "0", "--tokens", "4", "--rounds", "1"),
    *("--threads", "1", "--no-wide", "--exact", "off", "--context", "256", "--json"),
)


def test_a_server_answers_the_same_prompts(command: Command) -> None:
    behaviour = Behaviour(timings={"predicted_n": 3, "draft_n": 4, "draft_n_accepted": 1})
    with openai_server(behaviour) as url:
        arguments = (*QUICK, "--against", f"peer={url}")
        behaviour.break_after = 1
        broken = command(*arguments)
        assert broken.code == 1
        assert "peer" in broken.err
        assert broken.err.strip().count("\n") <= 1
        behaviour.break_after = None
        asked = len(behaviour.requests)
        result = command(*arguments)
    assert result.code == 0, result.err
    assert len(behaviour.requests) > asked
    prompt = behaviour.requests[-1]["prompt"]
    assert prompt.startswith("<|user|>")
    assert prompt.endswith("<|assistant|>")
    (cell,) = json.loads(result.out)["cells"]
    peer = next(one for one in cell["contenders"] if one["contender"] == "peer")
    assert peer["tokens_per_second"] > 0
    assert peer["acceptance_rate"] == 0.25
    assert {one["contender"] for one in cell["contenders"]} == {"plain", "localspec", "peer"}


def test_what_was_measured_before_a_server_broke_is_shown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour, honest = Behaviour(), ServedSide.answer

    def breaks_later(self: ServedSide, turn: AskedTurn) -> TimedAnswer:
        behaviour.break_after = 1 if len(behaviour.requests) > 3 else None
        return honest(self, turn)

    monkeypatch.setattr(ServedSide, "answer", breaks_later)
    with openai_server(behaviour) as url:
        result = command(*QUICK, "--rounds", "9", "--against", f"peer={url}")
    assert result.code == 1
    assert "ended its answer in the middle" in result.err
    data = json.loads(result.out)
    assert 3 <= data["runs"] < data["planned_runs"] == 27


def test_what_goes_wrong_is_one_sentence(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_address = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for arguments, code, words in (
        (("--against", free_address), 1, "cannot be reached"),
        (("--against", "nonsense"), 2, "--against is 'nonsense'"),
        (("--against", free_address, "--against-key", "NO_SUCH_KEY"), 2, "NO_SUCH_KEY"),
        (("--against", free_address, "--against-timeout", "0"), 2, "--against-timeout is 0"),
    ):
        result = command(*QUICK, *arguments)
        assert (result.code, result.out) == (code, ""), result.err
        assert words in result.err


def test_two_of_one_name(command: Command) -> None:
    with openai_server(Behaviour()) as url:
        result = command(*QUICK, "--against", f"peer={url}", "--against", f"peer={url}")
    assert result.code == 2
    assert "'peer' twice" in result.err
