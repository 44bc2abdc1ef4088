"""Files of chats within a budget: who was used longest ago leaves, and trouble with the disk is no error."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from localspec.runtime.kept.caches import CacheFolder, SavedCache
from localspec.types import Tokens

KEY = b"k" * 32
SIZE = 100_000


def cache(size: int = SIZE) -> SavedCache:
    return SavedCache(np.arange(9, dtype=np.int32), 5, memoryview(bytes(size)))


def always(tokens: Tokens, prompt_length: int) -> bool:
    return True


def there(folder: CacheFolder, *chats: str) -> list[bool]:
    return [folder.path(chat).exists() for chat in chats]


def age(folder: CacheFolder, chat: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.path(chat), (then, then))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = CacheFolder(10 * SIZE, tmp_path / "chats")
    assert folder.read("one", KEY, always) is None
    assert not folder.keep("one", KEY, cache())
    found = folder.read("one", KEY, always)
    assert found is not None
    assert found.prompt_length == 5
    assert stat.S_IMODE(folder.directory.stat().st_mode) == 0o700


def test_the_least_recently_used_leave(tmp_path: Path) -> None:
    folder = CacheFolder(int(3.5 * SIZE), tmp_path)
    for number, chat in enumerate(("one", "two", "three")):
        assert not folder.keep(chat, KEY, cache())
        age(folder, chat, 100 - number)
    assert folder.read("one", KEY, always) is not None  # now used after the others
    assert not folder.keep("four", KEY, cache())
    assert there(folder, "one", "two", "three", "four") == [True, False, True, True]
    assert not folder.keep("five", KEY, cache(2 * SIZE))
    assert there(folder, "one", "three", "four", "five") == [False, False, True, True]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= folder.budget


def test_a_chat_takes_the_place_of_its_own_last_file(tmp_path: Path) -> None:
    folder = CacheFolder(int(2.5 * SIZE), tmp_path)
    assert not folder.keep("other", KEY, cache())
    age(folder, "other", 100)
    for _ in range(3):
        assert not folder.keep("one", KEY, cache())
    assert there(folder, "one", "other") == [True, True]


def test_what_is_larger_than_the_budget_drives_nobody_out(tmp_path: Path) -> None:
    folder = CacheFolder(SIZE + 5000, tmp_path)
    assert not folder.keep("one", KEY, cache())
    assert folder.keep("two", KEY, cache(2 * SIZE))
    assert there(folder, "one", "two") == [True, False]


class Usage(NamedTuple):
    free: int


def test_half_of_what_is_free_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(10 * SIZE, tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(int(1.9 * SIZE)))
    assert folder.keep("one", KEY, cache())
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(int(2.1 * SIZE)))
    assert not folder.keep("one", KEY, cache())


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = CacheFolder(10 * SIZE, tmp_path / "file")
    assert folder.keep("one", KEY, cache())
    assert folder.read("one", KEY, always) is None
    folder.remove("one")


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    folder = CacheFolder(10 * SIZE, tmp_path)
    old, new, foreign = (tmp_path / name for name in ("a.kv.x1.tmp", "a.kv.x2.tmp", "notes.txt"))
    for path in (old, new, foreign):
        path.write_text("")
        os.utime(path, (1, 1))
    os.utime(new)
    assert not folder.keep("one", KEY, cache())
    assert [path.exists() for path in (old, new, foreign)] == [False, True, True]


def test_names_of_chats_do_not_show(tmp_path: Path) -> None:
    folder = CacheFolder(10 * SIZE, tmp_path)
    paths = {folder.path(chat) for chat in ("", "../up", "a/b", "Ärger\n", "x" * 5000, "\ud800")}
    assert len(paths) == 6
    assert all(path.parent == tmp_path and path.stem.isalnum() for path in paths)


def test_a_removed_chat_is_gone(tmp_path: Path) -> None:
    folder = CacheFolder(10 * SIZE, tmp_path)
    assert not folder.keep("one", KEY, cache())
    folder.remove("one")
    folder.remove("one")
    assert there(folder, "one") == [False]
