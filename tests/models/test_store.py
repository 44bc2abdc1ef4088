"""The index of installed models: what it promises when programs die, meet, or delete."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from localspec.errors import ModelError, ModelFileError, UsageError
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.installed import adopt, find, find_one, knows
from localspec.models.installed.store import VERSION, Entry, Ownership, Store, StoredFile
from tests.conftest import fill
from tests.llama.tiny_gguf import gguf_bytes, write


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data")


class Cache:
    """A Hugging Face cache, laid out by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def link(self, commit: str, name: str, blob: str, data: bytes = b"weights") -> Path:
        """A snapshot's link to a blob; both are made if need be."""
        target = self.folder / "models--u--r" / "blobs" / blob
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(data)
        found = self.folder / "models--u--r" / "snapshots" / commit / name
        found.parent.mkdir(parents=True, exist_ok=True)
        found.symlink_to(os.path.relpath(target, found.parent))
        return found


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "hub")


def entry(name: str, *paths: Path, ownership: Ownership = "link", **facts: str) -> Entry:
    return Entry(name, tuple(StoredFile.of(path, "0" * 64, ownership) for path in paths), **facts)  # type: ignore[arg-type]


def test_what_is_added_is_found(store: Store, cache: Cache) -> None:
    path = cache.link("c1", "m.gguf", "b1")
    store.add(entry("big", path, source="hub", origin="u/r", quant="Q8_0"), entry("small", path, role="draft"))
    assert [found.name for found in Store(store.folder).entries()] == ["big", "small"]
    for name in ("big", "u/r", "U/R", "u/r:q8_0"):
        found = store.find(name)
        assert found is not None
        assert (found.name, found.path, found.fault) == ("big", path, "")
    assert store.find("u/r:Q4_0") is None
    assert store.find("nothing") is None


def test_a_file_that_is_gone_or_changed_is_not_good(store: Store, cache: Cache) -> None:
    paths = [cache.link("c1", f"{name}.gguf", name) for name in ("a", "b", "c")]
    store.add(*(entry(path.stem, path) for path in paths))
    blobs = [path.resolve() for path in paths]
    blobs[0].unlink()
    blobs[1].write_bytes(b"longer than it was")
    status = blobs[2].stat()
    os.utime(blobs[2], ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    faults = [found.fault for found in store.entries()]
    assert "is gone" in faults[0]
    assert "18 bytes instead of 7" in faults[1]
    assert "was changed" in faults[2]
    with pytest.raises(ModelFileError, match=r"a cannot be used: .* is gone"):
        find("a", store)


def test_a_file_that_changed_after_its_check_is_not_listed(store: Store, cache: Cache) -> None:
    path = cache.link("c1", "m.gguf", "b1")
    checked, good = entry("m", path), entry("other", cache.link("c1", "o.gguf", "b2"))
    path.resolve().write_bytes(b"something else")
    with pytest.raises(ModelFileError, match="m was not installed"):
        store.add(good, checked)
    assert store.entries() == []


def test_removing_gives_bytes_back(store: Store, cache: Cache) -> None:
    path = cache.link("c1", "sub/m.gguf", "b1")
    blob = path.resolve()
    store.add(entry("m", path))
    (removal,) = store.remove("m")
    assert (removal.bytes, removal.kept) == (7, "")
    assert not blob.exists()
    assert not path.parent.exists()  # empty folders go too
    with pytest.raises(ModelError, match="'m' is not installed"):
        store.remove("m")


def test_removing_keeps_what_another_entry_uses(store: Store, cache: Cache) -> None:
    path, other = cache.link("c1", "m.gguf", "b1"), cache.link("c2", "m.gguf", "b1")
    store.add(entry("one", path), entry("two", path), entry("three", other))
    assert store.remove("one")[0].kept == "two uses it too"
    assert store.remove("two")[0].kept == "three uses the same bytes"
    assert not path.is_symlink()
    assert other.read_bytes() == b"weights"
    assert store.remove("three")[0].kept == ""


def test_a_newer_version_of_a_model_frees_the_old_one(store: Store, cache: Cache) -> None:
    old, shared, new = (cache.link(*names) for names in (("c1", "m", "b1"), ("c1", "s", "b2"), ("c2", "m", "b3")))
    blobs = [path.resolve() for path in (old, shared, new)]
    store.add(entry("m", old, shared), entry("other", shared))
    store.add(entry("m", new, shared))
    assert [blob.exists() for blob in blobs] == [False, True, True]
    assert not old.is_symlink()
    store.add(entry("m", new, shared))  # the same again
    assert [found.fault for found in store.entries()] == ["", ""]


def test_removing_keeps_what_another_program_uses(store: Store, cache: Cache, tmp_path: Path) -> None:
    ours, theirs = cache.link("c1", "m.gguf", "b1"), cache.link("c2", "same.gguf", "b1")
    store.add(entry("m", ours))
    assert f"another link in the cache points to its bytes: {theirs}" in store.remove("m")[0].kept
    assert theirs.read_bytes() == b"weights"
    foreign = cache.link("c3", "n.gguf", "b2")
    store.add(entry("n", foreign, ownership="foreign"))
    assert "before localspec" in store.remove("n")[0].kept
    assert foreign.read_bytes() == b"weights"
    hard = cache.link("c4", "h.gguf", "b3")
    os.link(hard.resolve(), tmp_path / "mine.gguf")
    store.add(entry("h", hard))
    assert "1 more hard links" in store.remove("h")[0].kept
    assert (tmp_path / "mine.gguf").read_bytes() == b"weights"


def test_links_are_ours_if_we_claimed_them_before_they_were_there(store: Store, cache: Cache) -> None:
    there = cache.link("c1", "there.gguf", "b1")
    coming = there.with_name("coming.gguf")
    assert store.claim([there, coming]) == {coming}
    cache.link("c1", "coming.gguf", "b2")
    assert store.claim([there, coming]) == {coming}  # also after a kill in between
    store.add(entry("m", coming))
    store.remove("m")
    assert store.claim([there]) == set()


def test_an_index_of_a_newer_localspec_is_refused(store: Store, cache: Cache) -> None:
    store.add(entry("m", cache.link("c1", "m.gguf", "b1")))
    with closing(sqlite3.connect(store.path)) as database, database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(ModelError, match=f"is of version {VERSION + 1}; this localspec knows {VERSION}") as caught:
        store.entries()
    assert "newer localspec" in caught.value.hint


def test_an_index_that_is_no_database_is_said(store: Store) -> None:
    store.folder.mkdir()
    store.path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ModelError, match="cannot be used: file is not a database") as caught:
        store.entries()
    assert "Move it away" in caught.value.hint


