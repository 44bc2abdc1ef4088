"""What stands where a new chat has no messages yet: who answers, which models to pull, and the first keys."""

from __future__ import annotations

from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import plain_text
from localspec.chat.prompt.prompt import note
from localspec.remote.answerer import Facts
from localspec.runtime.offered import HEADING, TINY, offered
from localspec.tui.talk.session import Session
from localspec.tui.widgets.registry import known, shown

_KEYS = {
    "open.models": "models: better ones, search on the hub, files of your own",
    "open.help": "help: all keys and commands",
    "open.history": "earlier chats",
    "chat.look": "colours that show where each token of an answer came from",
    "open.race": "a race of plain decoding against speculation, on one prompt",
}
"""The bindings that are worth knowing at first."""
_FIRST_KEYS = ("open.models", "open.help")
"""Those that are shown beside models to pull, so that all fits a terminal of 24 lines."""
_SIGNS = {"/": "at the beginning of a message: commands", "@": "and a path: a file is attached"}


class Welcome(Static):
    """It is shown anew whenever a model comes or goes."""

    def __init__(self, session: Session) -> None:
        super().__init__(markup=False)
        self._session = session

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        """Who answers now."""
        keys = {name: shown(self.app, binding) for name, binding in known().items() if name in _KEYS}
        models = _models(self._session, keys["open.models"])
        rows = [(keys[name], doc) for name, doc in _KEYS.items() if not models or name in _FIRST_KEYS]
        rows += _SIGNS.items()
        parts: list[str | tuple[str, str]] = [
            ("localspec\n\n", "bold $primary"),
            (_who(self._session), "$text"),
            "\n\n",
        ]
        if self._session.fault:
            parts += [(f"{plain_text(self._session.fault)}\n\n", "$text-warning")]
        parts += models
        for key, doc in rows:
            parts += [(f"{key:<10}", "bold $accent"), f"{doc}\n"]
        self.update(Content.assemble(*parts))


def _models(session: Session, key: str) -> list[str | tuple[str, str]]:
    """Models to pull, as long as there is only the bundled pair; how, with the key that opens the models."""
    if session.facts is None or not session.facts.bundled:
        return []
    found = offered()
    if not found:
        return []
    width = max(len(name) for name, _ in found)
    parts: list[str | tuple[str, str]] = [f"{HEADING}\n"]
    for name, words in found:
        parts += [(f"{name:{width}}", "bold $accent"), f"  {words}\n"]
    return [*parts, f"{key} and Enter on one pulls it, or in a shell: localspec pull NAME\n\n"]


def _who(session: Session) -> str:
    """The model that answers, or why none does."""
    facts = session.facts
    if facts is not None:
        return plain_text(sentence(facts))
    if session.failure:
        return plain_text(f"No model answers: {session.failure}")
    return f"{plain_text(session.answerer.name)} is being loaded; you can write meanwhile."


def sentence(facts: Facts) -> str:
    """Who answers, and what to expect of it."""
    if facts.remote:
        return f"{facts.name} answers, at an endpoint. /model chooses another of its models."
    drafted = f", and {facts.draft} drafts for it" if facts.draft else ""
    room = f" A chat can hold {facts.context:,} tokens." if facts.context else ""
    tiny = f" {TINY}" if facts.bundled else ""
    completes = f" {note(facts.name)}" if facts.completes else ""
    return f"{facts.name} answers{drafted}.{room}{completes}{tiny}"
