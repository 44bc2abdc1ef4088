"""From a name to installed models: planned from headers read by range, then fetched, checked, listed; and what drafts
for a model: layers inside its file, files beside it, the catalogue, and models of this machine.

`search` is for a model that is pulled, `suggest` for one that is here or only named. Names order what is read; headers
decide. What is from neither the same owner nor the model's maker is only proposed, with its command.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TypeAlias

from rich.filesize import decimal

from localspec import paths
from localspec.errors import DownloadError, LocalspecError, ModelError, UsageError
from localspec.gguf import Header, read_header, read_parts, split_of
from localspec.machine import Place, ram, total_ram
from localspec.methods import HEADS, OF_ITS_OWN
from localspec.models.facts.heads import draft_kind, nextn_layers
from localspec.models.facts.pairing import Match, check, irreversible, match, misfit, rank, refusal
from localspec.models.facts.shape import HeadShape, default_context, gguf_head, shape_of
from localspec.models.hub import names
from localspec.models.hub.download import PullPart, Report, Wish, chosen, fetch_all, part_of, wish_for
from localspec.models.hub.hub import Hub
from localspec.models.hub.names import RepositoryModel, RepositoryName, Url
from localspec.models.installed.catalog import Catalog, ModelEntry
from localspec.models.installed.store import Entry, Ownership, Store, StoredFile
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings, MemoryPlan

Reach: TypeAlias = Callable[[Sequence[Header], Sequence[Header]], str]
"""Why a head, by its headers, cannot be run on a target, by its own; "" = it can, for all that is known."""
_BEST_BITS = 8  # of a weight: heads below it guess worse
_FEWEST_BITS = 4  # heads below it are not taken unasked
_MOST_BASES = 4  # models that a header may say it was made from, of which notice is taken
_MOST_READ = 6  # drafters of one repository whose headers are read: each may take some MB


@dataclass(frozen=True, slots=True)
class DrafterFinding:
    """A place where a drafter was looked for, and what came of it."""

    name: str  # file of the repository, or model of the catalogue
    method: str  # of `heads.DraftKind`; before its header was read, as its name or the catalogue says
    taken: bool
    why: str  # why it was taken or not: a clause without a full stop
    bytes: int = 0  # of its files; 0 = unknown, or inside the model
    command: str = ""  # what pulls it with the model, asked or not; "" = it cannot draft, or is inside

    def line(self) -> str:
        size = f" ({decimal(self.bytes)})" if self.bytes else ""
        way = f" ({self.command})" if self.command and not self.taken else ""
        return f"{self.name}{size} {'taken' if self.taken else 'not taken'}: {self.why}{way}"


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    method: str
    bytes: int
    draft: str  # what `--draft` takes
    read: Callable[[], PullPart]
    origin: str  # where it is from, as what is said of it ends if it is taken
    away: str = ""  # why it is never taken unasked
    unfit: str = ""  # why it is not taken where nothing is yet
    beside: bool = False


def search(
    target: PullPart, hub: Hub, store: Store, catalog: Catalog, reach: Reach = lambda target, head: ""
) -> tuple[tuple[DrafterFinding, ...], PullPart | None]:
    """Looks for the drafter of a model inside, beside, and in the catalogue; the first that fits is taken, and is to be
    fetched with the model. What cannot be reached or read is a finding, never an error: the model does without."""
    own = target.choice.files[0].name
    if why := irreversible(target.header):
        return (DrafterFinding(own, "", False, why),), None
    part: PullPart | None = None
    found, read = list[DrafterFinding](), 0
    if inside := nextn_layers(target.headers):
        cannot = reach(target.headers, target.headers)
        why = cannot or f"{inside} layer(s) of multi-token prediction inside, nothing to fetch"
        found.append(DrafterFinding(own, OF_ITS_OWN, not cannot, why))
    for one in (*_beside(target, hub), *_listed(target, hub, store, catalog)):
        taken = next((finding.method for finding in found if finding.taken), "")
        why = one.away or (f"{taken} comes first" if taken else one.unfit)
        if one.beside and read == _MOST_READ:
            why = why or f"{read} others were read"
        command = f"localspec pull {quote(target.name if target.listing else target.origin)} --draft {quote(one.draft)}"
        finding, is_whole = DrafterFinding(one.name, one.method, False, why, one.bytes), one.method == "draft"
        if why:
            found.append(replace(finding, command=command))
            continue
        read += one.beside
        try:
            candidate = one.read()
            kind, why = draft_kind(candidate.header), refusal(target.headers, candidate.header, is_whole)
            why = why or ("" if is_whole else reach(target.headers, candidate.headers))
            finding = replace(finding, method=kind.method, why=why)
        except LocalspecError as error:
            finding = replace(finding, why=str(error).rstrip("."))
        if not finding.why:
            part, block = candidate, candidate.header.number("block_size")
            why = kind.sentence + (f" of blocks of {block}" if block > 0 else "") + f", {one.origin}"
            finding = replace(finding, taken=True, why=why, bytes=part.choice.size, command=command)
        found.append(finding)
    return tuple(found), part


def _beside(target: PullPart, hub: Hub) -> Iterator[_Candidate]:
    """The drafters of the model's repository, the most promising first: of several quantisations the best."""
    if (listing := target.listing) is None:
        return
    model, home = names.family(target.choice), names.folder_of(target.choice)

    def group_of(choice: RepositoryModel) -> tuple[bool, int, int, bool, str]:
        folder, family = names.folder_of(choice), names.family(choice)
        is_above = not folder or f"{home}/".startswith(f"{folder}/")
        order = rank(names.drafter_method(choice.stem), _is_mixture(target.header))
        return not is_above, order, -len(folder), model not in family, f"{folder}/{family}"

    wanted = max(_BEST_BITS, _bits(target.choice.quant))
    for key, group in groupby(sorted(names.drafters(listing.files), key=group_of), group_of):
        by_bits = sorted(group, key=lambda one: (abs((_bits(one.quant) or _BEST_BITS) - wanted), one.size, one.stem))
        choice, *rest = by_bits
        file, is_coarse = choice.files[0].name, 0 < _bits(choice.quant) < _FEWEST_BITS
        wish = Wish(RepositoryName(listing.repository, file=file), "draft", f"{listing.repository}/{file}")
        yield _Candidate(
            file,
            names.drafter_method(choice.stem),
            choice.size,
            wish.name,
            partial(chosen, wish, listing, choice, hub),
            "beside the model" + (f", the best of {1 + len(rest)} quantisations" if rest else ""),
            "it lies in another folder" if key[0] else "",
            f"{choice.quant} is too coarse for a head" if is_coarse else "",
            beside=True,
        )


