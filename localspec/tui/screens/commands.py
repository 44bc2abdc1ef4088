"""What slash commands do to the chat in front: servers that answer in place of a model of this process, and summaries
that make room in the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from keyword import iskeyword

from localspec.chat.plain_text import one_line, plain_text
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.models.installed.catalog import Catalog, EndpointEntry
from localspec.models.installed.installed import find, knows
from localspec.paths import typed
from localspec.remote import search
from localspec.remote.answerer import Question
from localspec.remote.asking import ServedAnswerer
from localspec.remote.server import key_for, port_here
from localspec.tools.toolbox import Toolbox
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.talk import files
from localspec.tui.talk.session import Posts, Window, fit, last_turn, question_of, room, summary_question, window
from localspec.tui.widgets.composer import WrittenPrompt, short
from localspec.tui.widgets.dialogs import ChoiceDialog, Line, errand, errors_said, say
from localspec.tui.widgets.pane import ChatPane
from localspec.tui.widgets.registry import OWN

_ROOM = (
    ("drop", "Go on without the oldest messages", "They stay in the chat; the model no longer sees them."),
    ("summarise", "Go on with a summary of them", "The model writes it first; that takes a moment."),
    ("new", "Ask in a new chat", "With your last message alone."),
)
"""What helps where the last message alone fits."""
_EDIT = ("edit", "Let me shorten it", "Your message comes back into the input.")
_MOST_NAMED = 10  # models that a sentence names at most


class SlashCommands:
    """A method for each command of `registry.OWN` that is no action of the chat screen; the caller shows errors."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen, self._archive = screen, screen.session.archive

    async def run(self, name: str, rest: str) -> None:
        row = next(row for row in OWN if row.name == name)
        if row.action and not (row.usage and rest):
            await self._screen.run_action(row.action)
            return
        do: Callable[[str], object] = getattr(self, name + "_" * iskeyword(name))
        result = do(rest)
        if isawaitable(result):
            await result

    def system(self, text: str) -> None:
        pane = self._screen.front
        self._archive.update_chat(pane.chat_id, system=text)
        say(self._screen, "The system message is set." if text else "There is no system message any more.")
        pane.count()

    async def compact(self, off: str) -> None:
        """Compacts the chat, or says why not; prompts that are sent meanwhile are queued."""
        pane = self._screen.front
        if off == "off":
            await set_window(pane, None)
            say(self._screen, "The model sees the whole chat again.")
        elif off:
            raise UsageError(f"/compact takes no {off!r}.", "/compact summarises, /compact off undoes it.")
        elif pane.busy:
            say(pane, "An answer or a summary is under way; compact the chat when it has ended.", problem=True)
        else:
            pane.run_worker(_compact(pane), group="compact")

    def editor(self, text: str) -> None:
        self._screen.front.composer.put(text)
        self._screen.action_editor()

    def copy(self, what: str) -> None:
        (self._screen.action_copy_code if what == "code" else self._screen.action_copy)()

    def rename(self, title: str) -> None:
        screen, chat = self._screen, self._screen.front.chat

        async def give() -> None:
            with errors_said(screen):
                given: str | None = title or await screen.app.push_screen_wait(Line("Title of this chat", chat.title))
                if given:
                    self._archive.update_chat(chat.id, title=given)
                    screen.show_titles()

        screen.run_worker(give(), group="title")

    def pin(self, _: str) -> None:
        chat = self._screen.front.chat
        self._archive.update_chat(chat.id, pinned=not chat.pinned)
        say(self._screen, "Unpinned." if chat.pinned else "Pinned: it stays on top of the list.")

    def tag(self, tags: str) -> None:
        self._archive.set_tags(self._screen.front.chat_id, tags.split())
        say(self._screen, f"Tags: {', '.join(tags.split())}." if tags else "The chat has no tags any more.")

    async def delete(self, _: str) -> None:
        await self._screen.delete_chat(self._screen.front.chat, "/undo")

    async def private(self, _: str) -> None:
        private = not self._screen.session.private
        await self._screen.set_private(private)
        if not private:
            say(self._screen, "The private chats are gone; these are your others again.")

    def export(self, file: str) -> None:
        self._screen.tell(files.export(self._archive, self._screen.front.chat, file))

    def import_(self, file: str) -> None:
        if not file:
            known = "/import FILE: own JSON, or ChatGPT's conversations.json or zip."
            raise UsageError("Name the file to take in.", known)
        self._screen.tell(asyncio.to_thread(lambda: self._archive.import_file(typed(file)).sentence()))

    def find(self, words: str) -> None:
        self._screen.open("history", words)

    def preset(self, name: str) -> None:
        presets = {preset.name: preset for preset in self._archive.presets()}
        if name not in presets:
            raise UsageError(
                f"There is no preset {name!r}." if name else "Name the preset.",
                f"There are: {', '.join(presets)}." if presets else "F3 saves one.",
            )
        chat_id = self._screen.front.chat_id
        self._archive.update_chat(chat_id, system=presets[name].system, params=presets[name].params)
        say(self._screen, f"Preset {name}.")

    def prompt(self, words: str) -> None:
        """Puts the text of a server's prompt into the input, for the user to send; the command, where that fails."""
        pane = self._screen.front

        async def fetch() -> None:
            text = f"/prompt {words}"
            with errors_said(pane):
                text = plain_text(await pane.of_servers(partial(Toolbox.prompt, words=words)))
                text = " " * text.startswith("/") + text  # it is no command
            pane.composer.restore([WrittenPrompt(text)])

        pane.run_worker(fetch(), group="prompt", exclusive=True)

    def theme(self, name: str) -> None:
        app = self._screen.app
        if name in app.available_themes:
            app.theme = name
        else:
            raise UsageError(f"There is no theme {name!r}.", f"There are: {', '.join(app.available_themes)}.")

    def model(self, name: str) -> None:
        """Lets another model answer: a server's that models.toml calls so, one of the server that answers, or one of
        this machine. Without a name the server's models are listed, or where none answers those that models.toml has.
        Where it has none, the screen of this machine's models opens."""
        screen, answerer, named = self._screen, self._screen.session.answerer, Catalog.load().endpoints
        if name in named:
            screen.run_worker(_take(screen, named[name]), group="server", exclusive=True)
        elif isinstance(answerer, ServedAnswerer):
            screen.run_worker(_choose(screen, answerer, name), group="server", exclusive=True)
        elif name and knows(name):
            find(name)
            screen.choose(name)
        elif name:
            raise UsageError(f"No model is called {name!r}.", "F5 lists the models of this machine.")
        elif named:
            screen.run_worker(_offer(screen, list(named.values())), group="server", exclusive=True)
        else:
            screen.open("models")

    def servers(self, _: str) -> None:
        """Lets a server of this machine answer; prompts go there only once the user has agreed (`ChatPane.agreed`)."""
        self._screen.run_worker(_search(self._screen), group="server", exclusive=True)

    def stop(self, _: str) -> None:
        self._screen.front.stop()

    async def make_room(self, event: ChatPane.Full) -> None:
        """Asks what to do about a question that does not fit, and does it; from a worker, as it opens a dialog."""
        pane = event.pane
        with errors_said(pane):
            found = await asyncio.to_thread(window, pane.session.answerer, pane.chat, pane.path, event.question)
            what = "This chat has" if found.fits else "Your message alone is too long: there are"
            question = (
                f"{what} {event.tokens:,} tokens, and {room(event.limit):,} more are for the answer; the context holds "
                f"{event.limit:,}. `localspec --context N` begins with a larger one."
            )
            own = pane.own_model.model
            answers = [*(_ROOM if found.fits else ()), _EDIT]
            if own:
                answers.append(("own", f"Let {short(own)} answer", "It answered in this chat before."))
            chosen = await pane.app.push_screen_wait(ChoiceDialog(question, answers))
            if chosen == "own":
                self._screen.load(own)
                pane.ask()
            elif chosen in ("drop", "summarise"):
                summary = await summarise(pane, found, event.question) if chosen == "summarise" else ""
                if summary is not None:
                    await set_window(pane, found.first.id, summary)
                    pane.ask()
            elif chosen == "new":
                last = pane.path[-1]
                fresh = await self._screen.open_chat()
                pane.session.archive.append_user(fresh.chat_id, last.content, attachments=last.attachments)
                await fresh.transcript.show(fresh.path)
                fresh.ask()
            elif pane.path and pane.path[-1].role == "user":
                pane.edit(pane.path[-1])


