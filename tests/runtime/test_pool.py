"""Engines by name: loading, sharing, memory, idleness, closing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec import processes
from localspec.errors import Cancelled, ModelError, NoRoomError, UsageError
from localspec.machine import Place
from localspec.runtime.pool import Pool

SETTINGS = {"exact": "off", "context": 256}
MIB = 1 << 20


class Room:
    """Says how much memory is free: as much as a test likes, less what the engines take."""

    def __init__(self, free: int) -> None:
        self.free, self.engine, self.pool = free, 0, None
        self.asked = 0

    def __call__(self) -> list[Place]:
        self.asked += 1
        taken = self.engine * len(self.pool.loaded()) if self.pool is not None else 0
        return [Place("CPU", "cpu", max(1, self.free - taken), 64 << 30)]

    pool: Pool | None


@pytest.fixture
def room() -> Room:
    return Room(64 << 30)


@pytest.fixture
def pool(room: Room) -> Iterator[Pool]:
    pool = Pool("tiny", settings=SETTINGS, idle_unload=0.0, room=room)
    room.pool = pool
    yield pool
    pool.close()


def test_names_begin_with_the_default(pool: Pool) -> None:
    names = pool.names()
    assert next(iter(names)) == pool.default == "tiny"
    assert {"tiny", "tiny-target", "tiny-draft"} <= set(names)
    assert pool.loaded() == {}


def test_a_model_is_loaded_once_for_all_who_ask(pool: Pool) -> None:
    leases = []
    crowd = [threading.Thread(target=lambda: leases.append(pool.lease("tiny"))) for _ in range(4)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    assert len({id(lease.engine) for lease in leases}) == 1
    assert leases[0].engine.generate("One day", max_tokens=3).text()
    assert pool.lease_loaded("tiny-target") is None
    for lease in leases:
        lease.release()


def test_who_is_used_stays_and_who_is_idle_goes(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALSPEC_DATA", str(tmp_path))
    first, second = pool.lease("tiny"), pool.lease("tiny-draft")
    assert second.engine.settings.draft is None
    assert set(pool.loaded()) == {"tiny", "tiny-draft"}
    assert [Path(process.target).name for process in processes.running()] == [
        "tiny-target-q8_0.gguf",
        "tiny-draft-q8_0.gguf",
    ]
    second.release()
    second.release()  # does nothing
    assert pool.unload_idle() == ["tiny-draft"]
    assert set(pool.loaded()) == {"tiny"}
    assert [bool(process.draft) for process in processes.running()] == [True]  # `localspec ps` shows what is loaded
    assert first.engine.generate("One day", max_tokens=3).text()
    first.release()
    assert pool.unload_idle() == ["tiny"]
    assert processes.running() == []
    again = pool.lease("tiny")
    assert again.engine.generate("One day", max_tokens=3).text()
    again.release()


def test_idle_engines_make_room_and_busy_ones_do_not(pool: Pool, room: Room) -> None:
    first = pool.lease("tiny")
    room.free, room.engine = 800 * MIB, 400 * MIB  # one fits, with the margin, and not a second
    with pytest.raises(NoRoomError, match=r"tiny-draft does not fit memory now.*other models"):
        pool.lease("tiny-draft")
    assert set(pool.loaded()) == {"tiny"}
    first.release()
    second = pool.lease("tiny-draft")
    assert set(pool.loaded()) == {"tiny-draft"}
    second.release()


def test_the_default_is_loaded_alone_whatever_the_plan_says(pool: Pool, room: Room) -> None:
    room.free = MIB
    with pytest.raises(NoRoomError, match="tiny-target does not fit"):
        pool.lease("tiny-target")
    pool.lease("tiny").release()
    assert set(pool.loaded()) == {"tiny"}


def test_what_is_not_there_is_not_loaded(pool: Pool) -> None:
    with pytest.raises(ModelError, match="nothing-like-it"):
        pool.lease("nothing-like-it")
    with pytest.raises(ModelError):
        Pool("nothing-like-it")
    with pytest.raises(UsageError, match="idle_unload"):
        Pool(idle_unload=-1)


def test_a_file_is_called_by_its_stem(tiny_target: object) -> None:
    pool = Pool(str(tiny_target), settings=SETTINGS)
    assert pool.default == "tiny-target-q8_0"
    pool.close()


def test_a_closed_pool_loads_nothing(pool: Pool) -> None:
    lease = pool.lease("tiny")
    pool.close()
    assert pool.loaded() == {}
    lease.release()
    with pytest.raises(Cancelled):
        pool.lease("tiny")


def test_without_a_limit_nobody_is_idle() -> None:
    pool = Pool(settings=SETTINGS)
    pool.lease("tiny").release()
    assert pool.unload_idle() == []
    assert set(pool.loaded()) == {"tiny"}
    pool.close()
