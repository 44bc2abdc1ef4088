"""Models: what is here and what could be, whether it fits, how fast it was; use, pull, import, remove."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import DataTable, Static

from localspec.chat.archive.archive import Archive
from localspec.chat.plain_text import one_line, pictured
from localspec.chat.prompt.prompt import NO_TEMPLATE
from localspec.errors import LocalspecError, reason
from localspec.gguf import read_parts
from localspec.machine import Place
from localspec.methods import FROM_FILES
from localspec.models.hub.hub import Hub
from localspec.models.hub.pull import Suggestion, candidates, suggest
from localspec.models.installed.catalog import DEFAULT_PAIR, Catalog, PairEntry
from localspec.models.installed.installed import can_draft, title_of, twin_sentence, twins
from localspec.models.installed.store import Entry, Store
from localspec.models.memory import fit
from localspec.models.memory.fit import FitSettings
from localspec.runtime.memory import places
from localspec.runtime.offered import Pace, estimate, needed_bytes, offer_of, pace, recommended
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.screens.pull import FindModelScreen, ImportScreen, PullScreen
from localspec.tui.screens.stats import AnswerFigures
from localspec.tui.widgets.dialogs import ChoiceDialog, errors_said, say
from localspec.tui.widgets.meter import amount
from localspec.tui.widgets.registry import bind

State = Literal["here", "hub", "broken"]
BUNDLED = "bundled pair"  # what answers of the bundled pair are signed with when no model was named


@dataclass(frozen=True, slots=True)
class ModelItem:
    name: str  # what `localspec run NAME` or `localspec pull NAME` takes
    draft: str  # name of the draft model; "" = none
    state: State
    bytes: int  # of all files, drafts included; 0 = unknown
    why: str = ""  # a sentence: what it is for, or what is wrong with it
    licence: str = ""
    files: tuple[Path, ...] = ()  # where it is: target, then draft
    fits: bool | None = None  # whether memory is there for it; None = not known
    fit: str = ""  # the verdict in a sentence
    rate: float = 0.0  # tokens/s of its last answers on this machine; 0 = not measured
    speedup: float = 0.0  # estimated speedup of those; 0 = not known, or nothing was drafted
    plain: bool = False  # nothing was drafted in those
    read_bytes: int = 0  # weights that a pass of one row reads; 0 = unknown
    expected: str = ""  # the speed that this machine should reach with it without drafts, in words; "" = not known
    recommended: bool = False
    """It is among the models that the welcome offers on this machine, or would if none were installed."""
    removable: tuple[str, ...] = ()  # entries of the index that it consists of
    layers: tuple[str, ...] = ()
    """What of it would run on which GPU and why not on another, a line for each; none on a machine without a GPU."""


def shelf(catalog: Catalog, store: Store, first: Sequence[str] = ()) -> list[ModelItem]:
    """Everything there is, without fit and speed: what is here, what is recommended, then the catalogue by size.
    `first`: names that are recommended, best first."""
    entries = {entry.name: entry for entry in store.entries()}
    items = [_pair(pair, catalog, entries) for pair in catalog.pairs.values() if pair.method in FROM_FILES]
    for model in catalog.alone(FROM_FILES):
        if not model.bundled and model.name not in entries:
            why = f"{model.reference}; pulling it looks for the drafter that its maker published"
            items.append(ModelItem(model.name, "", "hub", model.bytes, why, model.licence))
    listed = {name for item in items if item.state != "hub" for name in item.removable}
    items += [
        _installed(entry, entries) for entry in entries.values() if entry.role == "target" and entry.name not in listed
    ]
    rank = {name: place for place, name in enumerate(first)}

    def place(item: ModelItem) -> tuple[int, int, bool, int, str]:
        among = rank.get(item.name, len(rank)) if item.state == "hub" else 0
        return ("here", "broken", "hub").index(item.state), among, not item.bytes, item.bytes, item.name

    return sorted((_estimated(replace(item, recommended=item.name in rank), catalog) for item in items), key=place)


def _estimated(item: ModelItem, catalog: Catalog) -> ModelItem:
    """With the bytes that the catalogue does not list, and those that a pass reads."""
    if item.name == DEFAULT_PAIR:
        return item  # so small that its bytes say nothing about its speed
    if item.files:
        read = estimate(item.name, "a") or sum(part.stat().st_size for part in item.files[:1] if part.exists())
        return replace(item, read_bytes=read)
    offer = offer_of(catalog, item.name)
    return item if offer is None else replace(item, bytes=item.bytes or offer.bytes, read_bytes=offer.read_bytes)


def _pair(pair: PairEntry, catalog: Catalog, entries: Mapping[str, Entry]) -> ModelItem:
    models = [catalog.models[pair.target], catalog.models[pair.draft]]
    mine = tuple(entries[model.name] for model in models if model.name in entries)
    fault = next((entry.fault for entry in mine if entry.fault), "")
    own = {entry.name: (entry.path, entry.bytes) for entry in mine}
    own |= {one.name: (one.path, one.path.stat().st_size) for one in models if one.bundled and one.path.exists()}
    here = all(model.name in own for model in models)
    sizes = [own[model.name][1] if model.name in own else model.bytes for model in models]
    return ModelItem(
        pair.name,
        pair.draft,
        "broken" if fault else "here" if here else "hub",
        sum(sizes) if all(sizes) else 0,
        fault or pair.why,
        models[0].licence,
        tuple(own[model.name][0] for model in models) if here else (),
        removable=tuple(entry.name for entry in mine),
    )


def _installed(entry: Entry, entries: Mapping[str, Entry]) -> ModelItem:
    draft = entries.get(entry.draft)
    parts = [entry] if draft is None or not (draft.fault or can_draft(draft)) else [entry, draft]
    fault = next((part.fault for part in parts if part.fault), "")
    origin = f"{entry.architecture}, {entry.quant}, from {entry.origin}"
    return ModelItem(
        entry.name,
        parts[1].name if len(parts) > 1 else "",
        "broken" if fault else "here",
        sum(part.bytes for part in parts),
        fault or "; ".join(filter(None, (origin, twins(entry, entries.values())))),
        entry.licence,
        tuple(part.path for part in parts),
        removable=tuple(part.name for part in parts),
    )


def judged(item: ModelItem, places: Sequence[Place]) -> ModelItem:
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


def _from_headers(item: ModelItem, places: Sequence[Place]) -> ModelItem:
    from localspec.drafters.heads import head as heads
    from localspec.runtime.placement import gpu_lines, serving

    target, *rest = item.files
    headers = read_parts(target)
    draft, files = heads.apart(rest[0] if rest else None, ())
    wanted, there, why = serving(FitSettings(heads=heads.shapes(headers[0], files)), target, draft, places)
    plan = fit.plan(headers, None if draft is None else read_parts(draft), wanted, there)
    completes = "" if headers[0].chat_template else f" It has {NO_TEMPLATE}."
    return replace(item, fits=plan.fits, fit=plan.sentence() + completes, layers=tuple(gpu_lines(plan, why)))


def timed(item: ModelItem, speeds: Mapping[str, AnswerFigures], here: Pace | None = None) -> ModelItem:
    """With the speed it had here, by the names that its answers are signed with, and the one to expect of this machine;
    None = nothing is known of that."""
    expected = here.words(item.read_bytes) if here is not None and item.read_bytes else ""
    short = item.name.rpartition("/")[2]
    names = [item.name, short, short.partition(":")[0], *(path.stem for path in item.files[:1])]
    if item.name == DEFAULT_PAIR:
        names.append(BUNDLED)
    elif item.files:
        names.insert(0, title_of(item.files[0]))
    found = next((speeds[name] for name in names if name in speeds and speeds[name].decode_seconds), AnswerFigures())
    plain = found.answers > 0 and found.plain_answers == found.answers
    speedup = found.plain_seconds / found.compared_seconds if found.compared_seconds and not plain else 0.0
    return replace(item, rate=found.tokens_per_second, speedup=speedup, plain=plain, expected=expected)


_COLUMNS = (("", 1), ("Name", 20), ("Draft model", 15), ("Size", 8), ("Fits", 4), ("Speed here", 15))
_WIDTH_OF_COLUMNS = 80  # cells that these columns need
_CHATS = 50  # the newest chats, whose answers say how fast models were
_NO_DRAFT = "-"


class ModelsScreen(Page):
    """A table; the line beneath explains the row under the cursor."""

    CSS_PATH = "models.tcss"
    TITLE = "Models"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind(
            "models.use", "enter", "use", "Use", "Use this model from now on; one of the hub is pulled first", show=True
        ),
        bind("models.draft", "d", "draft", "Draft", "Choose what drafts for this model", show=True),
        bind("models.pull", "p", "pull", "Pull", "Pull any model by its name", show=True),
        bind("models.search", "s,slash", "search", "Search", "Search the hub for a model to pull", show=True),
        bind("models.import", "i", "import", "Import", "Take in a file of this machine", show=True),
        bind("models.remove", "x,delete", "remove", "Remove", "Remove this model from the disk", show=True),
        bind("models.again", "r", "again", "Look again", "Read the list again"),
    ]

    def __init__(self, chats: ChatScreen, make_hub: Callable[[], Hub] = Hub, store: Store | None = None) -> None:
        super().__init__(chats)
        self.items: list[ModelItem] = []
        self._make_hub = make_hub
        self._store = Store() if store is None else store
        self._wanted = ""  # name of the model that was taken in last, which the cursor goes to; "" = it stays

    def body(self) -> ComposeResult:
        yield DataTable(id="table", cursor_type="row", zebra_stripes=False)
        yield Static("", id="detail", markup=False)

    def on_resize(self) -> None:
        self._show(self.items)

    @work(exclusive=True, group="shelf")
    async def action_again(self) -> None:
        """Shows the list at once, and again when the headers are read, which takes longer."""

        def listed() -> list[ModelItem]:
            here = pace()
            items = shelf(Catalog.load(), self._store, [one.name for one in recommended(here)])
            speeds = speeds_of(self.session.archive)
            return [timed(item, speeds, here) for item in items]

        def planned() -> list[ModelItem]:
            memory = places()
            return [judged(item, memory) for item in items]

        with errors_said(self, self._say):
            items = await asyncio.to_thread(listed)
            self._show(items)
            self._show(await asyncio.to_thread(planned))

    on_mount = action_again

    def _show(self, items: list[ModelItem]) -> None:
        if not (self.query(DataTable) and self.query("#detail")):
            return  # the screen is being closed, part after part
        table = self.query_one(DataTable)
        row = table.cursor_row
        self.items = items
        table.clear(columns=True)
        spare = max(0, self.app.size.width - _WIDTH_OF_COLUMNS)  # goes to the names
        for title, width in _COLUMNS:
            wide = {"Name": spare * 2 // 3, "Draft model": spare // 3}.get(title, 0)
            table.add_column(title, width=min(60, width + wide), key=title)
        for item in items:
            table.add_row(*cells(item, self._answers(item)))
        at = next((place for place, item in enumerate(items) if item.name == self._wanted), None)
        if at is not None:
            row, self._wanted = at, ""
        table.move_cursor(row=min(row, max(0, len(items) - 1)))
        self._explain()

    def _answers(self, item: ModelItem) -> bool:
        facts = self.session.facts
        return facts is not None and item.files[:1] == (facts.target,)

    @property
    def item(self) -> ModelItem | None:
        row = self.query_one(DataTable).cursor_row
        return self.items[row] if 0 <= row < len(self.items) else None

    def _explain(self) -> None:
        if self.item is not None:
            facts = self.session.facts
            layers = facts.layers if facts is not None and self._answers(self.item) else ()
            self.query_one("#detail", Static).update(detail(self.item, layers))

    on_data_table_row_highlighted = _explain

    def _say(self, text: str) -> None:
        self.query_one("#detail", Static).update(Content(pictured(text)))

    def action_use(self) -> None:
        item = self.item
        if item is not None and item.state == "here":
            self._load(item.name)
        elif item is not None and item.state == "broken":
            self._say(f"{item.name} cannot be used: {item.why}. Remove it (x), or pull it again (p).")
        elif item is not None:
            self.action_pull(item.name)

    def _load(self, target: str, draft: str | None = None) -> None:
        if self.chats.choose(target, draft):
            self.dismiss(None)

    on_data_table_row_selected = action_use

    @work
    async def action_search(self) -> None:
        if name := await self.app.push_screen_wait(FindModelScreen(self._make_hub)):
            self.action_pull(name)

    @work
    async def action_pull(self, wanted: str = "") -> None:
        name = await self.app.push_screen_wait(PullScreen(self._make_hub, self._store, wanted))
        if name is not None:
            say(self, f"{name} is installed.")
            self._wanted = name
            self.action_again()
            rows = [("yes", "Use it", "loads it for all chats"), ("no", "Later", "it stays in the list")]
            if await self.app.push_screen_wait(ChoiceDialog(f"{name} is installed. Use it now?", rows)) == "yes":
                self._load(name)

    @work
    async def action_import(self) -> None:
        name = await self.app.push_screen_wait(ImportScreen(self._store))
        if name is not None:
            entries = self._store.entries()
            twins = [twin_sentence(entry, entries) for entry in entries if entry.name == name]
            say(self, " ".join([f"{name} is in the list.", *filter(None, twins)]))
            self._wanted = name
            self.action_again()

    @work(exclusive=True, group="drafts")
    async def action_draft(self) -> None:
        item = self.item
        if item is None or item.state != "here":
            self._say("Only a model that is here can be given another draft model.")
            return
        target = item.files[0]

        def suggested() -> list[Suggestion]:
            known = candidates(target, self._store)
            found = suggest(read_parts(target), [item.name, target.name], Catalog.load(), known)
            return [one for one in found if one.installed and one.method in FROM_FILES]

        with errors_said(self, self._say):
            found, own = await asyncio.to_thread(suggested), str(target)
            rows = [(one.draft, one.draft, f"{amount(one.bytes)}, {one.why}") for one in found if one.draft != own]
            inside = next((one.why for one in found if one.draft == own), "prompt lookup guesses alone")
            rows.append((_NO_DRAFT, "No draft model", inside))
            answer = await self.app.push_screen_wait(ChoiceDialog(f"What drafts for {item.name}?", rows))
            if answer == _NO_DRAFT:
                self._load(own)  # a plain file brings no draft along
            elif answer is not None:
                self._load(item.name, answer)

    @work
    async def action_remove(self) -> None:
        item = self.item
        if item is None or not item.removable:
            self._say("There is nothing of it on this disk that could be removed.")
            return
        if self._answers(item):
            self._say(f"{item.name} answers now; use another model first.")
            return
        question = f"Remove {' and '.join(item.removable)} ({amount(item.bytes)})?"
        rows = [("no", "Keep", "nothing changes"), ("yes", "Remove", "files that something else uses stay")]
        if await self.app.push_screen_wait(ChoiceDialog(question, rows)) != "yes":
            return
        try:
            store, names = self._store, item.removable
            removed = await asyncio.to_thread(lambda: [one for name in names for one in store.remove(name)])
            kept = next((one.kept for one in removed if one.kept), "")
            text = f"Removed; {amount(sum(one.bytes for one in removed))} given back." + f" Kept: {kept}." * bool(kept)
        except LocalspecError as error:
            text = str(error)
        except OSError as error:
            text = f"{error.filename or item.name} cannot be removed: {reason(error)}."
        say(self, text)
        self.action_again()


def speeds_of(archive: Archive) -> dict[str, AnswerFigures]:
    """What the answers of the newest chats say about the speed of models, by the model that gave them."""
    speeds = defaultdict[str, AnswerFigures](AnswerFigures)
    for chat in archive.chats(limit=_CHATS):
        for message in archive.tree(chat.id):
            if message.role == "assistant" and message.model and AnswerFigures.of([message.stats]).decode_seconds > 0:
                speeds[message.model].add(message.stats)
    return speeds


def cells(item: ModelItem, in_use: bool) -> list[Content]:
    fits = {True: ("yes", "$success"), False: ("no", "$warning"), None: ("?", "dim")}[item.fits]
    state = {"here": ("●" if in_use else "✓", "$success"), "hub": ("↓", "dim"), "broken": ("!", "$error")}
    speed = f"{item.rate:.0f} tok/s" if item.rate else f"~{item.expected.partition(' ')[2]}" if item.expected else ""
    if item.speedup:
        speed += f" {item.speedup:.1f}x"
    elif item.plain:
        speed += " plain"
    return [
        Content.assemble(state[item.state]),
        Content(one_line(item.name)),
        Content.styled(one_line(item.draft), "dim"),
        Content(amount(item.bytes) if item.bytes else "?"),
        Content.assemble(fits),
        Content(speed),
    ]


def detail(item: ModelItem, loaded: Sequence[str] = ()) -> Content:
    """The row in sentences. `loaded`: where its layers are, if it answers now on a machine with a GPU."""
    states = {
        "here": "Here. Enter uses it.",
        "hub": "On the hub. Enter pulls it: planned and checked before anything is loaded."
        + " Recommended for this machine." * item.recommended,
        "broken": "Broken.",
    }
    lines = [f"{item.name}: {item.why}" if item.why else item.name, f"{states[item.state]} {item.fit}".strip()]
    lines += [f"Loaded: {one}." for one in loaded] or item.layers
    if item.rate:
        faster = f", {item.speedup:.2f}x plain decoding" if item.speedup else ", plain decoding" * item.plain
        lines.append(f"Its last answers on this machine: {item.rate:.1f} tok/s{faster}.")
    elif item.expected:
        lines.append(f"Without drafts this machine should reach {item.expected} with it.")
    if item.licence:
        lines.append(f"Licence: {item.licence}")
    return Content(pictured("\n".join(lines)))
