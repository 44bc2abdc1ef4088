"""Servers that answer in place of a model of this process: which does, and with which of its models."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from localspec.chat.plain_text import one_line
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.models.installed.catalog import Catalog, EndpointEntry
from localspec.models.installed.installed import find, knows
from localspec.remote import search
from localspec.remote.asking import ServedAnswerer
from localspec.remote.server import key_for, port_here
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.talk.posts import Posts
from localspec.tui.widgets.dialogs import Choice, say
from localspec.tui.widgets.errands import Errands
from localspec.tui.widgets.pane import ChatPane

_MOST_NAMED = 10
"""Models that a sentence names at most."""


def choose_model(screen: ChatScreen, name: str) -> None:
    """Lets another model answer: a server's that models.toml calls so, one of the server that answers, or one of this
    machine.

    Without a name the server's models are listed, or where none answers those that models.toml has. Where it has none,
    the screen of this machine's models opens.

    Raises:
        UsageError: nothing is called so; or models.toml cannot be read.
    """
    answerer = screen.session.answerer
    named = Catalog.load().endpoints
    if name in named:
        screen.run_worker(_take(screen, named[name]), group="server", exclusive=True)
    elif isinstance(answerer, ServedAnswerer):
        _list(screen, answerer, name)
    elif name and knows(name):
        find(name)
        screen.choose(name)
    elif name:
        raise UsageError(f"No model is called {name!r}.", "F5 lists the models of this machine.")
    elif named:
        screen.run_worker(_offer(screen, list(named.values())), group="server", exclusive=True)
    else:
        screen.shell.open("models")


async def _offer(screen: ChatScreen, named: Sequence[EndpointEntry]) -> None:
    here = ("here", "a model of this machine", "")
    rows = [(str(number), one.name, one_line(one.endpoint)) for number, one in enumerate(named)]
    chosen = await screen.app.push_screen_wait(Choice("Which model shall answer?", [here, *rows]))
    if chosen == "here":
        screen.shell.open("models")
    elif chosen is not None:
        await _take(screen, named[int(chosen)])


async def _take(screen: ChatScreen, entry: EndpointEntry) -> None:
    """The user has written its address into models.toml, so that nothing is asked before a prompt goes there."""
    pane, answerer = screen.pane, screen.session.answerer
    try:
        key = await asyncio.to_thread(key_for, entry)  # a keyring may ask for its password
        found = ServedAnswerer(entry.endpoint, entry.model or None, key)
    except LocalspecError as error:
        say(screen, str(error), problem=True)
        return
    if screen.session.answerer is answerer:
        _use(screen, found, entry.name, pane)


def _list(screen: ChatScreen, answerer: ServedAnswerer, name: str) -> None:
    pane = screen.pane

    def listed(names: Sequence[str]) -> None:
        screen.run_worker(_choose(screen, answerer, name, names, pane), group="server", exclusive=True)

    def failed(error: LocalspecError) -> None:
        if not isinstance(error, Cancelled):  # another model answers meanwhile
            say(screen, str(error), problem=True)

    Errands(screen).begin(lambda tell: tell(listed, answerer.models()), "The list of models", failed)


async def _choose(
    screen: ChatScreen, answerer: ServedAnswerer, name: str, names: Sequence[str], pane: ChatPane | None
) -> None:
    if name and name not in names:
        try:
            if knows(name):
                find(name)
                screen.choose(name)
                return
            raise UsageError(f"{answerer.base} has no model {name!r}.", f"It has: {_listed(names)}.")
        except LocalspecError as error:
            say(screen, str(error), problem=True)
            return
    chosen = name or await pick(screen, f"Models of {answerer.base}", names, answerer.model)
    if chosen is None or screen.session.answerer is not answerer:
        return
    answerer.choose(chosen, Posts(screen.app))
    if pane is not None:
        screen.session.archive.set_model(pane.chat_id, chosen)
    say(screen, f"{chosen} answers from now on.")


def find_server(screen: ChatScreen) -> None:
    """Looks at the usual ports of this machine, lists what answers, and lets the server that is chosen answer.

    Prompts go there only once the user has agreed (`ChatPane.agreed`).
    """
    screen.run_worker(_find(screen), group="server", exclusive=True)


async def _find(screen: ChatScreen) -> None:
    pane, answerer = screen.pane, screen.session.answerer
    say(screen, "Looking for servers on this machine …")
    own = port_here(answerer.base) if isinstance(answerer, ServedAnswerer) else None
    leave_out = () if own is None else (own,)
    found = await asyncio.to_thread(lambda: asyncio.run(search.servers(leave_out=leave_out)))
    if not found:
        ports = ", ".join(str(port) for port in search.PORTS if port not in leave_out)
        say(screen, f"No {'other ' if own else ''}server answers on this machine at the ports {ports}.", problem=True)
        return
    rows = [(str(number), f"{one.address} · {one.usual}'s port", _models(one)) for number, one in enumerate(found)]
    chosen = await screen.app.push_screen_wait(Choice("Servers on this machine: which one shall answer?", rows))
    if chosen is None:
        return
    server = found[int(chosen)]
    if not server.models:
        say(screen, f"{server.address} lists no models; load one there first.", problem=True)
        return
    several = len(server.models) > 1
    model = await pick(screen, f"Models of {server.address}", server.models) if several else server.models[0]
    if model is None or screen.session.answerer is not answerer:
        return
    _use(screen, ServedAnswerer(server.address, model), model, pane, server.address)


def _use(screen: ChatScreen, answerer: ServedAnswerer, model: str, pane: ChatPane | None, stranger: str = "") -> None:
    """Lets a server answer, and signs the chat with the model's name."""
    screen.use(answerer, stranger)
    if pane is not None:
        screen.session.archive.set_model(pane.chat_id, model)


def _models(server: search.Server) -> str:
    return one_line(_listed(server.models)) or "it lists no models"


async def pick(screen: ChatScreen, question: str, names: Sequence[str], current: str | None = None) -> str | None:
    """One of the names; None = given up."""
    rows = [
        (str(number), one_line(name), "answers now" if name == current else "") for number, name in enumerate(names)
    ]
    found = await screen.app.push_screen_wait(Choice(one_line(question), rows))
    return None if found is None else names[int(found)]


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest
