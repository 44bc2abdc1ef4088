"""Where a model's drafter lies: inside its own file, beside it in its repository, or in the catalogue.

A file's name orders what is read; its header, read by range, decides. Everything is refused from headers, before any of
it is fetched. What lies inside, beside, or in the catalogue from the same owner or the model's maker is taken; all else
is proposed with its command.

One model of a pull: from what was asked for to its files and their headers, read by range; nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import Any, TypeAlias

from rich.filesize import decimal

from localspec.errors import LocalspecError, ModelError, ModelFileError
from localspec.gguf import Header, read_header, read_header_from
from localspec.gguf.formats import ROLLS_BACK
from localspec.methods import FROM_FILES, HEADS, OF_ITS_OWN, ROWS
from localspec.models.facts import pairing
from localspec.models.facts.heads import draft_kind, keeps_state, nextn_layers
from localspec.models.hub import names
from localspec.models.hub.download import Transfer, on_disk
from localspec.models.hub.hub import Hub, Listing
from localspec.models.hub.names import Choice, RepositoryName, Url
from localspec.models.installed.catalog import Catalog, ModelEntry, PairEntry
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
        ModelError: no such file, or one that cannot be what it is wished for.
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


Reach: TypeAlias = Callable[[Sequence[Header], Sequence[Header]], str]
"""Why a head, by its headers, cannot be run on a target, by its own; "" = it can, for all that is known."""
_BEST_BITS, _FEWEST_BITS = 8, 4
"""Bits of a weight: heads of fewer than eight guess worse, and those of fewer than four are not taken unasked."""
_MOST_BASES = 4
"""Models that one was made from, whose makers are read from its header."""
_MOST_READ = 6
"""Drafters of one repository whose headers are read: each may take some MB."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where a drafter was looked for, and what came of it."""

    name: str
    """File of the repository, or model of the catalogue."""
    method: str
    """How it drafts, as `heads.DraftKind` has it; before its header was read, as its name or the catalogue says."""
    taken: bool
    why: str
    """Why it was taken or not: a clause without a full stop."""
    bytes: int = 0
    """Of its files; 0 = unknown, or inside the model."""
    command: str = ""
    """What pulls it with the model, asked or not; "" = it cannot draft, or is inside."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def line(self) -> str:
        """One line for people."""
        size = f" ({decimal(self.bytes)})" if self.bytes else ""
        way = f" ({self.command})" if self.command and not self.taken else ""
        return f"{self.name}{size} {'taken' if self.taken else 'not taken'}: {self.why}{way}"


@dataclass(frozen=True, slots=True)
class Search:
    """What looking for a drafter came to."""

    findings: tuple[Finding, ...] = ()
    part: Part | None = None
    """What is to be fetched with the model; None = nothing."""

    def without(self, why: str) -> Search:
        """The same, its file not taken after all."""
        return Search(tuple(replace(one, taken=False, why=why) if one.taken else one for one in self.findings))

    def noting(self, fact: str) -> Search:
        """The same, with one more fact about what is taken."""
        told = (replace(one, why=f"{one.why}, {fact}") if one.taken else one for one in self.findings)
        return replace(self, findings=tuple(told))


def rank(method: str, mixture: bool = False) -> int:
    """The place of a way to draft among all, 0 the most promising.

    Args:
        method: as `heads.DraftKind` has it.
        mixture: whether the model has experts: each row of a pass reads some of its own, so short drafts come first.
    """
    if mixture and method in ROWS and ROWS[method].family:
        return -1
    order = (*HEADS, "draft")
    return order.index(method) if method in order else len(order)


def refusal(target: Sequence[Header], draft: Header, whole: bool = False) -> str:
    """Why a file cannot be taken as a model's drafter, from their headers: a clause; "" = it can.

    Args:
        target: headers of all files of the model.
        draft: of the drafter.
        whole: whether it may be a whole model.
    """
    kind, model = draft_kind(draft), target[0]
    if not kind.drafts:
        return f"it is {kind.sentence}"
    if kind.method == "draft" and not whole:
        return "it is a whole model, no head"
    if kind.method not in FROM_FILES:
        return f"it is {kind.sentence}, which localspec cannot draft with yet"
    if fault := misfit(target, draft):
        return fault
    found = pairing.match(model, draft)
    if found.fits:
        return ""
    return found.verdict.removeprefix(f"{draft.path.name} cannot draft for {model.path.name}: ").rstrip(".")


def forgets(model: Header) -> str:
    """Why no guess of a drafter can be taken back from a model's cache: a clause; "" = it can."""
    if keeps_state(model) and model.architecture not in ROLLS_BACK:
        return f"the model keeps a recurrent state ({model.architecture}), from which guesses cannot be taken back"
    return ""


