"""Settings of the endpoint, each with its own line of doc, and what may not be combined."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from localspec.errors import UsageError

MIB = 1 << 20
PREFIX = "unix:"
"""Begins a host that is the path of a socket."""
LOCAL = "localhost"
"""Stands for the origins of all pages that this machine serves."""
LOCAL_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
"""What these look like."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the endpoint listens, whom it lets in, and what it puts up with."""

    host: str = "127.0.0.1"
    """Address to listen on, or unix: and a path. Any that other machines can reach needs an API key."""
    port: int = 8080
    """TCP port; 0 = any free one."""
    ssl_cert: Path | None = None
    """A certificate (PEM, with those that signed it): the endpoint speaks HTTPS. None = HTTP."""
    ssl_key: Path | None = None
    """The certificate's key, not encrypted; None = it is in the same file."""
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Keys that open the endpoint; empty = none is asked for."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header that are accepted besides this machine's own; "*" = any."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may use the endpoint from a browser, such as https://chat.example; "localhost" = of this
    machine, at any port; "*" = any."""
    aliases: tuple[str, ...] = ()
    """More names for the default model."""
    any_model: bool = False
    """A name of no model means the default one, instead of 404."""
    allow_pull: bool = False
    """Let clients install models of the hub."""
    strict_fields: bool = False
    """Refuse requests with fields that are not known, which are else ignored and named in a header of the response."""
    max_queue: int = 64
    """Answers that may wait for a slot of a model; more are refused with 503."""
    max_body_bytes: int = 16 * MIB
    """Largest request body; more is refused with 413."""
    max_header_bytes: int = 32 * 1024
    """Largest request head, names and values together; more is refused with 431."""
    head_seconds: float = 15.0
    """How long a client may take to send the head of a request."""
    body_seconds: float = 30.0
    """How long a client may take to send a request body; then 408."""
    write_seconds: float = 30.0
    """How long a client may take nothing of what is sent to it; then its connection is cut and its slot is free."""
    ping_seconds: float = 10.0
    """A silent stream gets a comment line this often, so that no proxy takes it for dead."""
    drain_seconds: float = 10.0
    """How long running answers may go on once the server was told to end."""
    most_connections: int | None = None
    """Above it, the connection that has been quiet for longest is closed; None = any number."""
    behind: bool = False
    """A front has let the requests in, chosen the model, and writes a line for each."""
    backlog: int = 512
    """Connections that are taken at once, before one of them is looked at."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"port is {self.port}; it must be between 0 (any free one) and 65535.")
        for name, least in (("max_queue", 0), ("max_body_bytes", 1), ("max_header_bytes", 256), ("drain_seconds", 0)):
            if not getattr(self, name) >= least:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be {least} or more.")
        for name in ("head_seconds", "body_seconds", "write_seconds", "ping_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0.")
        if self.ssl_key is not None and self.ssl_cert is None:
            raise UsageError("There is a key for HTTPS, and no certificate.", "Give --ssl-cert, too.")
        for origin in self.cors_origins:
            if origin not in ("*", LOCAL) and ("://" not in origin or origin.endswith("/")):
                raise UsageError(
                    f"The origin {origin!r} must look like https://chat.example, without a path, or be localhost or *."
                )
        if not is_loopback(self.host) and not self.api_keys:
            raise UsageError(
                f"host is {self.host}, which other machines can reach, and there is no API key.",
                "Set LOCALSPEC_API_KEY or give --api-key-file, or leave --host out.",
            )

    def check_certificate(self) -> None:
        """
        Raises:
            UsageError: the files for HTTPS cannot be used; says why.
        """
        if self.ssl_cert is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.ssl_cert, self.ssl_key, lambda: b"")
        except ssl.SSLError as error:
            why = "it is no PEM file with a certificate and a key that is not encrypted"
            if error.reason == "KEY_VALUES_MISMATCH":
                why = "the key is another one's"
            raise UsageError(f"The certificate {self.ssl_cert} cannot be used: {why}.") from None
        except OSError as error:
            why = str(error.strerror)
            raise UsageError(f"The certificate {self.ssl_cert} or its key cannot be read: {why}.") from None

    def lets_in(self, origin: str) -> bool:
        """Whether pages of a web origin may use the endpoint."""
        given = self.cors_origins
        return "*" in given or origin in given or (LOCAL in given and re.fullmatch(LOCAL_ORIGIN, origin) is not None)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    found = address(host.strip("[]"))
    return host == "localhost" or host.startswith(PREFIX) or (found is not None and found.is_loopback)


def address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None = the host is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
