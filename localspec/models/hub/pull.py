"""From a name to installed models: planned from headers read by range, then fetched, checked and listed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.filesize import decimal

from localspec import paths
from localspec.errors import DownloadError, LocalspecError, ModelError, UsageError
from localspec.gguf import Header, read_header
from localspec.machine import Place, ram, total_ram
from localspec.methods import HEADS
from localspec.models.facts import pairing
from localspec.models.facts.heads import draft_kind
from localspec.models.facts.shape import HeadShape, default_context, gguf_head, shape_of
from localspec.models.hub import names
from localspec.models.hub.download import PullPart, Report, Wish, chosen, fetch_all, part_of, wish_for
from localspec.models.hub.drafters import DrafterFinding, Reach, search
from localspec.models.hub.hub import Hub
from localspec.models.hub.names import Url
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Ownership, Store, StoredFile
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings, MemoryPlan

_LOG = logging.getLogger("localspec")
SPARE_DISK = 256 << 20  # bytes of the disk that a pull leaves free


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What a pull would do."""

    parts: tuple[PullPart, ...]  # the target, and the draft that goes with it
    match: pairing.Match | None  # None = there is no pair to check
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
    """Asks the hub, reads the headers by range, checks pair and memory; nothing is stored.

    Where no quantisation was named and the usual one does not fit memory, the largest that does is chosen.

    Args:
        wanted: the target, and its draft if there is one.
        context: tokens to plan memory for; None = as many as it has by default here.
        places: devices to plan for; none = the CPU's memory.
        catalog: where a drafter is looked for, after the target's own file and repository, if a target is all that is
            wanted; None = none is looked for.
        reach: says which heads cannot be run; those are not taken.
    """
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
    match = pairing.check(target.header, draft.header, cross_tokenizer=cross_tokenizer) if draft else None
    heads: tuple[HeadShape, ...] = ()
    drafts = draft.headers if draft else None
    if draft and match and match.method in HEADS:
        heads, drafts = (gguf_head(draft.headers, match.method, target.header),), None
    small = None if drafts is None else shape_of(drafts)
    usual = default_context(shape_of(target.headers), small, total_bytes=total_ram(places))
    settings = FitSettings(context=context or usual, heads=heads)
    memory = fit.choose(target.headers, drafts, settings, places, cache_types=())
    folders = {transfer.folder if part.listing is None else hub.cache for part in parts for transfer in part.transfers}
    folder = min(sorted(folders), key=paths.free_bytes)
    return PullPlan(parts, match, memory, sum(part.missing(hub) for part in parts), folder, paths.free_bytes(folder))


def check_disk(plan: PullPlan) -> None:
    """Raises DownloadError: it does not fit the disk."""
    if plan.missing_bytes and plan.missing_bytes + SPARE_DISK > plan.free_bytes:
        there = f"{decimal(plan.missing_bytes)} to load, {decimal(plan.free_bytes)} free in {plan.folder}"
        hint = "Make room, take a smaller quantisation, or another disk: HF_HOME, for plain addresses LOCALSPEC_DATA."
        raise DownloadError(f"There is no room: {there}.", hint)


def install(
    plan: PullPlan,
    hub: Hub,
    store: Store,
    report: Report,
    stop: threading.Event | None = None,
    load_head: Callable[[Path, Header], object] | None = None,
) -> list[Entry]:
    """Fetches what is missing, checks everything, and lists it: all parts or none.

    The target remembers its draft. A head that was found unasked, and that turns out not to load, is not remembered.

    Args:
        stop: ends it when set.
        load_head: reads a head's file for a target, and raises LocalspecError if it cannot draft; None = not tried.
    """
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