def misfit(target: Sequence[Header], draft: Header) -> str:
    """The first fact by which a head that is part of one family of models is another's: a clause; "" = none."""
    method, model = draft_kind(draft).method, target[0]
    family = draft.architecture.removesuffix("-assistant")
    if method in ROWS and ROWS[method].family and family != model.architecture:
        return f"architecture is {model.architecture} in the target and {family} in the head"
    theirs = draft.n_layers - draft.number("nextn_predict_layers")
    ours = {model.n_layers - count for count in (nextn_layers(target), model.number("nextn_predict_layers"))}
    if method != OF_ITS_OWN or theirs in ours:  # a model whose MTP layers were taken out may still count them
        return ""
    return f"number of layers is {max(ours)} in the target and {theirs} in the head"


def search(target: Part, hub: Hub, store: Store, catalog: Catalog, reach: Reach = lambda target, head: "") -> Search:
    """Looks for the drafter of a model: inside, beside, in the catalogue; the first that fits is taken.

    What cannot be reached or read is a finding, never an error: the model does without.

    Args:
        target: the model.
        hub: where it is from, and where headers are read.
        store: what is installed.
        catalog: the last place that is looked at.
        reach: says which heads cannot be run.
    """
    if why := forgets(target.header):
        return Search((Finding(_file(target.choice), "", False, why),))
    inside = nextn_layers(target.headers)
    found: list[tuple[Finding, Part | None]] = []
    if inside:
        cannot = reach(target.headers, target.headers)
        why = cannot or f"{inside} layer(s) of multi-token prediction inside, nothing to fetch"
        found.append((Finding(_file(target.choice), OF_ITS_OWN, not cannot, why), None))
    for look in (partial(_beside, target, hub, reach), partial(_listed, target, hub, store, catalog, reach)):
        found += look(next((one.method for one, _ in found if one.taken), ""))
    part = next((part for _, part in found if part is not None), None)
    return Search(tuple(finding for finding, _ in found), part)


# ---- beside the model


def _beside(target: Part, hub: Hub, reach: Reach, taken: str) -> Iterator[tuple[Finding, Part | None]]:
    """A finding for every drafter of the repository, the most promising first.

    Args:
        target: the model.
        hub: where headers are read.
        reach: says which cannot be run.
        taken: method of what is taken already; "" = nothing.
    """
    read = 0
    for group in _groups(target):
        first = group[0]
        if not _is_above(first, target):
            yield _proposed(target, group, "it lies in another folder"), None
        elif taken:
            yield _proposed(target, group, f"{taken} comes first"), None
        elif 0 < _bits(first.quant) < _FEWEST_BITS:
            yield _proposed(target, group, f"{first.quant} is too coarse for a head"), None
        elif read == _MOST_READ:
            yield _proposed(target, group, f"{read} others were read"), None
        else:
            read += 1
            finding, part = _read(target, group, hub, reach)
            taken = finding.method if part else ""
            yield finding, part


def _groups(target: Part) -> list[list[Choice]]:
    """The drafters beside a model: quantisations of one together, the best first; the most promising group first."""
    if target.listing is None:
        return []
    model, mixture = names.family(target.choice), target.header.number("expert_count") > 0

    def group_of(choice: Choice) -> tuple[bool, int, int, bool, str]:
        folder, family = names.folder_of(choice), names.family(choice)
        away = not _is_above(choice, target)
        return away, rank(_word(choice), mixture), -len(folder), model not in family, f"{folder}/{family}"

    found = sorted(names.drafters(target.listing.files), key=group_of)
    wanted = max(_BEST_BITS, _bits(target.choice.quant))
    return [
        sorted(group, key=lambda choice: (abs((_bits(choice.quant) or _BEST_BITS) - wanted), choice.size, choice.stem))
        for _, group in groupby(found, group_of)
    ]


def _bits(quant: str) -> int:
    """Bits of a weight by the name of a quantisation, roughly; 0 = the name does not say."""
    found = re.search(r"\d+", quant.removeprefix("UD-"))
    return int(found[0]) if found else 0


def _is_above(choice: Choice, target: Part) -> bool:
    """Whether a file lies in the model's folder or in one above it."""
    folder, home = names.folder_of(choice), names.folder_of(target.choice)
    return not folder or f"{home}/".startswith(f"{folder}/")


