"""From a name to installed models: planned from headers read by range, then fetched, checked and listed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.filesize import decimal

from localspec import paths
from localspec.errors import DownloadError, LocalspecError, ModelError, UsageError
from localspec.gguf import Header, read_header
from localspec.machine import Place, ram, total_ram
from localspec.methods import HEADS
from localspec.models.facts import pairing
from localspec.models.facts.heads import draft_kind
from localspec.models.facts.shape import default_context, gguf_head, shape_of
from localspec.models.hub import names, sidecar
from localspec.models.hub.download import Fetched, Report, fetch_all
from localspec.models.hub.hub import Hub, Listing
from localspec.models.hub.names import Choice, Url
from localspec.models.hub.sidecar import Finding, Part, Reach, Wish, chosen, part_of, wish_for
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Ownership, Store, StoredFile
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings, MemoryPlan

_LOG = logging.getLogger("localspec")
SPARE_DISK = 256 << 20
"""Bytes of the disk that a pull leaves free."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a pull would do."""

    parts: tuple[Part, ...]
    """The target, and the draft that goes with it."""
    match: pairing.Match | None
    """None = there is no pair to check."""
    memory: MemoryPlan
    """Whether it will fit memory once loaded."""
    missing_bytes: int
    folder: Path
    """Where the files go: the Hugging Face cache, or the data folder for plain addresses."""
    free_bytes: int
    """On its disk; the smaller number where both folders are used."""
    notes: tuple[str, ...] = ()
    """Sentences about what was chosen, and why."""
    drafters: tuple[Finding, ...] = ()
    """Where a drafter was looked for, and what came of it."""

    @property
    def is_pair(self) -> bool:
        return len(self.parts) == 2


def wishes(
    text: str, hub: Hub, *, draft: str = "", role: str = "target", revision: str = "", catalog: Catalog | None = None
) -> list[Wish]:
    """What `localspec pull TEXT` asks for: a pair or model of the catalogue, `user/repo[:quant]`, or an address."""
    catalog = Catalog.load() if catalog is None else catalog
    pair = catalog.pairs.get(text)
    if pair is not None:
        found = [wish_for(catalog.models[pair.target], "target", revision)]
        found.append(_one(draft, hub, catalog, "draft", "") if draft else wish_for(catalog.models[pair.draft], "draft"))
        return found
    found = [_one(text, hub, catalog, role, revision)]
    if draft:
        found.append(_one(draft, hub, catalog, "draft", ""))
    return found


def _one(text: str, hub: Hub, catalog: Catalog, role: str, revision: str) -> Wish:
    catalog.check_local(text)
    entry = catalog.models.get(text)
    if entry is not None:
        return wish_for(entry, role, revision)
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
) -> Plan:
    """Asks the hub, reads the headers by range, checks pair and memory; nothing is stored.

    Where no quantisation was named and the usual one does not fit memory, the largest that does is chosen.

    Args:
        wanted: the target, and its draft if there is one.
        hub: where from.
        store: where plain downloads go.
        context: tokens to plan memory for; None = what the target was trained for, at most 4,096.
        places: devices to plan for; none = the CPU's memory.
        cross_tokenizer: whether the draft may have another tokenizer.
        catalog: where a drafter is looked for, after the target's own file and repository, if a target is all that is
            wanted; None = none is looked for.
        reach: says which heads cannot be run; those are not taken.
    """
    places = places or [ram()]
    plan = _fitting(wanted, hub, store, context, places, cross_tokenizer)
    if catalog is None or len(wanted) > 1 or wanted[0].role != "target":
        return plan
    found = sidecar.search(plan.parts[0], hub, store, catalog, reach)
    if found.part is None:
        return replace(plan, drafters=found.findings)
    both = _planned((*plan.parts, found.part), hub, context, places)
    if not both.memory.fits:
        found = found.without("beside the model it does not fit the memory that is free now")
    elif both.missing_bytes + SPARE_DISK > both.free_bytes:
        found = found.without(f"the disk has no room for it in {both.folder}")
    else:
        more = both.memory.total_bytes - plan.memory.total_bytes
        if more > 0 and both.memory.context == plan.memory.context:
            found = found.noting(f"{decimal(more)} more memory")
        plan = replace(both, notes=plan.notes)
    return replace(plan, drafters=found.findings)


def _fitting(
    wanted: Sequence[Wish],
    hub: Hub,
    store: Store,
    context: int | None,
    places: Sequence[Place],
    cross_tokenizer: bool,
) -> Plan:
    """The plan of what is wanted, with the largest quantisation that fits memory where none was named."""
    parts = tuple(part_of(wish, hub, store) for wish in wanted)
    plan = _planned(parts, hub, context, places, cross_tokenizer)
    if plan.memory.fits:
        return plan
    smaller = _that_fits(parts[0], plan.memory)
    label = parts[0].choice.quant or parts[0].choice.stem
    if smaller is None:
        return replace(plan, notes=(_hopeless(plan, hub, context, places),))
    if not _is_open(wanted[0]):
        return replace(plan, notes=(f"{smaller.quant} would fit: localspec pull {parts[0].origin}:{smaller.quant}",))
    parts = (chosen(wanted[0], _listing(parts[0]), smaller, hub), *parts[1:])
    note = f"{label} does not fit the memory that is free now; {smaller.quant} is the largest that does."
    return replace(_planned(parts, hub, context, places, cross_tokenizer), notes=(note,))