def test_many_writers_at_once(store: Store, cache: Cache) -> None:
    path = cache.link("c1", "m.gguf", "b1")
    errors: list[BaseException] = []

    def write_some(number: int) -> None:
        try:
            for count in range(5):
                Store(store.folder).add(entry(f"m{number}-{count}", path))
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=write_some, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(store.entries()) == 30


WRITER = """
import sys
from pathlib import Path
from localspec.models.installed.store import Entry, Store, StoredFile
store, files = Store(Path(sys.argv[1])), [Path(name) for name in sys.argv[2:]]
print("ready", flush=True)
number = 0
while True:
    number += 1
    made = [Entry(name, (StoredFile.of(file, "0" * 64, "foreign"),), origin=str(number))
            for name, file in zip(("one", "two"), files)]
    store.add(*made)
    if number % 3 == 0:
        store.remove("one")
        store.remove("two")
"""


def killed_writers(store: Store, cache: Cache, kills: int) -> None:
    """Kills a writer at random moments; the index must open and hold both of its entries from one moment, or fewer."""
    chance = random.Random(3)
    files = [str(cache.link("c", f"{name}.gguf", name)) for name in ("a", "b")]
    seen = set()
    for _ in range(kills):
        command = [sys.executable, "-c", WRITER, str(store.folder), *files]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, 0.3))
            process.kill()
        found = store.entries()
        assert all(entry.fault == "" for entry in found)
        assert len({entry.origin for entry in found}) <= 1
        with closing(sqlite3.connect(store.path)) as database, database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        seen.add(tuple(entry.name for entry in found))
    assert ("one",) not in seen  # "one" is removed first, and added only with "two"


def test_a_killed_writer_leaves_the_index_whole(store: Store, cache: Cache) -> None:
    killed_writers(store, cache, 5)


@pytest.mark.trial
def test_a_writer_killed_many_times_leaves_the_index_whole(store: Store, cache: Cache) -> None:
    killed_writers(store, cache, 200)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_of_this_machine_can_be_taken_in(store: Store, tmp_path: Path, copy: bool) -> None:
    source = write(tmp_path / "mine.gguf", gguf_bytes())
    found = adopt(source, store, copy=copy)
    assert (found.name, found.architecture, found.fault) == ("mine", "llama", "")
    assert find("mine", store) == (found.path, None)
    assert found.path.is_symlink() != copy
    with pytest.raises(UsageError, match="'mine' is installed already"):
        adopt(source, store)
    again = adopt(source, store, name="again", copy=copy)
    assert again.path == found.path
    assert store.remove("mine")[0].kept == "again uses it too"
    removal = store.remove("again")[0]
    assert source.read_bytes() == gguf_bytes()
    assert not os.path.lexists(found.path)
    assert bool(removal.kept) != copy