def _read(target: Part, group: Sequence[Choice], hub: Hub, reach: Reach) -> tuple[Finding, Part | None]:
    """What the header says."""
    choice, listing = group[0], target.listing
    assert listing is not None
    source = RepositoryName(listing.repository, file=choice.files[0].name)
    wish = Wish(source, "draft", f"{listing.repository}/{choice.files[0].name}")
    found, part = _tried(target, lambda: chosen(wish, listing, choice, hub), reach)
    finding = replace(found, name=_file(choice), bytes=choice.size, method=found.method or _word(choice))
    if part is not None:
        of_several = f", the best of {len(group)} quantisations" if len(group) > 1 else ""
        why = f"{finding.why}, beside the model{of_several}"
        finding = replace(finding, why=why, command=_command(target, wish.name))
    return finding, part


def _tried(target: Part, read: Callable[[], Part], reach: Reach, whole: bool = False) -> tuple[Finding, Part | None]:
    """Reads a drafter's headers, and judges them."""
    try:
        part = read()
        method, why = draft_kind(part.header).method, refusal(target.headers, part.header, whole)
        why = why or ("" if whole else reach(target.headers, part.headers))
    except LocalspecError as error:
        return Finding("", "", False, str(error).rstrip(".")), None
    if why:
        return Finding("", method, False, why), None
    block = part.header.number("block_size")
    blocks = f" of blocks of {block}" if block > 0 else ""
    return Finding("", method, True, f"{draft_kind(part.header).sentence}{blocks}"), part


def _proposed(target: Part, group: Sequence[Choice], why: str) -> Finding:
    """What lies beside the model and was not read."""
    choice, listing = group[0], target.listing
    assert listing is not None
    command = _command(target, f"{listing.repository}/{choice.files[0].name}")
    return Finding(_file(choice), _word(choice), False, why, choice.size, command)


def _word(choice: Choice) -> str:
    return names.drafter_method(choice.stem)


def _file(choice: Choice) -> str:
    return choice.files[0].name


def _command(target: Part, draft: str) -> str:
    model = target.name if target.listing is not None else target.origin
    return f"localspec pull {quote(model)} --draft {quote(draft)}"


# ---- in the catalogue


def _listed(
    target: Part, hub: Hub, store: Store, catalog: Catalog, reach: Reach, taken: str
) -> Iterator[tuple[Finding, Part | None]]:
    """A finding for every pair of the catalogue whose target this is, the most promising first; see `_beside`."""
    called = (target.name, _file(target.choice).rpartition("/")[2])
    pairs = {pair.draft: pair for entry in catalog.like(called) for pair in catalog.drafts_for(entry.name)}
    mixture = target.header.number("expert_count") > 0
    for pair in sorted(pairs.values(), key=lambda pair: rank(pair.method, mixture)):
        entry = catalog.models[pair.draft]
        if entry.bundled:
            continue
        proposed = Finding(entry.name, pair.method, False, "", entry.bytes, _command(target, entry.name))
        if taken:
            yield replace(proposed, why=f"{taken} comes first"), None
        elif _owner(entry.repository) not in _owners(target):
            yield replace(proposed, why=f"{entry.repository} is neither the model's repository nor its maker's"), None
        else:
            finding, part = _of_pair(target, pair, entry, hub, store, reach)
            taken = finding.method if part else ""
            yield finding, part


def _of_pair(
    target: Part, pair: PairEntry, entry: ModelEntry, hub: Hub, store: Store, reach: Reach
) -> tuple[Finding, Part | None]:
    found, part = _tried(target, lambda: part_of(wish_for(entry, "draft"), hub, store), reach, pair.method == "draft")
    finding = replace(found, name=entry.name, method=found.method or pair.method, bytes=entry.bytes)
    if part is None:
        return finding, None
    why = f"{finding.why}, of the catalogue, from {entry.repository}"
    return replace(finding, why=why, bytes=part.choice.size, command=_command(target, entry.name)), part


def _owners(target: Part) -> set[str]:
    """Owner of the model's repository, and its maker as the hub's tags and the header say."""
    texts = [] if target.listing is None else [target.origin, *target.listing.made_from]
    header = target.header
    for start in ("general", *(f"general.base_model.{number}" for number in range(_MOST_BASES))):
        texts += [header.text(f"{start}.organization"), header.text(f"{start}.repo_url")]
    return {_owner(text) for text in texts if text}


def _owner(text: str) -> str:
    """Who a repository, its address or an organisation belongs to, in lower case without marks between words."""
    return re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("https://huggingface.co/").partition("/")[0])
