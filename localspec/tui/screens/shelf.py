"""What the models screen lists: pairs and models, here or on the hub, with their fit and the speed they had here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from localspec.chat.prompt.prompt import NO_TEMPLATE
from localspec.engine.stats import kept_comparison
from localspec.errors import LocalspecError, reason
from localspec.gguf.split import read_parts
from localspec.machine import Place, total_ram
from localspec.methods import FROM_FILES
from localspec.models.facts.shape import default_context, shape_of
from localspec.models.hub.offer import estimate, needed_bytes, offer_of
from localspec.models.installed.catalog import DEFAULT_PAIR, Catalog, ModelEntry, PairEntry
from localspec.models.installed.installed import can_draft, title_of, twins
from localspec.models.installed.store import Entry, Store
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings
from localspec.runtime.offered import Pace

State = Literal["here", "hub", "broken"]
BUNDLED = "bundled pair"
"""What answers of the bundled pair are signed with when no model was named."""


@dataclass(frozen=True, slots=True)
class Item:
    """A row: something to talk with."""

    name: str
    """What `localspec run NAME` or `localspec pull NAME` takes."""
    draft: str
    """Name of the draft model; "" = none."""
    state: State
    bytes: int
    """Of all files, drafts included; 0 = unknown."""
    why: str = ""
    """A sentence: what it is for, or what is wrong with it."""
    licence: str = ""
    files: tuple[Path, ...] = ()
    """Where it is: target, then draft."""
    fits: bool | None = None
    """Whether memory is there for it; None = not known."""
    fit: str = ""
    """The verdict in a sentence."""
    rate: float = 0.0
    """Tokens/s of its last answers on this machine; 0 = not measured."""
    speedup: float = 0.0
    """Estimated speedup of those; 0 = not known, or nothing was drafted."""
    plain: bool = False
    """Nothing was drafted in those."""
    read_bytes: int = 0
    """Weights that a pass of one row reads; 0 = unknown."""
    expected: str = ""
    """The speed that this machine should reach with it without drafts, in words; "" = not known."""
    recommended: bool = False
    """It is among the models that the welcome offers on this machine, or would if none were installed."""
    removable: tuple[str, ...] = ()
    """Entries of the index that it consists of."""
    layers: tuple[str, ...] = ()
    """What of it would run on which GPU and why not on another, a line for each; none on a machine without a GPU."""


@dataclass(slots=True)
class Speeds:
    """Speed of the last answers by the model that gave them."""

    tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    plain: dict[str, float] = field(default_factory=dict)
    compared: dict[str, float] = field(default_factory=dict)
    drafting: set[str] = field(default_factory=set)
    """Models with an answer in which something was drafted, or of which that is not known."""

    def add(self, model: str, stats: Mapping[str, Any]) -> None:
        """Counts an answer."""
        tokens = stats.get("generated_tokens") or 0
        seconds = sum(float(stats.get(f"{part}_seconds") or 0) for part in ("draft", "verify", "host"))
        if not tokens or seconds <= 0:
            return
        self.tokens[model] = self.tokens.get(model, 0) + tokens
        self.seconds[model] = self.seconds.get(model, 0.0) + seconds
        if stats.get("drafted") != 0:
            self.drafting.add(model)
        plain, compared = kept_comparison(stats)
        self.plain[model] = self.plain.get(model, 0.0) + plain
        self.compared[model] = self.compared.get(model, 0.0) + compared

    def of(self, names: Iterable[str]) -> tuple[float, float, bool]:
        """(tokens/s, estimated speedup, whether nothing was drafted) of a model known by any of these names; 0 = not
        known."""
        for name in names:
            if self.seconds.get(name):
                compared, drafting = self.compared[name], name in self.drafting
                speedup = self.plain[name] / compared if compared and drafting else 0.0
                return self.tokens[name] / self.seconds[name], speedup, not drafting
        return 0.0, 0.0, False


def shelf(catalog: Catalog, store: Store, first: Sequence[str] = ()) -> list[Item]:
    """Everything there is, without fit and speed: what is here, what is recommended, then the catalogue by size.

    Args:
        catalog: what is known by name.
        store: what is installed.
        first: names that are recommended, best first.
    """
    entries = {entry.name: entry for entry in store.entries()}
    items = [_pair(pair, catalog, entries) for pair in catalog.pairs.values() if pair.method in FROM_FILES]
    items += [_alone(model) for model in catalog.alone(FROM_FILES) if not model.bundled and model.name not in entries]
    listed = {name for item in items if item.state != "hub" for name in item.removable}
    items += [
        _installed(entry, entries) for entry in entries.values() if entry.role == "target" and entry.name not in listed
    ]
    order = {"here": 0, "broken": 1, "hub": 2}
    rank = {name: place for place, name in enumerate(first)}
    items = [_estimated(replace(item, recommended=item.name in rank), catalog) for item in items]
    return sorted(
        items,
        key=lambda item: (
            order[item.state],
            rank.get(item.name, len(rank)) if item.state == "hub" else 0,
            not item.bytes,
            item.bytes,
            item.name,
        ),
    )


def _estimated(item: Item, catalog: Catalog) -> Item:
    """With the bytes that the catalogue does not list, and those that a pass reads."""
    if item.name == DEFAULT_PAIR:
        return item  # so small that its bytes say nothing about its speed
    if item.files:
        read = estimate(item.name, "a") or sum(part.stat().st_size for part in item.files[:1] if part.exists())
        return replace(item, read_bytes=read)
    offer = offer_of(catalog, item.name)
    if offer is None:
        return item
    return replace(item, bytes=item.bytes or offer.bytes, read_bytes=offer.read_bytes)


def _pair(pair: PairEntry, catalog: Catalog, entries: Mapping[str, Entry]) -> Item:
    models = [catalog.models[pair.target], catalog.models[pair.draft]]
    mine = tuple(entries[model.name] for model in models if model.name in entries)
    fault = next((entry.fault for entry in mine if entry.fault), "")
    here = all(model.bundled or model.name in entries for model in models)
    sizes = [_size(model, entries) for model in models]
    return Item(
        pair.name,
        pair.draft,
        "broken" if fault else "here" if here else "hub",
        sum(sizes) if all(sizes) else 0,
        fault or pair.why,
        models[0].licence,
        tuple(model.path if model.bundled else entries[model.name].path for model in models) if here else (),
        removable=tuple(entry.name for entry in mine),
    )


def _alone(model: ModelEntry) -> Item:
    why = f"{model.reference}; pulling it looks for the drafter that its maker published"
    return Item(model.name, "", "hub", model.bytes, why, model.licence)


def _size(model: ModelEntry, entries: Mapping[str, Entry]) -> int:
    if model.bundled:
        return model.path.stat().st_size if model.path.exists() else 0
    return entries[model.name].bytes if model.name in entries else model.bytes


def _installed(entry: Entry, entries: Mapping[str, Entry]) -> Item:
    draft = entries.get(entry.draft)
    parts = [entry] if draft is None or not (draft.fault or can_draft(draft)) else [entry, draft]
    fault = next((part.fault for part in parts if part.fault), "")
    origin = f"{entry.architecture}, {entry.quant}, from {entry.origin}"
    return Item(
        entry.name,
        parts[1].name if len(parts) > 1 else "",
        "broken" if fault else "here",
        sum(part.bytes for part in parts),
        fault or "; ".join(filter(None, (origin, twins(entry, entries.values())))),
        entry.licence,
        tuple(part.path for part in parts),
        removable=tuple(part.name for part in parts),
    )


def judged(item: Item, places: Sequence[Place]) -> Item:
    """With the fit verdict: from the headers where the files are here, else a rule of thumb from their sizes."""
    if item.state == "broken":
        return item
    if item.files:
        try:
            return _from_headers(item, places)
        except LocalspecError as error:
            return replace(item, fit=f"Its memory cannot be planned: {error}")
        except OSError as error:
            return replace(item, fit=f"Its memory cannot be planned: {reason(error)}.")
    if not item.bytes:
        return replace(item, fit="Its size is not known before it is pulled; pulling asks the hub first.")
    free = max((place.free_bytes for place in places), default=0)
    if not free:
        return item
    needed = needed_bytes(item.bytes)
    word = "should fit" if needed <= free else "will hardly fit"
    sentence = (
        f"It {word}: about {needed / 1e9:.1f} GB with a margin, {free / 1e9:.1f} GB free (from file sizes alone)."
    )
    return replace(item, fits=needed <= free, fit=sentence, recommended=item.recommended and needed <= free)


def _from_headers(item: Item, places: Sequence[Place]) -> Item:
    from localspec.drafters.heads import loading as heads
    from localspec.runtime.placement import gpu_lines, serving

    target, *rest = item.files
    headers = read_parts(target)
    draft, files = heads.apart(rest[0] if rest else None, ())
    small = None if draft is None else read_parts(draft)
    small_shape = None if small is None else shape_of(small)
    context = default_context(shape_of(headers), small_shape, total_bytes=total_ram(places))
    wanted, there, why = serving(FitSettings(), target, draft, places)
    wanted = replace(wanted, context=context, heads=heads.shapes(headers[0], files))
    plan = fit.plan(headers, small, wanted, there)
    completes = "" if headers[0].chat_template else f" It has {NO_TEMPLATE}."
    return replace(item, fits=plan.fits, fit=plan.sentence() + completes, layers=tuple(gpu_lines(plan, why)))


def timed(item: Item, speeds: Speeds, here: Pace | None = None) -> Item:
    """With the speed it had here, and the one to expect of this machine; None = nothing is known of that."""
    expected = here.words(item.read_bytes) if here is not None and item.read_bytes else ""
    short = item.name.rpartition("/")[2]
    names = [item.name, short, short.partition(":")[0], *(path.stem for path in item.files[:1])]
    if item.files and item.name != DEFAULT_PAIR:
        names.insert(0, title_of(item.files[0]))
    rate, speedup, plain = speeds.of([*names, BUNDLED] if item.name == DEFAULT_PAIR else names)
    return replace(item, rate=rate, speedup=speedup, plain=plain, expected=expected)
