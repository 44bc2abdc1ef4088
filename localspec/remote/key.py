"""The key of a server that the catalogue names: it comes from the environment or the keyring, never from a file."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from localspec.errors import UsageError
from localspec.models.installed.catalog import EndpointEntry


def key_for(entry: EndpointEntry) -> str | None:
    """The server's key; None = the entry names none, and none is sent.

    Raises:
        UsageError: the key is not where the entry says, or there is no keyring.
    """
    if entry.keyring:
        return _from_keyring(entry.keyring, entry.name)
    if not entry.key_env:
        return None
    key = os.environ.get(entry.key_env, "").strip()
    if not key:
        raise UsageError(f"The key of {entry.name!r} is in the environment variable {entry.key_env}, which is not set.")
    return key


def _from_keyring(service: str, name: str) -> str:
    """What Python's `keyring` keeps for a service and a user; it is used where it is installed."""
    try:
        keyring: Any = import_module("keyring")
    except ImportError:
        text = f"The key of {name!r} is in the keyring, and Python's keyring package is not installed."
        raise UsageError(text, "Install it, or name an environment variable with key_env.") from None
    try:
        key = keyring.get_password(service, name)
    except Exception as error:  # noqa: BLE001 - each keyring fails in its own way
        raise UsageError(f"The keyring cannot be read: {error!r}.") from None
    if not key:
        raise UsageError(f"The keyring has no key of {name!r} for {service!r}.", f"Try: keyring set {service} {name}")
    return str(key)
