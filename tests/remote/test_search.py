"""Looking for servers of this machine: what is found, what is sent, and what odd answers cannot do."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from localspec.remote import search
from localspec.remote.search import FoundServer, servers
from localspec.runtime.pool import Pool
from tests.remote.odd import Odd, serving
from tests.server.live import running

MODELS = {"data": [{"id": "big"}, {"id": "small"}]}
TAGS = {"models": [{"name": "llama3:8b"}]}


def found(*odd: Odd, leave_out: tuple[int, ...] = ()) -> list[FoundServer]:
    return asyncio.run(servers({one.port: "a test" for one in odd}, leave_out))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slower than a user's; what is slow on purpose never answers."""
    monkeypatch.setattr(search, "SECONDS", 5.0)


def test_the_limits_are_those_of_the_documentation() -> None:
    assert search._MOST_BYTES == 2**20
    assert search._HOSTS == ("127.0.0.1", "[::1]")
    assert {11434, 1234, 8080, 8000, 5000, 5001, 1337, 4891} <= set(search.PORTS)


def test_servers_are_listed_with_their_models_by_port() -> None:
    with serving(Odd({"/v1/models": MODELS})) as one, serving(Odd({"/api/tags": TAGS})) as other:
        assert found(one, other) == [
            FoundServer(f"http://127.0.0.1:{one.port}", "a test", ("big", "small")),
            FoundServer(f"http://127.0.0.1:{other.port}", "a test", ("llama3:8b",)),
        ]
        assert [(method, path) for method, path, _ in one.asked] == [("GET", "/v1/models")]
        assert [(method, path) for method, path, _ in other.asked] == [("GET", "/v1/models"), ("GET", "/api/tags")]


def test_the_real_endpoint_is_found() -> None:
    pool = Pool(settings={"context": 64})
    with running(pool) as live:
        (server,) = asyncio.run(servers({live.port: "localspec"}))
        assert (server.address, server.usual) == (f"http://127.0.0.1:{live.port}", "localspec")
        assert server.models[0] == live.service.pool.default
    pool.close()


def test_both_addresses_of_this_machine_are_asked_and_one_program_is_listed_once() -> None:
    with ExitStack() as stack:
        six = Odd({"/v1/models": MODELS})
        try:
            stack.enter_context(serving(six, "::1"))
        except OSError:
            pytest.skip("there is no ::1 here")
        assert [server.address for server in found(six)] == [f"http://[::1]:{six.port}"]
        four = stack.enter_context(serving(Odd({"/v1/models": MODELS}), "127.0.0.1", six.port))
        assert [server.address for server in found(four)] == [f"http://127.0.0.1:{four.port}"]
        four.answers = {"/api/tags": TAGS}
        assert [server.models for server in found(four)] == [("llama3:8b",), ("big", "small")]


def test_no_key_no_cookie_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    with serving(Odd()) as proxy, serving(Odd({"/api/tags": TAGS}, headers={"Set-Cookie": "a=b"})) as one:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert len(found(one)) == 1
        assert proxy.asked == []
        for _, _, headers in one.asked:
            assert set(headers) <= {"host", "accept", "accept-encoding", "connection", "user-agent"}
            assert "sesame" not in str(headers)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with serving(Odd({"/v1/models": MODELS})) as other:
        to = {"Location": f"http://127.0.0.1:{other.port}/v1/models"}
        with serving(Odd({"/v1/models": MODELS, "/api/tags": TAGS}, status=status, headers=to)) as one:
            assert found(one) == []
            assert len(one.asked) == 2
            assert other.asked == []


def test_a_body_beyond_a_mebibyte_is_not_read() -> None:
    with serving(Odd({"/v1/models": b'{"data": [' + b" " * 2**26 + b"]}"})) as one:
        assert found(one) == []
        assert one.sent < 2**25
        one.answers = {"/v1/models": b'{"data": [' + b" " * (2**20 - 12) + b"]}"}
        assert [server.models for server in found(one)] == [()]


def test_a_compressed_body_is_not_unpacked() -> None:
    bomb = gzip.compress(json.dumps({"data": [{"id": "x" * 10}] * 100}).encode())
    with serving(Odd({"/v1/models": bomb}, headers={"Content-Encoding": "gzip"})) as one:
        assert found(one) == []


def test_a_slow_server_is_left_and_the_others_are_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECONDS", 1.0)
    with serving(Odd({"/v1/models": MODELS}, slow=True)) as slow, serving(Odd({"/v1/models": MODELS})) as one:
        assert [server.address for server in found(slow, one)] == [f"http://127.0.0.1:{one.port}"]
        assert len(slow.asked) == 1  # the other way would take as long


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"\xff\xfe\x00", b"[" * 200_000, b"7", b"[]", b"null", b"{}", b'"data"', b'{"data": {}}'),
        *(b'{"data": "ab"}', b'{"data": [3]}', b'{"data": [{"id": 3}]}', b'{"data": [{"id": ""}]}'),
        b'{"data": [{"id": "' + b"x" * 301 + b'"}]}',
    ],
    ids=range(15),
)
def test_what_is_no_list_of_models_is_no_server(body: bytes) -> None:
    with serving(Odd({"/v1/models": body, "/api/tags": body})) as one:
        assert found(one) == []
        assert [path for _, path, _ in one.asked] == ["/v1/models", "/api/tags"]


@pytest.mark.parametrize("answers", [{"/v1/models": {"data": []}}, {"/api/tags": {"models": []}}])
def test_a_server_without_models_is_a_server(answers: dict[str, Any]) -> None:
    with serving(Odd(answers)) as one:
        assert [server.models for server in found(one)] == [()]


def test_a_long_list_is_cut() -> None:
    with serving(Odd({"/v1/models": {"data": [{"id": str(number)} for number in range(1500)]}})) as one:
        (server,) = found(one)
        assert len(server.models) == 1000


def test_ports_that_are_left_out_are_not_asked() -> None:
    with serving(Odd({"/v1/models": MODELS})) as own, serving(Odd({"/v1/models": MODELS})) as other:
        assert [server.address for server in found(own, other, leave_out=(own.port,))] == [
            f"http://127.0.0.1:{other.port}"
        ]
        assert own.asked == []


def test_what_speaks_another_protocol_or_hangs_up_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as raw:

        async def look() -> list[FoundServer]:
            async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"220 mail.example ESMTP\r\n")
                await writer.drain()
                writer.close()

            async with await asyncio.start_server(hang_up, sock=raw):
                return await servers({raw.getsockname()[1]: "a test"})

        assert asyncio.run(look()) == []