def _bits(quant: str) -> int:
    """Bits of a weight by the name of a quantisation, roughly; 0 = the name does not say."""
    found = re.search(r"\d+", quant.removeprefix("UD-"))
    return int(found[0]) if found else 0


def _is_mixture(header: Header) -> bool:
    return header.number("expert_count") > 0


def _listed(target: PullPart, hub: Hub, store: Store, catalog: Catalog) -> Iterator[_Candidate]:
    """The drafts of the catalogue's pairs whose target this is, the most promising first."""
    called = (target.name, target.choice.files[0].name.rpartition("/")[2])
    pairs = {pair.draft: pair for entry in catalog.like(called) for pair in catalog.drafts_for(entry.name)}
    texts = [] if target.listing is None else [target.origin, *target.listing.made_from]
    for start in ("general", *(f"general.base_model.{number}" for number in range(_MOST_BASES))):
        texts += [target.header.text(f"{start}.organization"), target.header.text(f"{start}.repo_url")]
    owners = {_owner(text) for text in texts if text}
    for pair in sorted(pairs.values(), key=lambda pair: rank(pair.method, _is_mixture(target.header))):
        entry = catalog.models[pair.draft]
        if entry.bundled:
            continue
        is_foreign = _owner(entry.repository) not in owners
        yield _Candidate(
            entry.name,
            pair.method,
            entry.bytes,
            entry.name,
            lambda entry=entry: part_of(wish_for(entry, "draft"), hub, store),  # type: ignore[misc]
            f"of the catalogue, from {entry.repository}",
            unfit=f"{entry.repository} is neither the model's repository nor its maker's" if is_foreign else "",
        )


