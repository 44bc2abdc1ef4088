"""Where a server's key comes from, and what is said where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.models.installed.catalog import EndpointEntry
from localspec.remote.server import key_for

URL = "http://10.0.0.7:8000"


def test_without_a_place_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another server's")
    assert key_for(EndpointEntry("work", URL)) is None


def test_the_environment_holds_it_or_its_absence_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EndpointEntry("work", URL, key_env="WORK_KEY")
    monkeypatch.setenv("WORK_KEY", "sesame\n")
    assert key_for(entry) == "sesame"
    for unset in ("", " "):
        monkeypatch.setenv("WORK_KEY", unset)
        with pytest.raises(UsageError, match="'work' is in the environment variable WORK_KEY, which is not set"):
            key_for(entry)


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `keyring` with the real one's function, to be written."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    return tmp_path / "keyring.py"


def test_the_keyring_holds_it_under_service_and_name(keyring: Path) -> None:
    keyring.write_text("def get_password(service, user): return {('home', 'work'): 'sesame'}.get((service, user))\n")
    assert key_for(EndpointEntry("work", URL, keyring="home")) == "sesame"
    with pytest.raises(UsageError, match=r"has no key of 'other' for 'home'\. Try: keyring set home other"):
        key_for(EndpointEntry("other", URL, keyring="home"))


def test_a_keyring_that_is_locked_or_missing(keyring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EndpointEntry("work", URL, keyring="home")
    keyring.write_text("def get_password(service, user): raise RuntimeError('locked')\n")
    with pytest.raises(UsageError, match=r"The keyring cannot be read: RuntimeError\(.locked"):
        key_for(entry)
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UsageError, match=r"Python's keyring package is not installed\. Install it, or name"):
        key_for(entry)
