"""What the hub says, and what it says no with: listings, pieces of files, search, errors in plain words."""

from __future__ import annotations

import socket

import pytest

from localspec.errors import DownloadError, UsageError
from localspec.gguf import read_header_from
from localspec.models.hub.hub import Hub
from localspec.models.hub.names import Url
from tests.hub.conftest import PAIR
from tests.hub.server import LocalHub, sha256


def test_a_listing_has_commit_sizes_and_checksums(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    found = client.listing(PAIR[0])
    (file,) = found.files
    assert (file.name, file.size, file.sha256) == ("tiny-target-Q8_0.gguf", len(target_bytes), sha256(target_bytes))
    assert found.commit == local_hub.repositories[PAIR[0]].commit
    assert found.commit in file.url
    assert client.listing(PAIR[0], found.commit).files == found.files


def test_a_header_is_read_without_the_rest(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    (file,) = client.listing(PAIR[0]).files
    header = read_header_from(client.reader(file, PAIR[0]), file.size, file.name)
    assert header.architecture == "llama"
    assert len(header.tokens) > 100
    assert local_hub.bytes_sent() < len(target_bytes)


def test_pieces_are_exact(client: Hub, target_bytes: bytes) -> None:
    (file,) = client.listing(PAIR[0]).files
    read = client.reader(file, PAIR[0])
    assert read(1000, 24) == target_bytes[1000:1024]
    assert read(file.size - 10, 100) == target_bytes[-10:]
    assert read(file.size, 5) == b""


def test_a_moved_repository_is_found_under_its_old_name(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    local_hub.moved["us/old-name"] = PAIR[0]
    (file,) = client.listing("us/old-name").files
    assert client.reader(file, "us/old-name")(0, 4) == b"GGUF"


def test_search_is_sorted_by_downloads(client: Hub, local_hub: LocalHub) -> None:
    found = client.search(["tiny"])
    assert [one.repository for one in found] == [PAIR[0], PAIR[1]]
    assert found[0].url == f"{local_hub.url}/{PAIR[0]}"
    assert client.search(["nothing", "such"]) == []


def test_a_plain_address_has_a_size(client: Hub, local_hub: LocalHub, target_bytes: bytes) -> None:
    file = client.url_file(Url(f"{local_hub.content_url}/{sha256(target_bytes)}/some%20model.gguf"))
    assert (file.name, file.size) == ("some model.gguf", len(target_bytes))
    other = client.url_file(Url(f"{local_hub.content_url}/{sha256(target_bytes)}/other.gguf"))
    assert len({file.blob, other.blob, ""}) == 3  # each has a place of its own
    with pytest.raises(DownloadError, match="There is nothing at"):
        client.url_file(Url(f"{local_hub.content_url}/none/x.gguf"))
    with pytest.raises(UsageError, match="not a plain path"):
        client.url_file(Url(f"{local_hub.content_url}/none/..%5Cx.gguf"))
    local_hub.faults.ignore_range = True
    with pytest.raises(DownloadError, match="cannot be read in pieces"):
        client.url_file(Url(f"{local_hub.content_url}/{sha256(target_bytes)}/x.gguf"))


def with_token(client: Hub, token: str) -> Hub:
    return Hub(endpoint=client.endpoint, cache=client.cache, token=token)


@pytest.mark.parametrize(
    ("token", "words", "hint"),
    [
        ("", "needs an account that accepted its terms", "then set HF_TOKEN or run `hf auth login`"),
        ("hf_stranger", "your account has no access to it", "with the account of your token"),
    ],
)
def test_a_gated_repository_says_where_to_accept(
    client: Hub, local_hub: LocalHub, token: str, words: str, hint: str
) -> None:
    local_hub.repositories[PAIR[0]].gated = True
    asking = with_token(client, token) if token else client
    listing = asking.listing(PAIR[0])
    assert listing.gated
    with pytest.raises(DownloadError, match=words) as caught:
        asking.reader(listing.files[0], PAIR[0])(0, 4)
    assert f"{local_hub.url}/{PAIR[0]}" in caught.value.hint
    assert hint in caught.value.hint
    local_hub.accepted.add("hf_stranger")
    if token:
        assert asking.reader(listing.files[0], PAIR[0])(0, 4) == b"GGUF"


@pytest.mark.parametrize("variable", ["set", ""])
def test_a_revoked_token_is_named_with_its_place(
    client: Hub, local_hub: LocalHub, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", variable)
    local_hub.faults.revoked.add("hf_gone")
    with pytest.raises(DownloadError, match="in HF_TOKEN" if variable else "of `hf auth login`") as caught:
        with_token(client, "hf_gone").listing(PAIR[0])
    assert "/settings/tokens" in caught.value.hint
    assert "hf_gone" not in str(caught.value)


def test_what_is_not_there_is_said(client: Hub, local_hub: LocalHub) -> None:
    with pytest.raises(DownloadError, match="shows no repository 'us/none'; a private one needs HF_TOKEN"):
        client.listing("us/none")
    with pytest.raises(DownloadError, match="shows no repository 'us/none'; its token may lack access"):
        with_token(client, "hf_x").listing("us/none")
    with pytest.raises(DownloadError, match="has no such revision"):
        client.listing(PAIR[0], "v9")
    with pytest.raises(DownloadError, match="not the name of a repository"):
        client.listing("us/--")
    (file,) = client.listing(PAIR[0]).files
    local_hub.repositories[PAIR[0]].files = {}
    local_hub.repositories[PAIR[0]].branches = (file.url.split("/resolve/")[1].split("/")[0],)
    with pytest.raises(DownloadError, match=r"has no file 'tiny-target-Q8_0.gguf' \(any more\)"):
        client.reader(file, PAIR[0])(0, 4)


@pytest.mark.parametrize(
    ("status", "words"), [(503, "in trouble"), (429, "refuses more requests"), (418, "status 418")]
)
def test_other_answers_are_sentences(client: Hub, local_hub: LocalHub, status: int, words: str) -> None:
    local_hub.faults.statuses = {"/api/": [status] * 20}
    with pytest.raises(DownloadError, match=words) as caught:
        client.listing(PAIR[0])
    assert "\n" not in str(caught.value)
    local_hub.faults.statuses = {"/api/": [status]}
    if status != 418:
        assert client.listing(PAIR[0]).files


def test_a_hub_that_is_not_there(client: Hub) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = Hub(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}", cache=client.cache)
        with pytest.raises(DownloadError, match="cannot be reached") as caught:
            nobody.listing(PAIR[0])
    assert "--offline" in caught.value.hint


@pytest.mark.parametrize("name", ["../../escape.gguf", "/etc/x.gguf", "a/../../b.gguf", "c:\\x.gguf", "a\nb.gguf"])
def test_a_file_name_that_leaves_the_repository_is_refused(client: Hub, local_hub: LocalHub, name: str) -> None:
    local_hub.add("us/evil", {name: b"GGUF"})
    with pytest.raises(UsageError, match="not a plain path"):
        client.listing("us/evil")
    assert not client.cache.exists() or not list(client.cache.rglob("*.gguf"))