def test_the_same_bytes_from_two_places_are_two_links(store: Store, tmp_path: Path) -> None:
    sources = [tmp_path / name / "mine.gguf" for name in ("a", "b")]
    for age, source in enumerate(sources):
        source.parent.mkdir()
        write(source, gguf_bytes())
        os.utime(source, ns=(age, age))
        assert adopt(source, store, name=source.parent.name).added > 0
    assert [found.fault for found in store.entries()] == ["", ""]
    sources[1].unlink()
    assert [bool(found.fault) for found in store.entries()] == [False, True]


@pytest.mark.parametrize("name", ["tiny", "tiny-draft", "qwen3-8b", "-x", " ", "a\nb"])
def test_names_that_could_not_be_used_are_refused(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="Give another --name"):
        adopt(write(tmp_path / "mine.gguf", gguf_bytes()), store, name=name)
    assert store.entries() == []


def test_huggingface_hub_finds_its_cache_whole_after_a_removal(store: Store, cache: Cache) -> None:
    from huggingface_hub import scan_cache_dir

    commits = "1" * 40, "2" * 40
    refs = cache.folder / "models--u--r" / "refs"
    refs.mkdir(parents=True)
    for name, commit in zip(("old", "main"), commits, strict=True):
        store.add(entry(name, cache.link(commit, "m.gguf", name)))
        (refs / name).write_text(commit)
    store.remove("old")
    found = scan_cache_dir(cache.folder)
    assert not found.warnings
    assert [path.name for path in refs.iterdir()] == ["main"]
    store.remove("main")
    assert not (cache.folder / "models--u--r").exists()
    assert not scan_cache_dir(cache.folder).warnings


def test_what_is_no_model_is_not_taken_in(store: Store, tmp_path: Path) -> None:
    whole = gguf_bytes()
    for name, data, words in (("cut", whole[:-100], "truncated"), ("text", b"hello", "not a GGUF")):
        with pytest.raises(ModelFileError, match=words):
            adopt(write(tmp_path / f"{name}.gguf", data), store)
    with pytest.raises(ModelFileError, match="does not exist"):
        adopt(tmp_path / "none.gguf", store)
    with pytest.raises(ModelFileError, match="is one of 2 parts"):
        adopt(write(tmp_path / "m-00001-of-00002.gguf", whole), store)
    assert store.entries() == []


def test_names_lead_to_files(store: Store, cache: Cache, tmp_path: Path, tiny_target: Path, tiny_draft: Path) -> None:
    catalog = Catalog.load()
    target, draft = cache.link("c", "t.gguf", "t"), cache.link("c", "d.gguf", "d")
    store.add(
        entry("u/r:Q8_0", target, source="hub", origin="u/r", quant="Q8_0", draft="d"), entry("d", draft, role="draft")
    )
    assert find("u/r", store, catalog) == (target, draft)
    assert find_one("d", store, catalog) == draft
    assert find(None, store, catalog) == (tiny_target, tiny_draft)
    assert find(str(target), store, catalog) == (target, None)
    assert find(tmp_path / "none.gguf", store, catalog) == (tmp_path / "none.gguf", None)
    draft.resolve().unlink()
    assert find("u/r", store, catalog) == (target, None)  # the target still answers, without its draft
    with pytest.raises(ModelError, match="'v/w:Q4_0' is not installed") as caught:
        find("v/w:Q4_0", store, catalog)
    assert caught.value.hint == "Try: localspec pull v/w:Q4_0"
    with pytest.raises(ModelError, match="no model, pair or file called 'nosuch'") as caught:
        find("nosuch", store, catalog)
    assert "qwen3-8b" in caught.value.hint
    with pytest.raises(ModelError, match="called 'u_r:Q8_0'") as caught:
        find("u_r:Q8_0", store, catalog)
    assert caught.value.hint == "Did you mean u/r:Q8_0?"
    assert knows("tiny")
    assert not knows("Tell me a story")


def test_a_name_means_the_same_in_every_folder(
    store: Store, cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cache.link("c", "t.gguf", "t")
    store.add(entry("mine", path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_bytes(b"something else")
    assert find("mine", store)[0] == path
    assert find("./mine", store)[0] == Path("mine")


def test_a_model_is_removed_from_a_full_disk(small_disk: Path) -> None:
    store, file = Store(small_disk / "data"), small_disk / "data" / "big.gguf"
    file.parent.mkdir()
    file.write_bytes(b"x" * 1_000_000)
    store.add(entry("big", file, ownership="copy"))
    fill(small_disk)
    [removal] = store.remove("big")
    assert (removal.bytes, removal.kept) == (1_000_000, "")
    assert store.entries() == []
    assert not file.exists()
