"""One cache for all: localspec and huggingface_hub use what the other one brought, and odd names stay inside it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localspec.errors import LocalspecError, UsageError
from localspec.models.hub.hub import Hub
from localspec.models.hub.names import check_file_name
from localspec.models.hub.pull import PullPlan, install, make_plan, wishes
from localspec.models.installed.store import Store
from tests.hub.conftest import PAIR
from tests.hub.server import LocalHub
from tests.hub.test_plan import ROOM, planned, silent
from tests.llama.tiny_gguf import gguf_bytes

FILE = "tiny-target-Q8_0.gguf"


def by_huggingface_hub(client: Hub, **more: Any) -> Path:
    """What any other program does."""
    where: dict[str, Any] = {"endpoint": client.endpoint, "cache_dir": client.cache, "token": False}
    return Path(hf_hub_download(PAIR[0], FILE, **where, **more))


def test_what_another_program_brought_is_used_and_left_to_it(
    client: Hub, store: Store, local_hub: LocalHub, target_bytes: bytes
) -> None:
    theirs = by_huggingface_hub(client)
    local_hub.reset()
    plan = planned(client, store, PAIR[0])
    assert plan.missing_bytes == 0
    (entry,) = install(plan, client, store, silent)
    assert entry.path == theirs
    assert local_hub.bytes_sent() == 0
    (removal,) = store.remove(entry.name)
    assert (removal.bytes, removal.kept) == (0, "it was there before localspec, so another program may use it")
    assert theirs.read_bytes() == target_bytes


def test_what_localspec_brought_another_program_finds(client: Hub, store: Store, local_hub: LocalHub) -> None:
    (entry,) = install(planned(client, store, PAIR[0]), client, store, silent)
    local_hub.reset()
    assert by_huggingface_hub(client) == by_huggingface_hub(client, local_files_only=True) == entry.path
    assert local_hub.bytes_sent() == 0
    found = scan_cache_dir(client.cache)
    assert (found.warnings, len(found.repos)) == ([], 1)
    assert store.remove(entry.name)[0].bytes == entry.bytes
    assert scan_cache_dir(client.cache).repos == frozenset()


# -- names that would like to be elsewhere ---------------------------------------------------------------------------

ODD = [
    "..",
    ".",
    "",
    "~",
    "C:",
    "C:\\x",
    "\\\\host",
    "\u202e",
    "\uff0e\uff0e",
    "\uff0f",
    "\x00",
    "\n",
    "\ud800",
    "x" * 300,
]
NAMES = st.lists(st.sampled_from(ODD) | st.text(max_size=5), min_size=1, max_size=4).map(
    lambda pieces: "/".join(pieces) + ".gguf"
)


@settings(max_examples=500)
@given(NAMES)
def test_a_name_that_is_taken_stays_in_its_folder(name: str) -> None:
    try:
        check_file_name(name, "u/r")
    except UsageError:
        return
    inside = Path("/cache/snapshots/c") / name
    assert os.path.normpath(inside) == str(inside)
    assert os.fsencode(inside).startswith(b"/cache/snapshots/c/")
    windows = PureWindowsPath("C:/cache") / name
    assert windows.is_relative_to("C:/cache")
    assert ".." not in windows.parts


@pytest.fixture(scope="module")
def world(_server: LocalHub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalHub, Path]]:
    """A hub, and a folder with everything that a pull could reach by going up."""
    _server.reset()
    _server.repositories.clear()
    yield _server, tmp_path_factory.mktemp("world")
    _server.repositories.clear()


@settings(max_examples=40)
@given(NAMES, st.sampled_from(["", "main", "../../x", "/abs", "a/../../b", "\ud800", "v\u202e1"]))
@example("\u202efugg.gguf", "main")
@example("x" * 300 + ".gguf", "")
def test_nothing_outside_the_store_is_touched(world: tuple[LocalHub, Path], name: str, revision: str) -> None:
    hub, top = world
    home = top / "a" / "b" / "home"
    hub.add("us/odd", {name: gguf_bytes()})
    client, store = Hub(endpoint=hub.url, cache=home / "hub"), Store(home / "data")
    try:
        plan: PullPlan = make_plan(wishes("us/odd", client, revision=revision), client, store, places=ROOM)
        entries = install(plan, client, store, silent)
    except LocalspecError:  # one sentence, no traceback
        entries = []
    assert [path for path in top.rglob("*") if not path.is_dir() and home not in path.parents] == []
    for entry in entries:
        assert entry.fault == ""
        assert client.cache in entry.path.resolve().parents
        store.remove(entry.name)