def _owner(text: str) -> str:
    """Who a repository, its address or an organisation belongs to, in lower case without marks between words."""
    return re.sub(r"[^a-z0-9]", "", text.lower().removeprefix("https://huggingface.co/").partition("/")[0])


# ---- for a model that is here, or only named

_MOST_BYTES = 0.7  # a draft larger than this share of its target cannot pay
_MOST_NEIGHBOURS = 200


@dataclass(frozen=True, slots=True)
class Suggestion:
    draft: str  # name in the catalogue or of an installed model, or a file; the target's own if it drafts itself
    method: str
    installed: bool
    bytes: int  # 0 = unknown
    why: str
    command: str  # what to type next
    warnings: tuple[str, ...] = ()
    doubt: str = ""


def suggest(
    target: Header | Sequence[Header] | None,
    names: Iterable[str],
    catalog: Catalog,
    installed: dict[str, Path],
    called: str = "",
) -> list[Suggestion]:
    """Drafts for a `target`, installed ones first, then by size; None = it is not on this machine, so that only the
    catalogue can tell. `names`: of it in the catalogue, of its files, or `user/repo[:quant]`. Its other quantisations
    have the same drafts; where there are none, models of the same family tell. `installed`: by name, a file also by its
    path. `called`: what the user types for the target; "" = its path."""
    known, parts = set(names), [target] if isinstance(target, Header) else list(target or ())
    called = quote(called or (str(parts[0].path) if parts else "TARGET"))
    found: dict[str, Suggestion] = {}
    for entry in catalog.like(known):
        for pair in catalog.drafts_for(entry.name):
            draft = catalog.models[pair.draft]
            path = draft.path if draft.bundled else installed.get(draft.name)
            size = path.stat().st_size if path is not None and path.exists() else draft.bytes
            use = f"localspec run --target {called} --draft {draft.name}"
            fetch = f"localspec pull {draft.name} --role draft && {use}"
            if entry.is_called(known):
                use, fetch = f"localspec run --target {pair.name}", f"localspec pull {pair.name}"
            way = (path is not None, size, pair.why, fetch if path is None else use)
            found[draft.name] = Suggestion(draft.name, pair.method, *way, (), pair.doubt)
    found = found or {one.draft: one for one in _of_family(parts, known, catalog, installed, called)}
    if parts:
        if irreversible(parts[0]):
            return []
        own = str(parts[0].path)
        if parts[0].path.exists() and (inside := nextn_layers(parts[0])):
            why = f"{inside} layer(s) of multi-token prediction inside its own file, used unasked"
            found[own] = Suggestion(own, OF_ITS_OWN, True, 0, why, f"localspec run --target {called}")
        for name, file in installed.items():
            if name not in found and (one := _fitting(parts, name, file, called)) is not None:
                found[name] = one
    mixture = bool(parts) and _is_mixture(parts[0])
    return sorted(found.values(), key=lambda one: (not one.installed, rank(one.method, mixture), one.bytes))


def _of_family(
    target: Sequence[Header], names: set[str], catalog: Catalog, installed: dict[str, Path], called: str
) -> Iterator[Suggestion]:
    """Draft models of the catalogue that are smaller than the target, and of its family or of the one it was made from.
    Of one that is here the tokenizer decides; of others nothing but names is known before they are fetched."""
    size = sum(part.parameters for part in target) or max(map(parameters_of, names), default=0.0)
    own, bases = [*names], list[str]()  # families that it may be of: its own, then those that it was made from
    for header in target[:1]:
        parts = (header.text(f"general.{part}") for part in ("basename", "size_label", "finetune"))
        own += [header.text("general.name"), "-".join(filter(None, parts))]
        keys = (f"general.base_model.{number}.{key}" for number in range(_MOST_BASES) for key in ("name", "repo_url"))
        bases = [header.text(key) for key in keys]
    for family in filter(None, dict.fromkeys(map(family_of, [*own, *bases]))):
        entries = dict[str, ModelEntry]()  # drafts of the family, and those that draft for a target of it
        for entry in catalog.models.values():
            if family_of(entry.file or entry.repository) == family:
                pairs = [pair.draft for pair in catalog.drafts_for(entry.name) if pair.method == "draft"]
                drafts = [*([entry.name] if entry.role == "draft" else []), *pairs]
                entries |= {name: catalog.models[name] for name in drafts}
        for name, draft in entries.items():
            is_large = parameters_of(draft.file or draft.repository) > _MOST_BYTES * size
            if is_large or draft.bundled or name in installed:  # of those that are here the header tells: `_fitting`
                continue
            why = f"it is small and drafts for models of the target's family, {family}"
            command = f"localspec pull {name} --role draft && localspec run --target {called} --draft {name}"
            note = "tokenizers are compared once it is here"
            yield Suggestion(name, "draft", False, draft.bytes, why, command, (note,), draft.doubt)
        if entries:
            return


