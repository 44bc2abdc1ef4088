"""Search on the hub: pairs and models of the catalogue and GGUF repositories by words; the one chosen is pulled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.plain_text import one_line
from localspec.models.installed.catalog import Catalog, ModelEntry, PairEntry
from localspec.tui.widgets.dialogs import Dialog
from localspec.tui.widgets.errands import Errands, Tell

if TYPE_CHECKING:
    from localspec.models.hub.hub import Found, Hub

Listed = PairEntry | ModelEntry
"""What the catalogue lists by name: pairs, and targets that are in none."""
_LIMIT = 30
"""Repositories asked for: more words find better than a longer list."""
HELP = (
    "Enter searches; all words must be in the name. Down goes to the list, where Enter takes one: it is planned before "
    "it is pulled."
)


class FindModelScreen(Dialog[str | None]):
    """The result is what `localspec pull` takes; None = nothing was chosen."""

    CSS_PATH = "find_model.tcss"

    def __init__(self, make_hub: Callable[[], Hub]) -> None:
        super().__init__()
        self._make_hub = make_hub
        self._names: list[str] = []
        self._errands = Errands(self)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("Search on the hub", classes="question", markup=False)
            yield Input(placeholder="words, such as: qwen3 8b", id="words")
            yield OptionList(id="found")
            yield Static(HELP, id="note", markup=False)
            yield Footer()

    def on_mount(self) -> None:
        self.query_one("#found").display = False
        self.query_one("#words").focus()

    def key_down(self) -> None:
        """From the words to what was found, which need not be complete yet."""
        entries = self.query_one("#found", OptionList)
        if entries.display and self.focused is not entries:
            entries.focus()
            entries.highlighted = 0

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        words = event.value.split()
        if not words:
            self.say("Give a word first: a part of the model's name.", bad=True)
            return
        self.say("Asking the hub ...")
        self._errands.begin(partial(self._search, words), "The search", lambda error: self.say(str(error), True))

    def _search(self, words: Sequence[str], tell: Tell) -> None:
        catalog = Catalog.load()
        pairs: list[Listed] = [pair for pair in catalog.pairs.values() if _holds(pair, words)]
        pairs += [entry for entry in catalog.alone() if _holds(entry, words)]
        tell(self._show, pairs, [], "Asking the hub ...")
        found = self._make_hub().search(words, _LIMIT)
        nothing = "" if pairs or found else "Nothing was found. "
        tell(self._show, pairs, found, nothing + HELP)

    def _show(self, pairs: Sequence[Listed], found: Sequence[Found], note: str) -> None:
        self._names = [pair.name for pair in pairs] + [one.repository for one in found]
        entries = self.query_one("#found", OptionList)
        entries.clear_options()
        entries.add_options(Option(_of_list(one)) for one in pairs)
        entries.add_options(Option(_of_repository(one)) for one in found)
        entries.display = bool(self._names)
        self.say(note)
        if found:
            entries.focus()
            entries.highlighted = 0

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._names[event.option_index])


def _holds(listed: Listed, words: Sequence[str]) -> bool:
    return all(word.lower() in listed.name.lower() for word in words)


def _of_list(listed: Listed) -> Content:
    what = f"pair of the list: {listed.target}" if isinstance(listed, PairEntry) else f"of the list: {listed.reference}"
    return Content.assemble((one_line(listed.name), "bold"), f"  {one_line(what)}")


def _of_repository(found: Found) -> Content:
    gated = "  gated: its terms must be accepted on the hub" if found.gated else ""
    return Content.assemble(
        (one_line(found.repository), "bold"), (f"  {found.downloads:,} downloads{gated}", "$text-muted")
    )