async def _offer(screen: ChatScreen, named: Sequence[EndpointEntry]) -> None:
    rows: list[tuple[EndpointEntry | str, str, str]] = [("here", "a model of this machine", "")]
    rows += [(one, one.name, one_line(one.endpoint)) for one in named]
    chosen = await screen.app.push_screen_wait(ChoiceDialog("Which model shall answer?", rows))
    if isinstance(chosen, EndpointEntry):
        await _take(screen, chosen)
    elif chosen is not None:
        screen.open("models")


async def _take(screen: ChatScreen, entry: EndpointEntry) -> None:
    """The user has written its address into models.toml, so that nothing is asked before a prompt goes there."""
    pane, answerer = screen.pane, screen.session.answerer
    with errors_said(screen):
        key = await asyncio.to_thread(key_for, entry)  # a keyring may ask for its password
        found = ServedAnswerer(entry.endpoint, entry.model or None, key)
        if screen.session.answerer is answerer:
            screen.use(found)
            _sign(screen, pane, entry.name)


async def _choose(screen: ChatScreen, answerer: ServedAnswerer, name: str) -> None:
    pane = screen.pane
    with errors_said(screen):
        try:
            names = await errand(answerer.models, "The list of models")
        except Cancelled:
            return  # another model answers meanwhile
        if name and name not in names:
            if not knows(name):
                raise UsageError(f"{answerer.base} has no model {name!r}.", f"It has: {_listed(names)}.")
            find(name)
            screen.choose(name)
            return
        chosen = name or await _pick(screen, f"Models of {answerer.base}", names, answerer.model)
        if chosen is not None and screen.session.answerer is answerer:
            answerer.choose(chosen, Posts(screen.app))
            _sign(screen, pane, chosen)
            say(screen, f"{chosen} answers from now on.")