def _fitting(target: Sequence[Header], name: str, path: Path, called: str) -> Suggestion | None:
    """A model on this machine, if it is small enough and its tokenizer fits; files that cannot be read are not."""
    first, size = target[0], sum(part.tensor_bytes for part in target)
    try:
        draft, *more = read_parts(path)
        draft_size = sum(part.tensor_bytes for part in (draft, *more))
        same = first.path.exists() and path.samefile(first.path)  # a target on the hub has no file here
        if same or not (draft_size <= _MOST_BYTES * size or draft_kind(draft).is_head) or misfit(target, draft):
            return None
        if not (found := match(first, draft)).fits:
            return None
    except (LocalspecError, OSError):
        return None
    why = f"its tokenizer fits, and the target is {size / max(1, draft_size):.1f} times as large"
    command = f"localspec run --target {called} --draft {quote(name)}"
    file_bytes = sum(part.file_bytes for part in (draft, *more))
    return Suggestion(name, found.method, True, file_bytes, why, command, found.warnings)


def candidates(path: Path | None = None, store: Store | None = None) -> dict[str, Path]:
    """Sound models on this machine by name, the bundled ones included; and what lies beside a file."""
    found = {entry.name: entry.path for entry in Catalog.load().models.values() if entry.bundled}
    found |= {entry.name: entry.path for entry in (store or Store()).entries() if not entry.fault}
    return found if path is None else found | neighbours(path, found.values())


def neighbours(path: Path, known: Iterable[Path] = ()) -> dict[str, Path]:
    """Other GGUF files in the folder of a file, and drafters by their names in the one above, but `known`; by path."""
    taken = {paths.real(file) for file in known}
    try:
        files = sorted(path.parent.glob("*.gguf"))
        files += [file for file in sorted(path.parent.parent.glob("*.gguf")) if names.drafter_method(file.stem)]
    except OSError:
        return {}
    first = (file for file in files[:_MOST_NEIGHBOURS] if split_of(file.name).part == 1)
    others = (file for file in first if file.is_file() and file != path)
    return {str(file): file for file in others if paths.real(file) not in taken}


# Models of one family: the same base and training in several sizes, so that a small one can draft for a large one.

_SIZE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)([bm])")  # a number of parameters as names write it: 0.5b, 135m, 8x7b
_ACTIVE = re.compile(r"[ae]\d+(?:\.\d+)?b")  # those in use for a token: a3b, e2b


def family_of(name: str) -> str:
    """A model's name without its size, such as "qwen2.5-coder-instruct"; "" for a name without a size."""
    rest = [word for word in _words(name) if not (_SIZE.fullmatch(word) or _ACTIVE.fullmatch(word))]
    return "-".join(rest) if rest and parameters_of(name) else ""


def parameters_of(name: str) -> float:
    found = next(filter(None, map(_SIZE.fullmatch, _words(name))), None)
    return 0.0 if found is None else int(found[1] or 1) * float(found[2]) * (1e9 if found[3] == "b" else 1e6)


def _words(name: str) -> list[str]:
    return re.split(r"[-_]+", names.base_name(re.sub(r"\s+", "-", name.strip())))


_LOG = logging.getLogger("localspec")
SPARE_DISK = 256 << 20  # bytes of the disk that a pull leaves free


