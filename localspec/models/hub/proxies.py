"""What the environment says of the way to a server: its proxies and certificates, and what is wrong with them."""

from __future__ import annotations

import os
import ssl
from urllib.request import getproxies

import httpx2 as httpx

from localspec.errors import UsageError, reason

_KINDS = ("http", "https", "all")
"""Of HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, which clients heed."""


def check_proxies() -> None:
    """Refuses proxies that no client can be made with, wherever it goes.

    Raises:
        UsageError: says which variable holds one. An address may have a password, which is not repeated.
    """
    for kind, address in getproxies().items():
        if kind not in _KINDS or not address:
            continue
        try:
            httpx.HTTPTransport(False, trust_env=False, proxy=address if "://" in address else f"http://{address}")
        except ImportError:
            raise _unfit(kind, address, "it needs the package socksio", "Try: pip install socksio") from None
        except (ValueError, httpx.InvalidURL):
            hint = "It must look like http://HOST:PORT; without one, unset it."
            raise _unfit(kind, address, "it is no address of an HTTP or SOCKS5 proxy", hint) from None


def _unfit(kind: str, address: str, why: str, hint: str) -> UsageError:
    head, _, host = address.rpartition("@")
    shown = f"{head.partition('://')[0]}://...@{host}" if head else address
    return UsageError(f"The proxy {shown!r} of {kind.upper()}_PROXY cannot be used: {why}.", hint)


def certificates() -> ssl.SSLContext:
    """The certificates that a server's own is checked with: the system's, or those of SSL_CERT_FILE or SSL_CERT_DIR.

    Raises:
        UsageError: they cannot be read.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")
        which = f"{name} ({os.environ[name]})" if name else "of the system"
        raise UsageError(f"The certificates {which} cannot be read: {reason(error)}.") from None