async def _search(screen: ChatScreen) -> None:
    """Looks at the usual ports of this machine, and lists what answers."""
    pane, answerer = screen.pane, screen.session.answerer
    say(screen, "Looking for servers on this machine …")
    own = port_here(answerer.base) if isinstance(answerer, ServedAnswerer) else None
    leave_out = () if own is None else (own,)
    found = await asyncio.to_thread(lambda: asyncio.run(search.servers(leave_out=leave_out)))
    if not found:
        ports = ", ".join(str(port) for port in search.PORTS if port not in leave_out)
        say(screen, f"No {'other ' if own else ''}server answers on this machine at the ports {ports}.", problem=True)
        return
    rows = [
        (one, f"{one.address} · {one.usual}'s port", one_line(_listed(one.models)) or "it lists no models")
        for one in found
    ]
    server = await screen.app.push_screen_wait(ChoiceDialog("Servers on this machine: which one shall answer?", rows))
    if server is None:
        return
    if not server.models:
        say(screen, f"{server.address} lists no models; load one there first.", problem=True)
        return
    several = len(server.models) > 1
    model = await _pick(screen, f"Models of {server.address}", server.models) if several else server.models[0]
    if model is not None and screen.session.answerer is answerer:
        screen.use(ServedAnswerer(server.address, model), server.address)
        _sign(screen, pane, model)


def _sign(screen: ChatScreen, pane: ChatPane | None, model: str) -> None:
    if pane is not None:
        screen.session.archive.update_chat(pane.chat_id, model=model)


async def _pick(screen: ChatScreen, question: str, names: Sequence[str], current: str | None = None) -> str | None:
    """One of the names; None = given up."""
    rows = [(name, one_line(name), "answers now" if name == current else "") for name in names]
    return await screen.app.push_screen_wait(ChoiceDialog(one_line(question), rows))


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + rest


async def set_window(pane: ChatPane, first: int | None, summary: str = "") -> None:
    """From now on the model sees the chat from this message on, and the summary; None = all of it."""
    pane.session.archive.update_chat(pane.chat_id, window_first=first, window_summary=summary)
    await pane.transcript.mark(pane.chat)
    pane.count()


async def _compact(pane: ChatPane) -> None:
    """Lets the model summarise all before the last turn, and sends it that instead from now on; says what it brought,
    or why nothing is changed."""
    session, chat, path = pane.session, pane.chat, pane.path
    try:
        if session.facts is None:
            raise UsageError("A summary needs a model, and none is ready yet.", "Try again once it is loaded.")
        question = pane.question()
        found = last_turn(chat, path, question)
        if found is None:
            raise UsageError("There is nothing before your last message that could be summarised.")
        summary = await summarise(pane, found, question) if await pane.agreed() else None
        if summary is not None:
            begun = replace(chat, window_first=found.first.id, window_summary=summary)
            before = (await asyncio.to_thread(fit, session.answerer, question)).tokens
            after = (await asyncio.to_thread(fit, session.answerer, question_of(begun, path, session.facts))).tokens
            if before is not None and after is not None and after >= before:
                raise LocalspecError("The summary is as long as what it would stand for; nothing is changed.")
            await set_window(pane, found.first.id, summary)
            tokens = "" if before is None else f": {after:,} tokens instead of {before:,}"
            say(pane, f"The model goes on with a summary{tokens}. /compact off undoes it.")
    except LocalspecError as error:
        say(pane, str(error), problem=True)
        pane.hand_back()
    else:
        pane.send_next()


async def summarise(pane: ChatPane, found: Window, question: Question) -> str | None:
    """The model's summary of what a window drops; None = it was stopped, which is said. Raises LocalspecError: it
    failed, or has no words."""
    answerer = pane.session.answerer
    asked = await asyncio.to_thread(summary_question, answerer, found, question)
    summary = await pane.compactor.write(answerer, asked)
    if summary is None:
        say(pane, "The summary was stopped; nothing is changed.")
    elif not summary:
        raise LocalspecError("The model wrote no summary; nothing is changed.")
    return summary
