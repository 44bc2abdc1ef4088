"""Another program's server as a contender, over real HTTP."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from localspec.bench.sides import ServedSide
from localspec.chat.turn import Message
from localspec.checks.compare import AskedTurn
from localspec.checks.prompts import BenchPrompt
from localspec.errors import LocalspecError, UsageError
from localspec.options import Options
from localspec.remote.server import Server
from localspec.types import SamplingParams
from tests.bench.openai_server import Behaviour, openai_server

TURN = AskedTurn(
    (Message("user", "count"),),
    Options(sampling=SamplingParams(temperature=0.5, top_k=17), seed=2**40 + 3, max_tokens=9),
)


@pytest.fixture
def behaviour() -> Behaviour:
    return Behaviour()


@pytest.fixture
def url(behaviour: Behaviour) -> Iterator[str]:
    with openai_server(behaviour) as address:
        yield address


def opened(url: str, key: str | None = None, timeout: float = 60.0, **settings: str) -> ServedSide:
    server = Server(url, key, silence=timeout, option="--against", hint="Is it running?")
    return ServedSide(server, lambda turn: "<|user|>count<|end|><|assistant|>", **settings)


def test_the_rendered_prompt_is_sent_and_arrivals_are_timed(behaviour: Behaviour, url: str) -> None:
    behaviour.pause = 0.02
    with closing(opened(url)) as endpoint:
        endpoint.begin(BenchPrompt("count"))
        answer = endpoint.answer(TURN)
        endpoint.answer(TURN)
    assert answer.text == "one two three"
    assert (answer.tokens, answer.exact) == (3, None)
    times = [seconds for seconds, _ in answer.arrivals]
    assert [count for _, count in answer.arrivals] == [1, 1, 1]
    assert times == sorted(times)
    assert 0.02 <= times[0] <= answer.ttft_seconds <= times[-1] <= answer.wall_seconds
    assert times[-1] >= 0.06
    # the pace behind the first arrival, for all tokens
    assert answer.decode_seconds == pytest.approx((times[2] - times[0]) / 2 * 3)
    first, second = behaviour.requests
    assert first["prompt"] == "<|user|>count<|end|><|assistant|>"
    assert (first["temperature"], first["top_k"], first["max_tokens"]) == (0.5, 17, 9)
    assert first["seed"] == 3
    assert first["model"] == "served-model"
    assert (first["cache_prompt"], second["cache_prompt"]) == (False, True)  # later turns go on


def test_llama_servers_timings_are_read(behaviour: Behaviour, url: str) -> None:
    behaviour.tokens, behaviour.finish = None, "stop"
    behaviour.timings = {"predicted_n": 4, "draft_n": 8, "draft_n_accepted": 2, "prompt_ms": 3.5}
    with closing(opened(url)) as endpoint:
        answer = endpoint.answer(TURN)
    assert answer.tokens == 4  # the end token has no text
    assert [count for _, count in answer.arrivals] == [1, 1, 1, 1]
    assert answer.stats["drafted"] == 8
    assert answer.stats["acceptance_rate"] == 0.25


def test_tokens_without_text_of_their_own_come_with_the_last_piece(behaviour: Behaviour, url: str) -> None:
    behaviour.tokens = 5
    with closing(opened(url)) as endpoint:
        answer = endpoint.answer(TURN)
    assert answer.tokens == 5
    assert [count for _, count in answer.arrivals] == [1, 1, 3]
    assert answer.stats["prompt_tokens"] == 7


def test_an_endpoint_with_chat_only_gets_messages(behaviour: Behaviour, url: str) -> None:
    behaviour.paths = ("/v1/chat/completions",)
    with closing(opened(f"{url}/v1/")) as endpoint:
        assert "its own chat template" in endpoint.facts["prompt"]
        assert endpoint.answer(TURN).text == "one two three"
        assert behaviour.requests[-1]["messages"] == [{"role": "user", "content": "count"}]
        with pytest.raises(UsageError, match="raw text"):
            endpoint.answer(TURN._replace(messages=()))


def test_an_endpoint_that_knows_openais_fields_only_gets_no_others(behaviour: Behaviour, url: str) -> None:
    behaviour.plain_fields = True
    with closing(opened(url)) as endpoint:
        assert "own top-k" in endpoint.facts["prompt"]
        assert endpoint.facts["forgets"] == "not asked to"
        assert endpoint.answer(TURN).tokens == 3
    assert "top_k" not in behaviour.requests[-1]
    assert behaviour.requests[-1]["temperature"] == 0.5


def test_no_connection_is_used_again(behaviour: Behaviour, url: str) -> None:
    with closing(opened(url)) as endpoint:
        endpoint.answer(TURN)
        endpoint.answer(TURN)
    assert len(behaviour.connections) == len(set(behaviour.connections)) == 4


def test_names_and_facts(url: str) -> None:
    with closing(opened(url)) as endpoint, closing(opened(f"{url}/v1/completions", name="peer")) as named:
        assert endpoint.name == url.removeprefix("http://")
        assert named.name == "peer"
        assert dict(named.facts) == dict(endpoint.facts)
        assert endpoint.facts["url"] == f"{url}/v1/"


def test_an_endpoint_without_a_list_of_models(behaviour: Behaviour, url: str) -> None:
    behaviour.models = False
    with closing(opened(url)) as endpoint:
        assert endpoint.answer(TURN).tokens == 3
    assert behaviour.requests[-1]["model"] == "default"


# -- what goes wrong is one sentence ----------------------------------------------------------------------------------


def sentence(error: pytest.ExceptionInfo[LocalspecError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LocalspecError) as error:
        opened(f"http://127.0.0.1:{port}")
    assert f"127.0.0.1:{port}" in sentence(error)
    assert "running?" in sentence(error)


@pytest.mark.parametrize("text", ["", "nonsense", "ftp://host", "http://", "http://host:port"])
def test_no_url(text: str) -> None:
    with pytest.raises(UsageError) as error:
        opened(text)
    assert f"--against is {text!r}" in sentence(error)


def test_no_such_path(behaviour: Behaviour, url: str) -> None:
    behaviour.paths = ()
    with pytest.raises(LocalspecError) as error:
        opened(url)
    assert "404" in sentence(error)


def test_a_key_is_wanted(behaviour: Behaviour, url: str) -> None:
    behaviour.key = "secret"
    with pytest.raises(LocalspecError) as error:
        opened(url, key="wrong")
    assert "401" in sentence(error)
    assert "wrong" not in sentence(error)
    with closing(opened(url, key="secret")) as endpoint:
        assert endpoint.answer(TURN).tokens == 3
        assert "secret" not in str(endpoint.facts)


def test_silence(behaviour: Behaviour, url: str) -> None:
    with closing(opened(url, timeout=0.2)) as endpoint:
        behaviour.pause = 1.0
        with pytest.raises(LocalspecError) as error:
            endpoint.answer(TURN)
        assert "0.2 seconds" in sentence(error)


def test_it_dies_in_the_middle_and_is_back(behaviour: Behaviour, url: str) -> None:
    with closing(opened(url)) as endpoint:
        behaviour.break_after = 2
        with pytest.raises(LocalspecError) as error:
            endpoint.answer(TURN)
        assert "in the middle" in sentence(error)
        behaviour.break_after = None
        assert endpoint.answer(TURN).tokens == 3


def test_an_error_in_the_stream(behaviour: Behaviour, url: str) -> None:
    with closing(opened(url)) as endpoint:
        behaviour.error_after = 1
        with pytest.raises(LocalspecError) as error:
            endpoint.answer(TURN)
        assert "out of memory" in sentence(error)
