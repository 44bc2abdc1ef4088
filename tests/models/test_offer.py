"""What is offered where no model is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.machine import Place
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Store, StoredFile
from localspec.runtime import offered
from localspec.runtime.offered import MOST_OFFERS, OFFER_ORDER, offers

GB = 10**9


def _offered(memory: int, disk: int) -> list[str]:
    return [one.name for one in offers(Catalog.load(), Place("CPU", "cpu", memory), disk)]


def test_every_name_is_in_the_catalogue_and_has_a_drafter_that_is_used() -> None:
    found = {
        one.name: one for one in (offered.offer_of(Catalog.load(), name) for name in OFFER_ORDER) if one is not None
    }
    assert set(found) == set(OFFER_ORDER)
    sizes = [found[name].bytes for name in OFFER_ORDER]
    assert sizes == sorted(sizes, reverse=True)
    assert all(sizes)


@pytest.mark.parametrize(("memory", "disk", "largest"), [(64, 500, 0), (12, 500, 2), (6, 500, 3), (64, 7, 2)])
def test_the_largest_that_fit_memory_and_disk_are_offered(memory: int, disk: int, largest: int) -> None:
    assert _offered(memory * GB, disk * GB) == list(OFFER_ORDER[largest:][:MOST_OFFERS])


def test_memory_that_is_unknown_leaves_the_disk_to_decide() -> None:
    assert _offered(0, 500 * GB) == list(OFFER_ORDER[:MOST_OFFERS])


def test_nothing_is_offered_where_nothing_fits() -> None:
    assert _offered(GB, 500 * GB) == []


def test_nothing_is_offered_once_a_model_is_installed(
    tmp_path: Path, tiny_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offered, "ram", lambda: Place("CPU", "cpu", 64 * GB))
    monkeypatch.setattr(offered, "_free_disk", lambda: 500 * GB)
    monkeypatch.setattr(offered, "pace", lambda: None)
    store = Store(tmp_path)
    monkeypatch.setattr(offered, "Store", lambda: store)
    assert [name for name, _ in offered.offered()] == list(OFFER_ORDER[:MOST_OFFERS])
    file = StoredFile.of(tiny_target, "0" * 64, "foreign")
    store.add(Entry("mine", (file,)))
    assert offered.offered() == []


def test_what_is_too_slow_here_comes_last_and_the_fastest_of_it_first() -> None:
    rates = dict.fromkeys(OFFER_ORDER, 10.0)
    rates |= {"qwen3.6-35b-a3b-mtp": 2.0, "qwen3.8-27b-dflash2": 1.0}
    catalog = Catalog.load()
    by_bytes = {one.read_bytes: rates[name] for name in OFFER_ORDER if (one := offered.offer_of(catalog, name))}
    found = offers(catalog, Place("CPU", "cpu", 64 * GB), 500 * GB, by_bytes.__getitem__)
    assert [one.name for one in found] == list(OFFER_ORDER[2:5])
    found = offers(catalog, Place("CPU", "cpu", 64 * GB), 500 * GB, lambda read: 1e9 / read)
    names = [one.name for one in found]
    assert names == sorted(names, key=lambda name: next(one.read_bytes for one in found if one.name == name))


def test_the_size_of_a_pair_is_the_catalogues_where_that_has_it() -> None:
    catalog = Catalog.load()
    listed, guessed = offered.offer_of(catalog, "qwen3-8b"), offered.offer_of(catalog, "qwen2.5-coder-7b")
    assert listed is not None
    assert listed.listed
    assert listed.bytes == catalog.models["qwen3-8b-q4_k_m"].bytes + catalog.models["qwen3-0.6b-q8_0"].bytes
    assert guessed is not None
    assert not guessed.listed
    assert guessed.bytes == pytest.approx(7.7e9, rel=0.01), "Q8_0 takes more than a byte for each weight"