@dataclass(frozen=True, slots=True)
class PullPlan:
    parts: tuple[PullPart, ...]  # the target, and the draft that goes with it
    match: Match | None  # None = there is no pair to check
    memory: MemoryPlan  # whether it will fit memory once loaded
    missing_bytes: int
    folder: Path  # where the files go: the Hugging Face cache, or the data folder for plain addresses
    free_bytes: int  # on its disk; the smaller number where both folders are used
    notes: tuple[str, ...] = ()  # sentences about what was chosen, and why
    drafters: tuple[DrafterFinding, ...] = ()  # where a drafter was looked for, and what came of it

    @property
    def is_pair(self) -> bool:
        return len(self.parts) == 2


def wishes(
    text: str, hub: Hub, *, draft: str = "", role: str = "target", revision: str = "", catalog: Catalog | None = None
) -> list[Wish]:
    """What `localspec pull TEXT` asks for: a pair or model of the catalogue, `user/repo[:quant]`, or an address."""
    catalog = Catalog.load() if catalog is None else catalog
    pair = catalog.pairs.get(text)
    if pair is None:
        found = [_one(text, hub, catalog, role, revision)]
    else:
        found = [wish_for(catalog.models[pair.target], "target", revision)]
        found += [] if draft else [wish_for(catalog.models[pair.draft], "draft")]
    return [*found, _one(draft, hub, catalog, "draft", "")] if draft else found


def _one(text: str, hub: Hub, catalog: Catalog, role: str, revision: str) -> Wish:
    catalog.check_local(text)
    if text in catalog.models:
        return wish_for(catalog.models[text], role, revision)
    source = names.parse(text, (hub.host,))
    if source is None:
        raise ModelError(f"{text!r} is no model or pair, no user/repo[:quant] and no address.", catalog.nearest(text))
    if isinstance(source, Url):
        if revision:
            raise UsageError(f"--revision is {revision!r}; a plain address has no revisions.")
        return Wish(source, role)
    return Wish(source, role, revision=revision or source.revision)


def make_plan(
    wanted: Sequence[Wish],
    hub: Hub,
    store: Store,
    context: int | None = None,
    places: Sequence[Place] = (),
    cross_tokenizer: bool = False,
    catalog: Catalog | None = None,
    reach: Reach = lambda target, head: "",
) -> PullPlan:
    """Asks the hub, reads the headers by range, checks pair and memory; nothing is stored. Where no quantisation was
    named and the usual one does not fit memory, the largest that does is chosen. `context`: tokens to plan memory for;
    None = as many as it has by default here. `places`: none = the CPU's memory. `catalog`: where a drafter is looked
    for, too, if only a target is wanted; None = none is looked for at all. `reach`: heads that cannot be
    run, which are not taken."""
    planned = partial(_planned, hub, context, places or [ram()], cross_tokenizer)
    plan = planned(*(part_of(wish, hub, store) for wish in wanted))
    if not plan.memory.fits:
        plan = _smaller(plan, wanted[0], hub, planned)
    if catalog is None or len(wanted) > 1 or wanted[0].role != "target":
        return plan
    found, part = search(plan.parts[0], hub, store, catalog, reach)
    if part is None:
        return replace(plan, drafters=found)
    both, why, more = planned(*plan.parts, part), "", ""
    if not both.memory.fits:
        why = "beside the model it does not fit the memory that is free now"
    elif both.missing_bytes + SPARE_DISK > both.free_bytes:
        why = f"the disk has no room for it in {both.folder}"
    added = both.memory.total_bytes - plan.memory.total_bytes
    if added > 0 and both.memory.context == plan.memory.context:
        more = f", {decimal(added)} more memory"
    noted = (replace(one, taken=not why, why=why or one.why + more) if one.taken else one for one in found)
    return replace(plan if why else both, notes=plan.notes, drafters=tuple(noted))


