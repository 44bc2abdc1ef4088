"""Models taken in: pulled from the hub, as planned from headers; searched for there; or a GGUF file of this machine."""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import ClassVar, Literal
from urllib.parse import unquote

from textual import events, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.suggester import Suggester
from textual.widgets import Footer, Input, OptionList, Static

from localspec.chat.plain_text import one_line, pictured
from localspec.errors import Cancelled, LocalspecError, reason
from localspec.models.hub.hub import FoundRepository, Hub
from localspec.models.hub.pull import PullPlan
from localspec.models.installed.catalog import Catalog, ModelEntry, PairEntry
from localspec.models.installed.installed import Kept, adopt, find_kept
from localspec.models.installed.store import Entry, Store
from localspec.paths import typed
from localspec.runtime.memory import places
from localspec.tui.screens.settings import Tick
from localspec.tui.widgets.dialogs import Dialog, ItemList, errand, errors_said
from localspec.tui.widgets.meter import amount, bar, duration
from localspec.tui.widgets.registry import bind

Listed = PairEntry | ModelEntry  # what the catalogue lists by name: pairs, and targets that are in none
_LIMIT = 30  # repositories asked for: more words find better than a longer list
HELP = (
    "Enter searches; all words must be in the name. Down goes to the list, where Enter takes one: it is planned before "
    "it is pulled."
)


class ModelDialog(Dialog[str | None]):
    """A box with fields, a line that says how it goes, and the keys; the result is a name, None = it was given up."""

    CSS_PATH = "pull.tcss"

    def __init__(self, title: str) -> None:
        super().__init__(title)
        self._stop = threading.Event()  # ends what runs on a thread

    def body(self) -> ComposeResult:
        yield from self.fields()
        yield Static("", id="note", markup=False)
        yield Footer()

    def fields(self) -> ComposeResult:
        yield from ()

    def on_unmount(self) -> None:
        self._stop.set()

    def say(self, text: str, bad: bool = False) -> None:
        """In the line `#note`; it may quote what comes from outside."""
        note = self.query_one("#note", Static)
        note.update(Content(pictured(text)))
        note.set_class(bad, "bad")


class FindModelScreen(ModelDialog):
    """The result is what `localspec pull` takes."""

    def __init__(self, make_hub: Callable[[], Hub]) -> None:
        super().__init__("Search on the hub")
        self._make_hub = make_hub
        self._found = ItemList[Listed | FoundRepository](id="found")

    def fields(self) -> ComposeResult:
        yield Input(placeholder="words, such as: qwen3 8b", id="words")
        yield self._found

    def on_mount(self) -> None:
        self.say(HELP)
        self._found.display = False

    def key_down(self) -> None:
        """From the words to what was found, which need not be complete yet."""
        if self._found.display and self.focused is not self._found:
            self._found.focus()
            self._found.highlighted = 0

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if words := event.value.split():
            self._search(words)
        else:
            self.say("Give a word first: a part of the model's name.", bad=True)

    @work(exclusive=True, group="search")
    async def _search(self, words: Sequence[str]) -> None:
        def listed() -> list[Listed]:
            catalog = Catalog.load()
            known: list[Listed] = [*catalog.pairs.values(), *catalog.alone()]
            return [one for one in known if all(word.lower() in one.name.lower() for word in words)]

        self.say("Asking the hub ...")
        with errors_said(self, lambda text: self.say(text, bad=True)):
            pairs = await errand(listed, "The search")
            self._show(pairs, [], "Asking the hub ...")
            found = await errand(lambda: self._make_hub().search(words, _LIMIT), "The search")
            self._show(pairs, found, "Nothing was found. " * (not pairs and not found) + HELP)

    def _show(self, pairs: Sequence[Listed], found: Sequence[FoundRepository], note: str) -> None:
        self._found.show([*pairs, *found], _found_line)
        self._found.display = bool(self._found.items)
        self._found.highlighted = 0 if found else None
        self.say(note)
        if found:
            self._found.focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if event.option_index < len(self._found.items):  # others may be shown meanwhile
            one = self._found.items[event.option_index]
            self.dismiss(one.name if isinstance(one, PairEntry | ModelEntry) else one.repository)


def _found_line(one: Listed | FoundRepository) -> Content:
    if isinstance(one, PairEntry | ModelEntry):
        what = f"pair of the list: {one.target}" if isinstance(one, PairEntry) else f"of the list: {one.reference}"
        return Content.assemble((one_line(one.name), "bold"), f"  {one_line(what)}")
    gated = "  gated: its terms must be accepted on the hub" if one.gated else ""
    facts = (f"  {one.downloads:,} downloads{gated}", "$text-muted")
    return Content.assemble((one_line(one.repository), "bold"), facts)