def _hopeless(plan: Plan, hub: Hub, context: int | None, places: Sequence[Place]) -> str:
    """What to do where no quantisation fits."""
    nothing = "No quantisation in this repository fits the memory that is free now"
    target = plan.parts[0]
    if plan.is_pair and _planned((target,), hub, context, places).memory.fits:
        return (
            f"{nothing} beside its draft; the target alone does: localspec pull {target.origin}:{target.choice.quant}"
        )
    return f"{nothing}."


def _planned(
    parts: tuple[Part, ...], hub: Hub, context: int | None, places: Sequence[Place], cross_tokenizer: bool = False
) -> Plan:
    target, draft = parts[0], parts[1] if len(parts) == 2 else None
    match = pairing.check(target.header, draft.header, cross_tokenizer=cross_tokenizer) if draft else None
    settings, drafts = FitSettings(), draft.headers if draft else None
    if draft and match and match.method in HEADS:
        head = gguf_head(draft.headers, match.method, target.header)
        settings, drafts = replace(settings, heads=(head,)), None
    small = None if drafts is None else shape_of(drafts)
    usual = default_context(shape_of(target.headers), small, total_bytes=total_ram(places))
    settings = replace(settings, context=context or usual)
    memory = fit.choose(target.headers, drafts, settings, places, cache_types=())
    folders = {transfer.folder if part.listing is None else hub.cache for part in parts for transfer in part.transfers}
    folder = min(sorted(folders), key=paths.free_bytes)
    return Plan(parts, match, memory, sum(part.missing(hub) for part in parts), folder, paths.free_bytes(folder))


def _is_open(wish: Wish) -> bool:
    """Whether the wish leaves the quantisation to us."""
    if isinstance(wish.source, Url):
        return False
    return bool(wish.name) or not (wish.source.quant or wish.source.file)


def _that_fits(part: Part, memory: MemoryPlan) -> Choice | None:
    """The largest quantisation whose weights leave everything else its room."""
    short = max((memory.missing(place) for place in memory.places), default=0)
    kind = names.family(part.choice)
    fits = [other for other in part.others if other.size <= part.choice.size - short and names.family(other) == kind]
    return max(fits, key=lambda other: other.size, default=None)


def _listing(part: Part) -> Listing:
    assert part.listing is not None
    return part.listing


def check_disk(plan: Plan) -> None:
    """Refuses what does not fit the disk.

    Raises:
        DownloadError: says how many bytes are missing.
    """
    if plan.missing_bytes and plan.missing_bytes + SPARE_DISK > plan.free_bytes:
        raise DownloadError(
            f"There is no room: {decimal(plan.missing_bytes)} to load, {decimal(plan.free_bytes)} free "
            f"in {plan.folder}.",
            "Make room, take a smaller quantisation, or another disk: HF_HOME, for plain addresses LOCALSPEC_DATA.",
        )


def install(
    plan: Plan,
    hub: Hub,
    store: Store,
    report: Report,
    stop: threading.Event | None = None,
    load_head: Callable[[Path, Header], object] | None = None,
) -> list[Entry]:
    """Fetches what is missing, checks everything, and lists it: all parts or none.

    The target remembers its draft. A head that was found unasked, and that turns out not to load, is not remembered.

    Args:
        plan: what to fetch.
        hub: where from.
        store: the index it goes into.
        report: called with progress, from several threads.
        stop: ends it when set.
        load_head: reads a head's file for a target, and raises LocalspecError if it cannot draft; None = not tried.
    """
    check_disk(plan)
    transfers = [transfer for part in plan.parts for transfer in part.transfers]
    ours = store.claim([transfer.link(hub) for transfer in transfers])
    fetched = iter(fetch_all(transfers, hub, report, stop))
    entries = []
    for part in plan.parts:
        files = [next(fetched) for _ in part.transfers]
        for file in files:
            read_header(file.path)
        entries.append(_entry(part, files, ours))
        if part.listing is not None and not hub.offline:
            hub.remember(part.listing)
    if plan.is_pair and _loads(plan, entries, load_head):
        entries[0] = replace(entries[0], draft=entries[1].name)
    return store.add(*entries)


def _loads(plan: Plan, entries: Sequence[Entry], load_head: Callable[[Path, Header], object] | None) -> bool:
    """False for a head that was found, not asked for, and cannot be loaded."""
    target, draft = entries
    if load_head is None or not plan.drafters or draft.role != "head":
        return True
    try:
        load_head(draft.path, read_header(target.path))
    except LocalspecError as error:
        _LOG.warning("%s It is installed and not used.", error)
        return False
    return True


def _entry(part: Part, files: Sequence[Fetched], ours: set[Path]) -> Entry:
    made: Ownership = "copy" if part.listing is None else "link"
    stored = tuple(StoredFile.of(file.path, file.sha256, made if file.path in ours else "foreign") for file in files)
    return Entry(
        part.name,
        stored,
        role="head" if draft_kind(part.header).is_head else part.role,
        source="hub" if part.listing else "url",
        origin=part.origin,
        revision=part.listing.commit if part.listing else "",
        quant=part.choice.quant or part.header.quantisation,
        architecture=part.header.architecture,
        licence=part.licence or part.header.text("general.license"),
    )