def _smaller(plan: PullPlan, wish: Wish, hub: Hub, planned: Callable[..., PullPlan]) -> PullPlan:
    """A plan that does not fit, with the largest quantisation that does: taken where none was named, else said."""
    target, *rest = plan.parts
    short = max((plan.memory.missing(place) for place in plan.memory.places), default=0)
    kind, most = names.family(target.choice), target.choice.size - short
    fits = [other for other in target.others if other.size <= most and names.family(other) == kind]
    smaller = max(fits, key=lambda other: other.size, default=None)
    if smaller is None:
        note = "No quantisation in this repository fits the memory that is free now"
        if not (rest and planned(target).memory.fits):
            return replace(plan, notes=(f"{note}.",))
        way = f"the target alone does: localspec pull {target.origin}:{target.choice.quant}"
        return replace(plan, notes=(f"{note} beside its draft; {way}",))
    if isinstance(wish.source, Url) or not (wish.name or not (wish.source.quant or wish.source.file)):
        return replace(plan, notes=(f"{smaller.quant} would fit: localspec pull {target.origin}:{smaller.quant}",))
    assert target.listing is not None
    label = target.choice.quant or target.choice.stem
    note = f"{label} does not fit the memory that is free now; {smaller.quant} is the largest that does."
    return replace(planned(chosen(wish, target.listing, smaller, hub), *rest), notes=(note,))


def _planned(
    hub: Hub, context: int | None, places: Sequence[Place], cross_tokenizer: bool, *parts: PullPart
) -> PullPlan:
    target, draft = parts[0], parts[1] if len(parts) == 2 else None
    found = check(target.header, draft.header, cross_tokenizer=cross_tokenizer) if draft else None
    heads: tuple[HeadShape, ...] = ()
    drafts = draft.headers if draft else None
    if draft and found and found.method in HEADS:
        heads, drafts = (gguf_head(draft.headers, found.method, target.header),), None
    small = None if drafts is None else shape_of(drafts)
    usual = default_context(shape_of(target.headers), small, total_bytes=total_ram(places))
    settings = FitSettings(context=context or usual, heads=heads)
    memory = fit.choose(target.headers, drafts, settings, places, cache_types=())
    folders = {transfer.folder if part.listing is None else hub.cache for part in parts for transfer in part.transfers}
    folder = min(sorted(folders), key=paths.free_bytes)
    return PullPlan(parts, found, memory, sum(part.missing(hub) for part in parts), folder, paths.free_bytes(folder))


def check_disk(plan: PullPlan) -> None:
    if plan.missing_bytes and plan.missing_bytes + SPARE_DISK > plan.free_bytes:
        missing, free = decimal(plan.missing_bytes), decimal(plan.free_bytes)
        hint = "Make room, take a smaller quantisation, or another disk: HF_HOME, for plain addresses LOCALSPEC_DATA."
        raise DownloadError(f"There is no room: {missing} to load, {free} free in {plan.folder}.", hint)


def install(
    plan: PullPlan,
    hub: Hub,
    store: Store,
    report: Report,
    stop: threading.Event | None = None,
    load_head: Callable[[Path, Header], object] | None = None,
) -> list[Entry]:
    """Fetches what is missing, checks everything, and lists it: all parts or none. The target remembers its draft,
    but not a head that was found unasked and cannot be run: `load_head` reads a head's file for a target, and raises
    LocalspecError if it cannot (None = none is tried). `stop` ends it when set."""
    check_disk(plan)
    transfers = [transfer for part in plan.parts for transfer in part.transfers]
    ours = store.claim([transfer.link(hub) for transfer in transfers])
    fetched = iter(fetch_all(transfers, hub, report, stop))
    entries = []
    for part in plan.parts:
        made: Ownership = "copy" if part.listing is None else "link"
        files = []
        for path, sha256 in (next(fetched) for _ in part.transfers):
            read_header(path)
            files.append(StoredFile.of(path, sha256, made if path in ours else "foreign"))
        entry = Entry(
            part.name,
            tuple(files),
            role="head" if draft_kind(part.header).is_head else part.role,
            source="hub" if part.listing else "url",
            origin=part.origin,
            revision=part.listing.commit if part.listing else "",
            quant=part.choice.quant or part.header.quantisation,
            architecture=part.header.architecture,
            licence=part.licence or part.header.text("general.license"),
        )
        entries.append(entry)
        if part.listing is not None and not hub.offline:
            hub.remember(part.listing)
    if plan.is_pair:
        target, draft = entries
        try:
            if load_head is not None and plan.drafters and draft.role == "head":  # found, not asked for
                load_head(draft.path, read_header(target.path))
            entries[0] = replace(target, draft=draft.name)
        except LocalspecError as error:
            _LOG.warning("%s It is installed and not used.", error)
    return store.add(*entries)