def plan_page(plan: PullPlan, hub: Hub) -> Content:
    """The plan for people: files, whether they fit each other, memory and disk. Looks at files; a few milliseconds."""
    lines = list[Content]()
    for part in plan.parts:
        have = part.choice.size - part.missing(hub)
        here = f", {amount(have)} of it here already" if have else ""
        commit = f", commit {part.listing.commit[:12]}" if part.listing else ""
        licence = f", licence {part.licence}" if part.licence else ""
        gated = ", gated: its terms must be accepted on the hub" if part.listing and part.listing.gated else ""
        quant = part.choice.quant or part.header.quantisation
        lines.append(_line(part.role, f"{part.name}  {amount(part.choice.size)}{here}", "bold"))
        lines.append(_line("", f"{part.header.architecture}, {quant}{commit}{licence}{gated}"))
    if plan.match is not None:
        lines.append(_line("pair", plan.match.verdict, "$success" if plan.match.fits else "$error"))
        lines += [_line("", f"note: {warning}") for warning in plan.match.warnings]
    elif plan.parts[0].role == "target" and not any(one.taken for one in plan.drafters):
        lines.append(_line("pair", "no draft model comes with it; prompt lookup guesses alone"))
    lines.append(_line("memory", plan.memory.sentence(), "$success" if plan.memory.fits else "$warning"))
    lines += [_line("", note) for note in plan.notes]
    lines += [_line("drafter", one.line(), "$success" if one.taken else "") for one in plan.drafters]
    todo = f"{amount(plan.missing_bytes)} to load" if plan.missing_bytes else "nothing to load, all of it is here"
    lines.append(_line("disk", f"{todo}, {amount(plan.free_bytes)} free in {plan.folder}"))
    return Content("\n").join(lines)


def _line(label: str, text: str, style: str = "") -> Content:
    return Content.assemble((f"{label:7} ", "dim"), (one_line(text), style))


_SPEED_WINDOW_SECONDS = 5.0  # seconds over which the speed is a mean
_SPEED_CELLS = 46


class Transfers:
    """How far a pull is: any thread reports it, the screen reads it. What is shown never goes back while bytes come."""

    def __init__(self, missing_bytes: int = 0) -> None:
        self.missing_bytes = missing_bytes
        self._files: dict[str, tuple[int, int, str]] = {}  # bytes that are there, bytes in all, what is done
        self._come: dict[str, tuple[int, int]] = {}  # bytes that were there at first, and the most since
        self._samples: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def __call__(self, file: str, done: int, size: int, what: str) -> None:
        """A report, as `localspec.models.hub.download.Report`."""
        with self._lock:
            if what == "waiting":
                done, size, _ = self._files.get(file, (0, 0, ""))
            self._files[file] = done, size, what
            if what == "loading":
                first, most = self._come.get(file, (done, done))
                self._come[file] = first, max(done, most)

    def lines(self, width: int, now: float | None = None) -> Content:
        """A bar for each file and one for all, with speed and time left."""
        with self._lock:
            files = dict(self._files)
            come = sum(most - first for first, most in self._come.values())
        now = monotonic() if now is None else now
        self._samples.append((now, come))
        while now - self._samples[0][0] > _SPEED_WINDOW_SECONDS:
            self._samples.popleft()
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        rate = (after - before) / (last - first) if last - first > 0.2 else 0.0
        cells = max(8, min(40, width - _SPEED_CELLS))
        doing = {"loading": "", "checking": "  checking", "waiting": "  waiting for another program that loads it"}

        def line(name: str, style: str, done: int, size: int, more: str) -> Content:
            share = bar(done / size if size else 0.0, cells)
            return Content.assemble(
                (f"{name}\n", style), (share, "$primary"), f" {amount(done)} of {amount(size)}{more}"
            )

        lines = [
            line(one_line(name), "dim", done, size, doing.get(what, f"  {what}"))
            for name, (done, size, what) in files.items()
        ]
        if self.missing_bytes:
            left = max(0, self.missing_bytes - come)
            speed = f"  {amount(rate)}/s, {duration(left / rate)} left" if rate and left else ""
            lines.append(line("in all", "bold", come, self.missing_bytes, speed))
        return Content("\n").join(lines)


_NO_DRAFT = "-"  # what is typed for a draft where none is wanted
_FRAMES_A_SECOND = 8  # progress is drawn so often a second


