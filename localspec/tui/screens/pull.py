"""Pull inside the app: planned from headers, asked, fetched with progress; Esc stops, and what came is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Footer, Input, Static

from localspec.chat.plain_text import pictured
from localspec.errors import Cancelled, LocalspecError
from localspec.models.installed.catalog import Catalog
from localspec.models.installed.store import Entry, Store
from localspec.runtime.memory.memory import places
from localspec.tui.pages.transfers import Transfers
from localspec.tui.shell.bindings import bind
from localspec.tui.shell.dialogs import Dialog
from localspec.tui.shell.errands import Errands, Tell

if TYPE_CHECKING:
    from localspec.models.hub.hub import Hub
    from localspec.models.hub.pull import Plan

_NO_DRAFT = "-"
"""What is typed for a draft where none is wanted."""
_FRAMES = 8
"""Progress is drawn so often a second."""


def usual_hub() -> Hub:
    """The hub of the environment's settings. Its library takes long to import: call it from a thread."""
    from localspec.models.hub.hub import Hub

    return Hub()


class PullScreen(Dialog[str | None]):
    """The result is the name that was installed, None = nothing was."""

    CSS_PATH = "pull.tcss"
    AUTO_FOCUS = ""  # while a plan is on the screen, letters are keys and not text
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("pull.load", "y", "load", "Load", "Load what the plan says", show=True),
        bind("pull.other", "n", "other", "Another name", "Give another name", show=True),
    ]

    def __init__(self, make_hub: Callable[[], Hub], store: Store, name: str = "", draft: str = "") -> None:
        """`name`: what is planned at once; "" = asks."""
        super().__init__()
        self._make_hub, self._store = make_hub, store
        self._wanted, self._draft = name, draft
        self._hub: Hub | None = None
        self._plan: Plan | None = None
        self._errands = Errands(self)
        self._stop = threading.Event()
        self._busy = False
        self._transfers = Transfers()
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Pull a model", classes="question", markup=False)
            yield Input(self._wanted, placeholder="pair, user/repo[:quant] or address; Enter plans", id="name")
            yield Input(self._draft, placeholder="draft model for it; empty: looks for its own; -: none", id="draft")
            with VerticalScroll(id="plan-scroll", can_focus=False):
                yield Static("", id="plan", markup=False)
            yield Static("", id="note", markup=False)
            yield Footer()

    def on_mount(self) -> None:
        if self._wanted:
            self._begin_plan()
        else:
            self.query_one("#name").focus()

    def on_unmount(self) -> None:
        self._stop.set()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "load":
            return self._plan is not None and not self._busy
        return not self._busy if action == "other" else True

    # ---- planning

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not self._busy:
            self._begin_plan()

    def action_other(self) -> None:
        """Back to the name."""
        self.query_one("#name").focus()

    def _begin_plan(self) -> None:
        name, draft = (self.query_one(f"#{part}", Input).value.strip() for part in ("name", "draft"))
        if not name:
            self._say("Give a name first: a pair of the list, user/repo[:quant], or an address.", bad=True)
            return
        self._plan, self._busy = None, True
        self.refresh_bindings()
        self.query_one("#plan", Static).update("")
        self._say("Asking the hub: which files, do they fit each other and memory ...")
        self.set_focus(None)
        self._errands.begin(partial(self._make_plan, name, draft))

    def _make_plan(self, name: str, draft: str, tell: Tell) -> None:
        from localspec.drafters.heads.loading import out_of_reach
        from localspec.models.hub.pull import check_disk, make_plan, wishes
        from localspec.tui.pages.plan_page import plan_page

        try:
            hub = self._make_hub()
            alone = draft == _NO_DRAFT
            wanted = wishes(name, hub, draft="" if alone else draft)[: 1 if alone else 2]
            catalog = None if alone else Catalog.load()
            plan = make_plan(wanted, hub, self._store, None, places(), catalog=catalog, reach=out_of_reach)
            page = plan_page(plan, hub)
            refusal = ""
            try:
                check_disk(plan)
            except LocalspecError as error:
                refusal = str(error)
        except LocalspecError as error:
            tell(self._failed, error)
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            tell(self._failed, LocalspecError(f"The plan failed: {error!r}."))
        else:
            tell(self._planned, hub, plan, page, refusal)

    def _planned(self, hub: Hub, plan: Plan, page: Content, refusal: str) -> None:
        self._hub, self._plan, self._busy = hub, None if refusal else plan, False
        self.query_one("#plan", Static).update(page)
        if refusal:
            self._say(refusal, bad=True)
        else:
            doubt = "" if plan.memory.fits else " It does not fit memory now; it can be loaded all the same."
            self._say(f"y loads it, Esc leaves everything as it is.{doubt}")
        self.refresh_bindings()

    # ---- loading

    def action_load(self) -> None:
        """Fetches, checks and lists it."""
        if self._plan is None or self._hub is None or self._busy:
            return
        self._busy = True
        self.refresh_bindings()
        missing = sum(part.missing(self._hub) for part in self._plan.parts)  # less than planned after a stop
        self._transfers = Transfers(missing)
        self._say("Loading. Esc stops; what has come is kept, and the next pull goes on there.")
        self._timer = self.set_interval(1 / _FRAMES, self._draw)
        self._errands.begin(partial(self._install, self._plan, self._hub))

    def _install(self, plan: Plan, hub: Hub, tell: Tell) -> None:
        from localspec.drafters.heads.loading import find
        from localspec.models.hub.pull import install

        try:
            entries = install(plan, hub, self._store, self._transfers, self._stop, find)
        except LocalspecError as error:
            tell(self._failed, error)
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            tell(self._failed, LocalspecError(f"The pull failed: {error!r}."))
        else:
            tell(self._installed, entries)

    def _draw(self) -> None:
        width = self.query_one("#plan-scroll").size.width
        self.query_one("#plan", Static).update(self._transfers.lines(width))

    def _installed(self, entries: Sequence[Entry]) -> None:
        self._end()
        asked = self.query_one("#name", Input).value.strip()
        self.dismiss(asked if "://" not in asked else entries[0].name)

    def _failed(self, error: LocalspecError) -> None:
        self._end()
        if isinstance(error, Cancelled):
            self._say("Stopped. What has come is kept: y goes on there, and so does the next pull.")
        else:
            self._plan = None
            self._say(str(error), bad=True)
            self.query_one("#name").focus()
        self.refresh_bindings()

    def _end(self) -> None:
        self._busy = False
        self._stop.clear()
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    # ---- leaving

    def action_close(self) -> None:
        """Stops what is being loaded; closes otherwise."""
        if self._busy and self._timer is not None:
            self._stop.set()
            self._say("Stopping ...")
        else:
            self.dismiss(None)

    def _say(self, text: str, bad: bool = False) -> None:
        note = self.query_one("#note", Static)
        note.update(Content(pictured(text)))
        note.set_class(bad, "bad")
