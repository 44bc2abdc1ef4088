"""One model of a pull: from what was asked for to its files and their headers, read by range; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from localspec.errors import ModelError, ModelFileError
from localspec.gguf import Header, read_header, read_header_from
from localspec.models.facts.heads import draft_kind
from localspec.models.hub import names
from localspec.models.hub.hub import Hub, Listing
from localspec.models.hub.names import Choice, RepositoryName, Url
from localspec.models.hub.transfer import Transfer, on_disk
from localspec.models.installed.catalog import ModelEntry
from localspec.models.installed.store import Store


@dataclass(frozen=True, slots=True)
class Wish:
    """One model somebody wants, before the net was asked."""

    source: RepositoryName | Url
    role: str = "target"
    name: str = ""
    """What it will be called; "" = after its source."""
    revision: str = ""
    sha256: str = ""
    """Known beforehand, as from the catalogue."""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One model of a plan."""

    name: str
    role: str
    origin: str
    """Repository or address."""
    choice: Choice
    headers: tuple[Header, ...]
    """Of its files."""
    transfers: tuple[Transfer, ...]
    others: tuple[Choice, ...] = ()
    """What else the repository has of this model."""
    listing: Listing | None = None
    licence: str = ""

    @property
    def header(self) -> Header:
        """Of the first file, which describes the model."""
        return self.headers[0]

    def missing(self, hub: Hub) -> int:
        """Bytes still to be fetched."""
        return sum(transfer.file.size - on_disk(transfer, hub) for transfer in self.transfers)

    def as_dict(self, hub: Hub) -> dict[str, Any]:
        """For JSON."""
        files = [{"file": file.name, "bytes": file.size, "sha256": file.sha256} for file in self.choice.files]
        commit = self.listing.commit if self.listing else ""
        facts = {"name": self.name, "role": self.role, "origin": self.origin, "revision": commit}
        facts |= {"quant": self.choice.quant, "architecture": self.header.architecture, "licence": self.licence}
        return {**facts, "bytes": self.choice.size, "missing_bytes": self.missing(hub), "files": files}


def wish_for(entry: ModelEntry, role: str, revision: str = "") -> Wish:
    """What a model of the catalogue asks for.

    Raises:
        ModelError: it is shipped with localspec.
    """
    if entry.bundled:
        raise ModelError(
            f"{entry.name!r} is shipped with localspec; there is nothing to pull.", "localspec run uses it."
        )
    source = RepositoryName(entry.repository, entry.quant, entry.file)
    role = entry.role if role == "draft" else role
    sha256 = "" if revision and revision != entry.revision else entry.sha256
    return Wish(source, role, entry.name, revision or entry.revision, sha256, entry.licence)


def part_of(wish: Wish, hub: Hub, store: Store) -> Part:
    """The files that a wish means, and their headers.

    Raises:
        DownloadError: the hub cannot be reached or refuses.
        ModelError: no such file, or one that cannot be what it is wished for.
        ModelFileError: a damaged header.
    """
    if isinstance(wish.source, Url):
        file = hub.url_file(wish.source)
        choice = Choice(names.quant_of(file.name), (file,))
        name = file.name.removesuffix(".gguf")
        if any(entry.name == name and entry.origin != wish.source.url for entry in store.entries()):
            name = f"{name}-{file.blob[:8]}"  # many addresses end in model.gguf
        transfer = Transfer(file, folder=store.files / file.blob)
        return Part(name, wish.role, wish.source.url, choice, _headers(wish, (transfer,), hub), (transfer,))
    listing = hub.listing(wish.source.repository, wish.revision)
    choice = names.choose(wish.source, listing.files)
    if wish.sha256 and choice.files[0].sha256 not in ("", wish.sha256):
        raise ModelError(
            f"{choice.files[0].name} of {listing.repository} is not the file the catalogue lists (another sha256).",
            f"Look at {hub.endpoint}/{listing.repository} and pull {listing.repository}:{choice.quant} by name.",
        )
    return chosen(wish, listing, choice, hub)


def chosen(wish: Wish, listing: Listing, choice: Choice, hub: Hub) -> Part:
    """One choice of a repository, and its headers; raises as `part_of`.

    A model is called `user/repo:QUANT` where that is clear; a drafter that lies beside it, by its file.
    """
    transfers = tuple(Transfer(file, listing.repository, listing.commit) for file in choice.files)
    others = names.choices(listing.files)
    alone = [other for other in others if other.quant == choice.quant] == [choice]
    name = (
        f"{listing.repository}:{choice.quant}"
        if alone and choice.quant
        else f"{listing.repository}/{choice.files[0].name}"
    )
    headers = _headers(wish, transfers, hub)
    rest = tuple(other for other in others if other != choice)
    return Part(
        wish.name or name, wish.role, listing.repository, choice, headers, transfers, rest, listing, wish.licence
    )


def _headers(wish: Wish, transfers: Sequence[Transfer], hub: Hub) -> tuple[Header, ...]:
    """Of all files; refuses what cannot be part of a pair."""
    headers = tuple(_header(transfer, hub) for transfer in transfers)
    kind = draft_kind(headers[0])
    if not kind.drafts or (kind.is_head and wish.role == "target"):
        name = f"{transfers[0].file.name} of {transfers[0].where}"
        raise ModelError(f"{name} cannot be a {wish.role}: it is {kind.sentence}.")
    return headers


def _header(transfer: Transfer, hub: Hub) -> Header:
    """By range, or from the disk where the file lies complete."""
    file, local, called = transfer.file, _local(transfer, hub), f"{transfer.where}/{transfer.file.name}"
    if local is not None:
        try:
            return replace(read_header(local), path=Path(called))  # not by its checksum in the cache
        except ModelFileError:
            if hub.offline:
                raise
    return read_header_from(hub.reader(file, transfer.where), file.size, called)


def _local(transfer: Transfer, hub: Hub) -> Path | None:
    if hub.offline:
        return hub.folder(transfer.repository) / "snapshots" / transfer.commit / transfer.file.name
    blob = transfer.blob(hub)
    return blob if blob.is_file() and blob.stat().st_size == transfer.file.size else None