class PullScreen(ModelDialog):
    """The result is the name that was installed."""

    AUTO_FOCUS = ""  # while a plan is on the screen, letters are keys and not text
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pull.load", "y", "load", "Load", "Load what the plan says", show=True),
        bind("pull.other", "n", "other", "Another name", "Give another name", show=True),
    ]

    def __init__(self, make_hub: Callable[[], Hub], store: Store, name: str = "", draft: str = "") -> None:
        """`name`: what is planned at once; "" = asks."""
        super().__init__("Pull a model")
        self._make_hub, self._store = make_hub, store
        self._wanted, self._draft = name, draft
        self._hub: Hub | None = None
        self._plan: PullPlan | None = None
        self._doing: Literal["", "plan", "load"] = ""

    def fields(self) -> ComposeResult:
        yield Input(self._wanted, placeholder="pair, user/repo[:quant] or address; Enter plans", id="name")
        yield Input(self._draft, placeholder="draft model for it; empty: looks for its own; -: none", id="draft")
        with VerticalScroll(id="plan-scroll", can_focus=False):
            yield Static("", id="plan", markup=False)

    def on_mount(self) -> None:
        if self._wanted:
            self._begin_plan()
        else:
            self.query_one("#name").focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return action not in ("load", "other") or not (self._doing or (action == "load" and self._plan is None))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not self._doing:
            self._begin_plan()

    def action_other(self) -> None:
        self.query_one("#name").focus()

    @work(exclusive=True, group="plan")
    async def _begin_plan(self) -> None:
        name, draft = (self.query_one(f"#{part}", Input).value.strip() for part in ("name", "draft"))
        if not name:
            self.say("Give a name first: a pair of the list, user/repo[:quant], or an address.", bad=True)
            return

        def planned() -> tuple[Hub, PullPlan, Content, str]:
            from localspec.drafters.heads.head import out_of_reach
            from localspec.models.hub.pull import check_disk, make_plan, wishes

            hub, alone = self._make_hub(), draft == _NO_DRAFT
            wanted = wishes(name, hub, draft="" if alone else draft)[: 1 if alone else 2]
            catalog = None if alone else Catalog.load()
            plan = make_plan(wanted, hub, self._store, None, places(), catalog=catalog, reach=out_of_reach)
            refused = list[str]()
            with errors_said(self, refused.append):
                check_disk(plan)
            return hub, plan, plan_page(plan, hub), "".join(refused)

        self._plan, self._doing = None, "plan"
        self.refresh_bindings()
        self.query_one("#plan", Static).update("")
        self.say("Asking the hub: which files, do they fit each other and memory ...")
        self.set_focus(None)
        with errors_said(self, self._failed):
            self._hub, plan, page, refusal = await errand(planned, "The plan")
            self._plan, self._doing = None if refusal else plan, ""
            self.query_one("#plan", Static).update(page)
            doubt = "" if plan.memory.fits else " It does not fit memory now; it can be loaded all the same."
            self.say(refusal or f"y loads it, Esc leaves everything as it is.{doubt}", bad=bool(refusal))
            self.refresh_bindings()

    @work(group="load")
    async def action_load(self) -> None:
        plan, hub = self._plan, self._hub
        if plan is None or hub is None or self._doing:
            return
        transfers = Transfers(sum(part.missing(hub) for part in plan.parts))  # less than planned after a stop

        def load() -> Sequence[Entry]:
            from localspec.drafters.heads.head import find
            from localspec.models.hub.pull import install

            return install(plan, hub, self._store, transfers, self._stop, find)

        def draw() -> None:
            width = self.query_one("#plan-scroll").size.width
            self.query_one("#plan", Static).update(transfers.lines(width))

        self._doing = "load"
        self._stop.clear()
        self.refresh_bindings()
        self.say("Loading. Esc stops; what has come is kept, and the next pull goes on there.")
        timer = self.set_interval(1 / _FRAMES_A_SECOND, draw)
        try:
            entries = await errand(load, "The pull")
            asked = self.query_one("#name", Input).value.strip()
            self.dismiss(asked if "://" not in asked else entries[0].name)
        except Cancelled:
            self._doing = ""
            self.say("Stopped. What has come is kept: y goes on there, and so does the next pull.")
            self.refresh_bindings()
        except LocalspecError as error:
            self._failed(str(error))
        finally:
            timer.stop()

    def _failed(self, text: str) -> None:
        self._plan, self._doing = None, ""
        self.say(text, bad=True)
        self.query_one("#name").focus()
        self.refresh_bindings()

    def action_close(self) -> None:
        if self._doing == "load":
            self._stop.set()
            self.say("Stopping ...")
        else:
            self.dismiss(None)


