"""Addresses that `serve --host` listens on."""

from __future__ import annotations

import socket

import pytest

from localspec.server.http import listen


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no IPv6, or takes one kind a socket")
def test_all_addresses_are_those_of_both_kinds() -> None:
    with listen.bind("::", 0) as listening:
        port = listening.getsockname()[1]
        assert listen.url_of(listening) == f"http://[::]:{port}/v1"
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=10).close()
    with listen.bind("::1", 0) as listening, pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", listening.getsockname()[1]), timeout=10)
