"""`run --endpoint` and `chat --plain --endpoint`: a server answers in place of a model of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.runtime.pool import Pool
from tests.cli.conftest import Command
from tests.server.live import COPIED, COPY, Live, running
from tests.tui.endpoint import Endpoint, served


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with served(Endpoint()) as running_one:
        yield running_one


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """The real endpoint with the bundled pair."""
    pool = Pool(settings={"context": 512, "exact": "strict"})
    with running(pool) as server:
        yield server
    pool.close()


def test_a_served_model_answers_as_the_same_model_here(command: Command, live: Live) -> None:
    url = f"http://127.0.0.1:{live.port}"
    options = ("--temperature", "0", "--max-tokens", "40", "--seed", "7")
    result = command("run", "--endpoint", url, COPY, *options, "--stats")
    assert (result.code, result.out) == (0, COPIED + "\n"), result.err
    assert "tokens/s" in result.err
    assert f"seed 7, {live.service.pool.default} at {url}/v1" in result.err
    assert result.out == command("run", COPY, *options).out


def test_json_holds_what_a_client_can_know(command: Command, live: Live) -> None:
    url = f"http://127.0.0.1:{live.port}/v1/"
    result = command("run", "--endpoint", url, "--json", "--temperature", "0", "--max-tokens", "4", stdin=COPY)
    answer = json.loads(result.out)
    assert COPIED.startswith(answer["text"])
    assert (answer["finish_reason"], answer["seed"], answer["endpoint"]) == ("length", None, url[:-1])
    assert answer["stats"]["generated_tokens"] == 4
    assert answer["stats"]["prompt_tokens"] > 4
    assert set(answer["stats"]) <= {"prompt_tokens", "generated_tokens", "ttft_seconds", "tokens_per_second"}


def test_what_is_asked_and_what_comes_back(command: Command, endpoint: Endpoint, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sesame\n", encoding="utf-8")
    endpoint.deltas = [{"reasoning_content": "Well"}, {"content": "Yes"}]
    options = ["--model", "big", "--api-key-file", str(key), "--system", "Be brief.", "--json", "--top-k", "3"]
    options += ["--stop", "x", "--seed", "5", "--logit-bias", "4=-1.5", "--penalty-last-n", "9"]
    result = command("run", "--endpoint", endpoint.url, *options, "Hi")
    answer = json.loads(result.out)
    assert (answer["text"], answer["reasoning"], answer["model"], answer["seed"]) == ("Yes", "Well", "big", 5)
    (request,) = endpoint.requests
    assert request == {
        "model": "big",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_k": 3,
        "stop": ["x"],
        "seed": 5,
        "logit_bias": {"4": -1.5},
        "repeat_last_n": 9,
    }
    assert endpoint.headers[0]["Authorization"] == "Bearer sesame"


def test_thoughts_are_no_part_of_what_run_prints(command: Command, endpoint: Endpoint) -> None:
    endpoint.deltas = [{"content": "<think>"}, {"content": "Well"}, {"content": "</think>\n\nYes"}]
    assert command("run", "--endpoint", endpoint.url, "Hi").out == "Yes\n"
    assert "Authorization" not in endpoint.headers[0]


@pytest.mark.parametrize("name", ["run", "chat"])
@pytest.mark.parametrize(
    "option",
    [
        *(["--target", "tiny"], ["--draft", "tiny"], ["--head", "x"], ["--context", "64"], ["--fit"], ["--no-wide"]),
        *(["--corpus"], ["--no-corpus"], ["--exact", "off"], ["--gpu-layers", "1"], ["--branches", "2"]),
    ],
)
def test_options_that_need_a_model_here_are_refused(command: Command, name: str, option: list[str]) -> None:
    result = command(name, "--endpoint", "http://127.0.0.1:9", *option, stdin="Hi\n")
    assert result.code == 2
    assert result.err == (
        f"localspec: {option[0]} needs a model of this machine. Leave it out, or leave out --endpoint.\n"
    )


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["run", "Hi", "--raw"], "--raw needs a model of this machine."),
        (["run", "Hi", "--json", "--log-probs", "0"], "--log-probs needs a model of this machine."),
        (["run", "--batch", "x.jsonl"], "--batch needs a model of this machine."),
        (["run", "tiny", "Hi"], "'tiny' names a model of this machine."),
        (["chat", "tiny"], "'tiny' names a model of this machine."),
        (["chat", "--chat-cache-gb", "0"], "--chat-cache-gb needs a model of this machine."),
        (["run", "Hi"], "http://127.0.0.1:9/v1 cannot be reached"),
        (["chat"], "http://127.0.0.1:9/v1 cannot be reached"),
    ],
)
def test_what_is_wrong_is_one_sentence(command: Command, words: list[str], wanted: str) -> None:
    result = command(*words, "--endpoint", "http://127.0.0.1:9")
    assert result.code != 0
    assert result.out == ""
    assert result.err.startswith(f"localspec: {wanted}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://x", "http://", "http://x:99999", "http://a@x/", "http://["]
)
def test_an_address_that_is_none(command: Command, address: str) -> None:
    result = command("run", "--endpoint", address, "Hi")
    assert (result.code, result.out) == (2, "")
    assert f"--endpoint is {address!r}; it must look like http://127.0.0.1:8000/v1." in result.err


def test_a_key_that_cannot_be_sent_is_not_shown(
    command: Command, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "ses\name")
    result = command("run", "--endpoint", endpoint.url, "Hi")
    assert result.code == 2
    assert "The API key has characters that cannot be sent." in result.err
    assert "ses" not in result.err
    assert not endpoint.headers


@pytest.mark.parametrize("option", ["--model", "--api-key-file"])
def test_options_that_need_a_server(command: Command, option: str) -> None:
    result = command("run", option, "x", "Hi")
    assert result.code == 2
    assert f"{option} needs --endpoint." in result.err


def test_a_conversation_line_by_line(command: Command, endpoint: Endpoint) -> None:
    lines = "/stats\nHi\n/again\n/system Be brief.\nAnd now?\n"
    result = command("chat", "--plain", "--endpoint", endpoint.url, "--seed", "3", "--stats", stdin=lines)
    assert result.code == 0
    assert result.out == "Hello there.\n" * 3
    assert "no answer yet" in result.err
    assert result.err.count("prompt 9 tokens") == 3
    first, again, last = endpoint.requests
    assert first["messages"] == again["messages"] == [{"role": "user", "content": "Hi"}]
    assert (first["seed"], "seed" in again) == (3, False)
    assert [message["role"] for message in last["messages"]] == ["system", "user", "assistant", "user"]


def test_an_error_of_the_server_ends_the_answer_and_not_the_chat(command: Command, endpoint: Endpoint) -> None:
    endpoint.status, endpoint.body = 500, '{"error": {"message": "no \\u001b[2Jmemory"}}'
    result = command("chat", "--endpoint", endpoint.url, stdin="Hi\nOnce more\n")
    assert result.code == 0
    assert result.err.count("answers 500: no ") == 2
    assert "\x1b" not in result.err
    assert [len(request["messages"]) for request in endpoint.requests] == [1, 1]


def test_ctrl_c_stops_the_answer_and_closes_the_connection(endpoint: Endpoint) -> None:
    endpoint.deltas, endpoint.pause = [{"content": "word "}] * 20_000, 0.01
    words = [sys.executable, "-m", "localspec", "run", "--endpoint", endpoint.url, "Go"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=dict(os.environ)
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.read(10) == b"word word "
        asking.send_signal(signal.SIGINT)
        out, err = asking.communicate(timeout=60)
    assert asking.returncode == 130
    assert out.endswith(b"\n")
    assert err == b"localspec: interrupted.\n"
    assert endpoint.broken.wait(60)
