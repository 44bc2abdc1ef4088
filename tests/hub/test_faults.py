"""Whatever goes wrong between the hub and the disk: one sentence, and nothing broken is ever listed as good."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest
from huggingface_hub import constants

from localspec import paths
from tests.hub.conftest import PAIR, Inside
from tests.hub.server import LocalHub, sha256

KIB = 1 << 10
NAME, FILE = PAIR[1], "tiny-draft-Q8_0.gguf"


@dataclass(frozen=True)
class Case:
    """What goes wrong, and what is said of it; "" = it is overcome."""

    words: str
    """`{promised}` stands for the size of the file."""
    faults: dict[str, Any] = field(default_factory=dict)
    code: int = 6
    patience: float = 60.0
    """Seconds without a byte after which the client tries again."""


CASES = {
    "cut once": Case("", {"cut_every": 700 * KIB, "cuts": 1}),
    "cut always": Case("connection failed", {"cut_every": 1000, "cuts": -1, "block": 500}),
    "stalled once": Case("", {"stall_after": 1200 * KIB}, patience=1.0),
    "first byte wrong": Case("is not a GGUF file", {"wrong_byte": 0}, 3),
    "byte of the weights wrong": Case("sent wrong bytes for", {"wrong_byte": 1500 * KIB}),
    "no ranges": Case("does not serve pieces", {"ignore_range": True}),
    "shorter than promised": Case("{promised}", {"short_by": 100}),
    "trouble for a moment": Case("", {"statuses": {FILE: [503]}}),
    "slow down": Case("", {"statuses": {FILE: [429]}}),
    "lasting trouble": Case("is in trouble (status 500)", {"statuses": {"/api/models": [500] * 50}}),
    "gone before it was loaded": Case("has no file", {"statuses": {FILE: [404] * 50}}),
    "refused before it was loaded": Case("refused with status 403", {"statuses": {FILE: [403] * 50}}),
}


def listed(inside: Inside) -> list[dict[str, Any]]:
    """What `list --verify` calls good; that every byte of it is there is checked here, too."""
    done = inside("list", "--verify", "--json")
    entries = [entry for entry in done.data if entry["source"] != "bundled"]
    good = [entry for entry in entries if not entry["fault"]]
    for entry in good:
        for file in entry["files"]:
            assert sha256(Path(file["path"]).read_bytes()) == file["sha256"]
    assert (done.code == 0) == (good == entries)
    return good


@pytest.mark.parametrize("name", CASES)
def test_what_is_listed_after_a_fault_is_good(
    inside: Inside, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, draft_bytes: bytes, name: str
) -> None:
    case = CASES[name]
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", case.patience)
    for fault, value in case.faults.items():
        setattr(local_hub.faults, fault, value)
    done = inside("pull", NAME, "-y")
    assert done.code == (case.code if case.words else 0), done.err
    said = [line for line in done.err.splitlines() if line.startswith("localspec:")]
    words = case.words.format(promised=len(draft_bytes))
    assert [words in line for line in said] == ([True] if words else [])
    assert len(listed(inside)) == (0 if case.words else 1)
    local_hub.reset()
    assert inside("pull", NAME, "-y").code == 0
    assert len(listed(inside)) == 1


def unreadable(*arguments: Any, **options: Any) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_what_goes_bad_on_disk_is_not_called_good(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside("pull", NAME, "-y").code == 0
    (good,) = listed(inside)
    path = Path(good["path"]).resolve()
    data = bytearray(path.read_bytes())
    data[1500 * KIB] ^= 1
    path.write_bytes(data)
    assert listed(inside) == []
    assert inside("pull", NAME, "-y").code == 0
    assert len(listed(inside)) == 1
    monkeypatch.setattr(paths, "open", unreadable, raising=False)
    assert listed(inside) == []
    assert "cannot be read: Input/output error" in inside("list", "--verify").out
    path.write_bytes(data[:1000])
    assert inside("list").code == 1, "a size needs no reading"
    path.unlink()
    assert inside("list").code == 1
    assert listed(inside) == []
