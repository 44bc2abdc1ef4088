"""Transfers that go wrong, inside this process: every one ends in the right bytes or in a sentence and no file."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from localspec.errors import Cancelled, DownloadError
from localspec.models.hub.download import AT_ONCE, Transfer, fetch_all, remove_partials
from localspec.models.hub.hub import Hub, Listing
from localspec.models.hub.names import RemoteFile, Url
from tests.hub.conftest import PAIR
from tests.hub.server import LocalHub, sha256

MIB = 1 << 20


def transfers(client: Hub, *repositories: str) -> list[Transfer]:
    """All GGUF files of some repositories."""
    listings = [client.listing(repository) for repository in repositories or PAIR[:1]]
    return [Transfer(file, found.repository, found.commit) for found in listings for file in found.files]


def silent(*state: object) -> None:
    pass


def leftovers(client: Hub) -> list[str]:
    """Blobs and partial files in the cache, by what their names end in."""
    return sorted(path.name[64:] for path in client.cache.glob("models--*/blobs/*"))


def test_a_fresh_pair_comes_in_parallel_and_lies_as_huggingface_hub_lays_it(
    client: Hub, local_hub: LocalHub, target_bytes: bytes, draft_bytes: bytes
) -> None:
    seen: list[tuple[str, int, int, str]] = []
    both = transfers(client, *PAIR)
    fetched = fetch_all(both, client, lambda *state: seen.append(state))
    assert [file.path.read_bytes() for file in fetched] == [target_bytes, draft_bytes]
    assert [file.sha256 for file in fetched] == [sha256(target_bytes), sha256(draft_bytes)]
    for file, transfer in zip(fetched, both, strict=True):
        assert file.path.is_symlink()
        assert file.path == client.folder(transfer.repository) / "snapshots" / transfer.commit / transfer.file.name
        assert file.path.resolve() == client.folder(transfer.repository) / "blobs" / file.sha256
    for transfer in both:
        done = [state[1] for state in seen if state[0] == transfer.label and state[3] == "loading"]
        assert done == sorted(done)
        assert done[-1] == transfer.file.size
    assert local_hub.bytes_sent() == len(target_bytes) + len(draft_bytes)
    assert leftovers(client) == ["", ""]


def test_what_is_there_is_checked_and_not_fetched_again(client: Hub, local_hub: LocalHub) -> None:
    fetch_all(transfers(client), client, silent)
    sent = local_hub.bytes_sent()
    fetch_all(transfers(client), client, silent)
    assert local_hub.bytes_sent() == sent


def test_a_blob_that_rotted_on_disk_is_replaced(client: Hub, target_bytes: bytes) -> None:
    (fetched,) = fetch_all(transfers(client), client, silent)
    blob = fetched.path.resolve()
    blob.write_bytes(target_bytes[:1000] + b"\0" + target_bytes[1001:])
    (again,) = fetch_all(transfers(client), client, silent)
    assert again.path.read_bytes() == target_bytes
    assert again.path.resolve() == blob


@pytest.mark.parametrize("cuts", [1, 4])
def test_cut_connections_go_on_where_they_were(
    client: Hub, local_hub: LocalHub, target_bytes: bytes, cuts: int
) -> None:
    local_hub.faults.cut_every, local_hub.faults.cuts = int(1.5 * MIB), cuts
    (fetched,) = fetch_all(transfers(client), client, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() < len(target_bytes) + (cuts + 1) * MIB  # a cut costs at most the unwritten MiB
    starts = [seen.range for seen in local_hub.seen if seen.server == "content"]
    assert len(set(starts)) == len(starts) == cuts + 1


def test_a_server_that_always_cuts_ends_in_a_sentence_and_keeps_what_came(client: Hub, local_hub: LocalHub) -> None:
    local_hub.faults.cut_every, local_hub.faults.cuts, local_hub.faults.block = 1000, -1, 500
    with pytest.raises(DownloadError, match="connection failed") as caught:
        fetch_all(transfers(client), client, silent)
    assert "what came so far is kept" in caught.value.hint
    assert not list(client.cache.rglob("snapshots/*/*"))


def test_a_stalled_connection_is_given_up_and_gone_on_with(
    client: Hub, local_hub: LocalHub, target_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 1.5)
    local_hub.faults.stall_after = 3 * MIB
    (fetched,) = fetch_all(transfers(client), client, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() < len(target_bytes) + 2 * MIB


def test_a_server_without_ranges_starts_over(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    local_hub.faults.ignore_range = True
    local_hub.faults.cut_every, local_hub.faults.cuts = 2 * MIB, 1
    (fetched,) = fetch_all(transfers(client), client, silent)
    assert fetched.path.read_bytes() == target_bytes


@pytest.mark.parametrize("wrong", [0, 3 * MIB, -1])
def test_wrong_bytes_are_never_kept(client: Hub, local_hub: LocalHub, target_bytes: bytes, wrong: int) -> None:
    local_hub.faults.wrong_byte = wrong % len(target_bytes)
    with pytest.raises(DownloadError, match="wrong bytes for tiny-target-Q8_0"):
        fetch_all(transfers(client), client, silent)
    assert leftovers(client) == []
    local_hub.reset()
    (fetched,) = fetch_all(transfers(client), client, silent)
    assert fetched.path.read_bytes() == target_bytes


def test_a_partial_file_that_went_bad_costs_one_more_transfer(
    client: Hub, local_hub: LocalHub, target_bytes: bytes
) -> None:
    (transfer,) = transfers(client)
    partial = transfer.partial(client)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * MIB)  # as after a power cut
    (fetched,) = fetch_all([transfer], client, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() == 2 * len(target_bytes) - MIB


def test_a_partial_file_longer_than_the_file_starts_over(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    (wanted,) = transfers(client)
    partial = wanted.partial(client)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"\0" * (len(target_bytes) + 1))
    (fetched,) = fetch_all([wanted], client, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() == len(target_bytes)


@pytest.mark.parametrize("size", [6 * MIB, 7 * MIB])
def test_a_file_of_another_size_than_promised_is_refused(
    client: Hub, local_hub: LocalHub, target_bytes: bytes, size: int
) -> None:
    (transfer,) = transfers(client)
    file = RemoteFile(transfer.file.name, size, transfer.file.url, transfer.file.sha256, transfer.file.blob)
    with pytest.raises(DownloadError):
        fetch_all([Transfer(file, transfer.repository, transfer.commit)], client, silent)
    assert not transfer.blob(client).exists()


def test_a_body_that_ends_early_without_an_error_is_noticed(client: Hub, local_hub: LocalHub) -> None:
    local_hub.faults.short_by = 100
    with pytest.raises(DownloadError):
        fetch_all(transfers(client), client, silent)
    assert not transfers(client)[0].blob(client).exists()


def test_a_file_too_large_for_plain_http_is_left_to_xet(
    client: Hub, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 5 * MIB)
    with pytest.raises(DownloadError, match="too large for plain HTTP"):  # this hub has no Xet
        fetch_all(transfers(client), client, silent)
    assert not transfers(client)[0].blob(client).exists()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_moment_of_trouble_is_waited_out(client: Hub, local_hub: LocalHub, target_bytes: bytes, status: int) -> None:
    found = transfers(client)
    local_hub.faults.statuses = {"/resolve/": [status]}
    (fetched,) = fetch_all(found, client, silent)
    assert fetched.path.read_bytes() == target_bytes


def test_lasting_trouble_ends_in_a_sentence(client: Hub, local_hub: LocalHub) -> None:
    found = transfers(client)
    local_hub.faults.statuses = {"/resolve/": [503] * 50}
    with pytest.raises(DownloadError, match=r"the server is in trouble \(status 503\)"):
        fetch_all(found, client, silent)


def test_a_token_revoked_on_the_way_says_so_and_a_good_one_goes_on(
    client: Hub, local_hub: LocalHub, target_bytes: bytes
) -> None:
    local_hub.repositories[PAIR[0]].gated = True
    local_hub.accepted = {"hf_old", "hf_new"}
    old, new = (Hub(endpoint=local_hub.url, cache=client.cache, token=token) for token in ("hf_old", "hf_new"))
    found = transfers(old)

    def revoke(at: int) -> None:
        if at > 2 * MIB:
            local_hub.faults.revoked = {"hf_old"}

    local_hub.faults.on_body = revoke
    local_hub.faults.cut_every, local_hub.faults.cuts = 3 * MIB, 1
    with pytest.raises(DownloadError, match="refuses the access token") as caught:
        fetch_all(found, old, silent)
    assert f"{local_hub.url}/settings/tokens" in caught.value.hint
    kept = found[0].partial(old).stat().st_size
    assert kept >= 2 * MIB
    local_hub.faults.on_body = None
    sent = local_hub.bytes_sent()
    (fetched,) = fetch_all(transfers(new), new, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() - sent == len(target_bytes) - kept


def test_the_token_goes_to_the_hub_and_nowhere_else(client: Hub, local_hub: LocalHub) -> None:
    with_token = Hub(endpoint=local_hub.url, cache=client.cache, token="hf_secret")
    found = transfers(with_token)
    with_token.reader(found[0].file, PAIR[0])(0, 100)
    fetch_all(found, with_token, silent)
    with_token.url_file(Url(f"{local_hub.content_url}/{found[0].file.sha256}/x.gguf"))
    tokens = {
        (seen.server, seen.token) for seen in local_hub.seen if seen.server == "content" or "/resolve/" in seen.path
    }
    assert tokens == {("hub", "hf_secret"), ("content", "")}


def test_a_stop_keeps_what_came(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    stop = threading.Event()

    def report(name: str, done: int, size: int, what: str) -> None:
        if done > 2 * MIB:
            stop.set()

    with pytest.raises(Cancelled, match="stopped"):
        fetch_all(transfers(client), client, report, stop)
    kept = transfers(client)[0].partial(client).stat().st_size
    assert 2 * MIB < kept < len(target_bytes)
    sent = local_hub.bytes_sent()
    fetch_all(transfers(client), client, silent)
    assert local_hub.bytes_sent() - sent == len(target_bytes) - kept


def test_two_at_once_load_it_once(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    found, waited, results = transfers(client), threading.Event(), []
    local_hub.faults.on_body = lambda at: waited.wait(30)

    def pull() -> None:
        results.extend(fetch_all(found, client, lambda *state: waited.set() if state[3] == "waiting" else None))

    threads = [threading.Thread(target=pull) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.path.read_bytes() for result in results] == [target_bytes] * 3
    assert waited.is_set()
    assert local_hub.bytes_sent() == len(target_bytes)


def test_many_files_come_a_few_at_a_time(client: Hub, local_hub: LocalHub) -> None:
    parts = {f"m-{number:05d}-of-00009.gguf": bytes([number]) * 300_000 for number in range(1, 10)}
    local_hub.add("us/parts", parts)
    most, lock, several = 0, threading.Lock(), threading.Event()
    active: set[str] = set()
    local_hub.faults.on_body = lambda at: several.wait(30)

    def report(name: str, done: int, size: int, what: str) -> None:
        nonlocal most
        with lock:
            (active.add if what == "loading" and done < size else active.discard)(name)
            most = max(most, len(active))
            if most > 1:
                several.set()

    fetched = fetch_all(transfers(client, "us/parts"), client, report)
    assert [file.path.read_bytes() for file in fetched] == list(parts.values())
    assert 1 < most <= AT_ONCE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_and_gone_on_with_when_there_is_room(
    local_hub: LocalHub, quick: None, small_disk: Path, target_bytes: bytes
) -> None:
    client = Hub(endpoint=local_hub.url, cache=small_disk / "hub")
    with pytest.raises(DownloadError, match=r"is full: \d+ bytes of tiny-target-Q8_0\.gguf are missing") as caught:
        fetch_all(transfers(client), client, silent)
    assert "what came so far is kept" in caught.value.hint
    assert not list(client.cache.rglob("snapshots/*/*"))
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    sent = local_hub.bytes_sent()
    (fetched,) = fetch_all(transfers(client), client, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.bytes_sent() - sent < len(target_bytes)


def test_interrupted_downloads_can_be_removed_but_not_running_ones(client: Hub, tmp_path: Path) -> None:
    (transfer,) = transfers(client)
    partial = transfer.partial(client)
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"x" * 10)
    locks = client.cache / ".locks" / client.folder(transfer.repository).name
    locks.mkdir(parents=True)
    from huggingface_hub.utils import WeakFileLock

    with WeakFileLock(locks / f"{transfer.file.blob}.lock"):
        assert remove_partials(client, tmp_path) == []
    assert remove_partials(client, tmp_path) == [(partial, 10)]
    assert not partial.exists()


def test_a_running_download_of_a_plain_address_is_left_alone(
    client: Hub, local_hub: LocalHub, target_bytes: bytes, tmp_path: Path
) -> None:
    url = f"{local_hub.content_url}/{sha256(target_bytes)}/model.gguf"
    file = client.url_file(Url(url))
    transfer = Transfer(file, folder=tmp_path / file.blob)
    partial, kept = transfer.partial(client), []

    def look(name: str, done: int, size: int, what: str) -> None:
        if partial.exists():
            kept.append(remove_partials(client, tmp_path))

    assert fetch_all([transfer], client, look)[0].path.read_bytes() == target_bytes
    assert kept
    assert not any(kept)
    partial.write_bytes(b"x" * 10)
    assert remove_partials(client, tmp_path) == [(partial, 10)]


def test_offline_finds_what_is_cached_without_a_request(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    listing = client.listing(PAIR[0])
    fetch_all(transfers(client), client, silent)
    client.remember(listing)
    local_hub.reset()
    offline = Hub(endpoint=local_hub.url, cache=client.cache, offline=True)
    (fetched,) = fetch_all(transfers(offline), offline, silent)
    assert fetched.path.read_bytes() == target_bytes
    assert local_hub.seen == []
    fetched.path.resolve().write_bytes(b"damaged")
    with pytest.raises(DownloadError, match="is damaged"):
        fetch_all(transfers(offline), offline, silent)
    with pytest.raises(DownloadError, match="is not in the cache"):
        offline.listing("us/never")
    with pytest.raises(DownloadError, match="no search offline"):
        offline.search(["x"])


def test_a_listing_remembers_its_commit_as_huggingface_hub_does(client: Hub, local_hub: LocalHub) -> None:
    from huggingface_hub import try_to_load_from_cache

    (fetched,) = fetch_all(transfers(client), client, silent)
    client.remember(client.listing(PAIR[0]))
    found = try_to_load_from_cache(PAIR[0], "tiny-target-Q8_0.gguf", cache_dir=client.cache)
    assert found == str(fetched.path)
    client.remember(Listing(PAIR[0], "v1", "0" * 40, ()))
    assert (client.folder(PAIR[0]) / "refs" / "v1").read_text() == "0" * 40