def dropped(text: str) -> str:
    """The path that is meant: terminals put quotes around it, backslashes before blanks, or file:// in front."""
    text = text.strip().split("\n")[0].strip()
    if text.startswith("file://"):
        return unquote("/" + text.removeprefix("file://").partition("/")[2])
    if os.path.exists(typed(text)):
        return text
    with suppress(ValueError):  # an open quote, or several words
        (word,) = shlex.split(text)
        return word
    return text


def completed(text: str, ending: str) -> str | None:
    """The first file with this ending, or folder, whose path begins as typed; None = there is none, or nothing to add.
    Takes a moment in a large folder: call it from a thread."""
    start, slash, name = text.rpartition("/")
    if not text or (not slash and text != "~"):
        start, name = "", text
    try:
        with os.scandir(typed(start + slash or ".")) as entries:
            found = sorted(
                entry.name + "/" * os.path.isdir(entry)
                for entry in entries
                if entry.name.startswith(name)
                and (name or not entry.name.startswith("."))
                and (os.path.isdir(entry) or entry.name.lower().endswith(ending))
            )
    except OSError:
        return None
    return next((start + slash + one for one in found if one != name), None)


class _Paths(Suggester):
    async def get_suggestion(self, value: str) -> str | None:
        return await asyncio.to_thread(completed, value, ".gguf")


class PathInput(Input):
    """A line for a path, also as terminals paste a file that is dropped on them. Tab takes what is suggested; without a
    suggestion it goes to the next field."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("path.complete", "tab", "complete", "Complete", "Take the path that is suggested")
    ]

    def action_complete(self) -> None:
        if self._suggestion and self._suggestion != self.value:
            self.value = self._suggestion
            self.cursor_position = len(self.value)
        else:
            self.screen.focus_next()

    def _on_paste(self, event: events.Paste) -> None:
        """A dropped file stands for itself: it replaces what was there."""
        path = dropped(event.text)
        if path != event.text or path.startswith("/"):
            event.prevent_default()  # Input's own handler, which Textual calls as well
            event.stop()
            self.value = path
            self.cursor_position = len(path)


class ImportScreen(ModelDialog):
    """The result is the new entry's name."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("import.go", "ctrl+s", "take", "Import", "Take the file into the list", show=True)
    ]

    def __init__(self, store: Store) -> None:
        super().__init__("Import a GGUF file of this machine")
        self._store = store
        self._busy = False
        self._found = ItemList[Kept](id="found")  # models that other programs keep

    def fields(self) -> ComposeResult:
        words = "file.gguf, typed or dropped here; Tab completes, Enter imports"
        yield PathInput(placeholder=words, suggester=_Paths(use_cache=False, case_sensitive=True), id="file")
        yield self._found
        yield Input(placeholder="name (else the file's)", id="name")
        yield Tick("It is a draft model", id="draft")
        yield Tick("Copy it, so that the original may go (else: a link)", id="copy")

    @work(exclusive=True, group="find")
    async def _find(self) -> None:
        kept = [one for one in await asyncio.to_thread(find_kept, self._store) if not one.installed]
        self._found.show(kept, lambda one: Content(pictured(f"{one.name}  {amount(one.bytes)}  {one.program}")))
        self._found.display = bool(kept)

    on_mount = _find

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._found.items):
            one = self._found.items[event.option_index]
            self.query_one("#file", Input).value = str(one.path)
            self.query_one("#name", Input).value = one.name
            self.query_one("#draft", Tick).value = one.is_head
            self.query_one("#file").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_take()

    @work(group="import")
    async def action_take(self) -> None:
        path = dropped(self.query_one("#file", Input).value)
        if self._busy or not path:
            return
        self._busy = True
        self._stop.clear()
        role = "draft" if self.query_one("#draft", Tick).value else "target"
        name, copy = self.query_one("#name", Input).value.strip(), self.query_one("#copy", Tick).value

        def progress(file: str, done: int, size: int) -> None:
            if self._stop.is_set() or not self.is_running:
                raise Cancelled("The import was stopped; nothing was changed.")
            text = f"{file}\n{bar(done / size if size else 0.0, 30)} {amount(done)} of {amount(size)} checked"
            self.app.call_from_thread(self.say, text)

        self.say("Reading the file ...")
        try:
            work = partial(adopt, typed(path), self._store, name=name, role=role, copy=copy, progress=progress)
            self.dismiss((await asyncio.to_thread(work)).name)
        except LocalspecError as error:
            self.say(str(error), bad=True)
        except OSError as error:
            self.say(f"{typed(path)} cannot be read: {reason(error)}.", bad=True)
        finally:
            self._busy = False

    def action_close(self) -> None:
        if self._busy:
            self._stop.set()
        else:
            self.dismiss(None)
