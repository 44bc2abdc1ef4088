"""The chat: tabs, and what keys, slash commands and the palette do with the chat in front; and pages above it."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets._toast import ToastRack  # has no public name

from localspec.chat.archive.message import Chat, StoredMessage
from localspec.chat.plain_text import counted_lines, one_line, plain_text
from localspec.models.installed import installed
from localspec.remote.answerer import AnswerEnded, Answerer, AnswerPart, Prefilled
from localspec.tui.talk.session import Posted, Posts, Session
from localspec.tui.text.typesetting import code_blocks, code_head
from localspec.tui.widgets.chat_tabs import ChatTabs, Unsaved, chats_at_start
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.dialogs import ChoiceDialog, copy, edited, errors_said, say
from localspec.tui.widgets.meter import Live, Meter, ReadingSpeed
from localspec.tui.widgets.pane import ChatPane, tab_label
from localspec.tui.widgets.registry import CLOSE, COMMANDS, OWN, SCREENS, VIEWS, bind, commands, load
from localspec.tui.widgets.transcript import MARKDOWN, Bubble, Welcome

_STATUS_SECONDS = 0.5  # between two renewals of the line at the bottom, so that what is waited for moves
_NOTES_LINES = 5  # the least that notes in the corner have: enough for one
_SHOWN_LINES = 3  # of each block of code, where it is asked which one is meant
_PRIVATE = "Private: nothing of these chats is kept. /private ends them, and leads back to your others."


class ChatScreen(Screen[None]):
    """At the bottom of everything; other screens lie above it."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (50, "-wide")]  # noqa: RUF012 - Textual does not declare it as one of the class
    VERTICAL_BREAKPOINTS = [(0, "-low"), (18, "-high")]  # noqa: RUF012 - the same
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("chat.stop", "escape", "stop", "Stop", "Stop the answer, close the list, give up editing", show=True),
        bind("chat.new", "ctrl+n", "new", "New", "A new chat in a tab of its own", show=True, priority=True),
        bind("chat.again", "ctrl+r", "regenerate", "Again", "Answer the last message once more", priority=True),
        bind("chat.edit", "ctrl+g", "edit", "Edit", "Edit your last message and send it again", priority=True),
        bind("chat.copy", "ctrl+l", "copy", "Copy", "Copy the last answer", priority=True),
        bind("chat.find", "ctrl+f", "app.open('history')", "Find", "Search all chats", show=True, priority=True),
        bind("chat.next", "ctrl+pagedown", "tab(1)", "Next tab", "The chat in the next tab", priority=True),
        bind("chat.previous", "ctrl+pageup", "tab(-1)", "Tab before", "The chat in the tab before", priority=True),
        bind("chat.close", "ctrl+f4", "close_tab", "Close", "Close this tab; the chat is kept", priority=True),
        bind("chat.walk_up", "ctrl+up", "walk(-1)", "Message above", "Go to the message above", priority=True),
        bind("chat.walk_down", "ctrl+down", "walk(1)", "Message below", "Go to the message below", priority=True),
        bind("chat.page_up", "pageup", "page(-1)", "Page up", "Scroll the chat up", priority=True),
        bind("chat.page_down", "pagedown", "page(1)", "Page down", "Scroll the chat down", priority=True),
        bind("chat.look", "f6", "look", "View", "Look at answers in another way", priority=True),
        bind("chat.undo", "ctrl+u", "undo", "Undo", "On a message: undo the last deletion (else /undo)"),
        bind("chat.end_thinking", "ctrl+t", "end_thinking", "Answer", "End the thinking; answer now", priority=True),
        bind("chat.editor", "f12", "editor", "Editor", "Write the prompt in your own editor", priority=True),
    ]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self._view = MARKDOWN
        # Kept, not looked up: a query goes through every block of every message.
        self._tabs, self._unsaved, self._meter = ChatTabs(session), Unsaved(session.archive), Meter()
        self._private = Static(_PRIVATE, id="private")
        self._speed = ReadingSpeed()
        self._changing = False  # another model is being loaded, in place of one that answered

    def compose(self) -> ComposeResult:
        yield from (self._private, self._tabs, self._unsaved, self._meter, Footer(show_command_palette=False))

    def open(self, name: str, *words: str) -> None:
        """Opens a screen of the registry; a second call while it is open does nothing."""
        kind = load(next(row.home for row in SCREENS if row.name == name))
        if not any(isinstance(screen, kind) for screen in self.app.screen_stack):
            self.app.push_screen(kind(self, *words))

    async def on_mount(self) -> None:
        await self._begin()
        self.set_interval(_STATUS_SECONDS, self.show_status)
        self.screen_layout_refresh_signal.subscribe(self, self._lift_notes)

    async def _begin(self) -> None:
        chats, front = list[Chat](), None
        session = self.session
        self._private.display = session.private
        if self._tabs.claim(session.archive):
            chats, front = chats_at_start(session.archive, session.resume, session.preferences.resume)
        elif session.resume:
            say(self, "Another window has your chats open. This one begins with a new chat; F4 lists all.")
        pane = await self.open_chat(None if front is None else front.id)
        self.call_after_refresh(self._tabs.bring_back, chats, pane)

    def _lift_notes(self, _: Screen[Any]) -> None:
        """Notes in the corner lie over messages, not over the input and what stands around it."""
        height = self.size.height
        for rack in self.query_children(ToastRack):
            beneath = 1 if self.pane is None else height - self.pane.transcript.region.bottom
            rack.styles.margin = (0, 0, max(1, min(beneath, height - _NOTES_LINES)), 0)

    async def set_private(self, private: bool) -> None:
        """Puts the open chats away, and begins with private ones; or drops those, and opens the others again."""
        for pane in self.panes:
            self._leave(pane)
        self._tabs.settled = False
        for pane in self.panes:
            await self._tabs.drop(pane)
        self.session.set_private(private)
        await self._begin()

    def on_screen_resume(self) -> None:
        for welcome in self.query(Welcome):
            welcome.show()  # what another screen has said since holds here, too

    @property
    def panes(self) -> list[ChatPane]:
        return list(self._tabs.panes)

    @property
    def pane(self) -> ChatPane | None:
        """The chat in front; None = there is none yet."""
        return self._tabs.front

    @property
    def front(self) -> ChatPane:
        pane = self.pane
        assert pane is not None
        return pane

    @property
    def context_use(self) -> tuple[int, int] | None:
        """(tokens of the chat in front, tokens that fit); None = not known."""
        pane, facts = self.pane, self.session.facts
        if pane is None or facts is None or facts.context is None or pane.context_tokens is None:
            return None
        return pane.context_tokens, facts.context

    async def open_chat(self, chat_id: int | None = None, message_id: int | None = None) -> ChatPane:
        """Shows a chat in its tab, or a new one; scrolls to a message if one is named."""
        if chat_id is None:
            session, begin = self.session, dict(self.session.begin)
            system, params = begin.pop("system", session.preferences.system), session.preferences.parameters | begin
            chat = session.archive.new_chat(system=system, model=session.model, params=params)
        else:
            chat = self.session.archive.chat(chat_id)
        pane = next((pane for pane in self.panes if pane.chat_id == chat.id), None)
        if pane is None:
            pane = ChatPane(self.session, chat)
            await self._tabs.add(pane)
        self._tabs.active = str(pane.id)
        if message_id is not None:
            await pane.transcript.show(self.session.archive.choose(message_id))
            self.call_after_refresh(pane.transcript.reveal, message_id)
        else:
            pane.composer.focus()
        self.show_titles()
        self.show_status()
        return pane

    action_new = open_chat

    def _leave(self, pane: ChatPane) -> None:
        pane.leave()
        self.run_worker(partial(self.session.end_tools, pane.key), thread=True)

    async def close_chat(self, pane: ChatPane) -> None:
        self._leave(pane)
        if len(self.panes) == 1:
            await self.open_chat()
        await self._tabs.drop(pane)
        if self.pane is not None:
            self.pane.composer.focus()

    async def on_tabbed_content_tab_activated(self) -> None:
        self._tabs.remember()
        if self.pane is not None and self.pane.is_mounted:
            await self.pane.wake()
            if not isinstance(self.focused, Bubble):
                self.set_focus(self.pane.composer)  # at once: a message may be about to be revealed
            self._offer_own_model()
        self.show_status()

    def show_status(self) -> None:
        session, pane, live = self.session, self.pane, Live()
        note = f"no model: {session.failure}" if session.failure else ""
        if pane is not None:
            live = pane.live
            others = any(other.answer is not None for other in self.panes if other is not pane)
            note = note or pane.starting or live.waits(self._speed, others)
            if pane.elsewhere:
                note = note or "another window answers in this chat"
        if self.is_mounted:
            self._unsaved.tell()
            self._meter.tell(session.facts, session.loading, self.context_use, live, note)

    def show_titles(self) -> None:
        for pane in self.panes:
            self._tabs.get_tab(pane).label = tab_label(pane.chat)

    def on_chat_pane_changed(self) -> None:
        self.show_titles()
        self.show_status()
        self._offer_own_model()

    def _offer_own_model(self) -> None:
        if (pane := self.pane) is not None and pane.is_mounted:
            chat = pane.chat
            pane.own_model.offer(chat.model, self.session.facts, chat.messages > 1)

    def learn_anew(self) -> None:
        """A model became ready or failed, or another is being loaded: it reads at another speed, and may be another
        than the chat's."""
        self._speed.seconds = None
        facts = self.session.facts
        if self._changing and facts is not None:
            self._changing = False
            say(self, f"{facts.name} answers from now on.")
        self.on_screen_resume()
        self._offer_own_model()
        self.show_status()

    def on_unsaved_saved(self) -> None:
        say(self, "The chats of this session are saved.")
        self._tabs.remember()
        self.show_status()

    def on_posted(self, event: Posted) -> None:
        if isinstance(event.told, AnswerPart | AnswerEnded | Prefilled):
            self._hear(event.told)

    def _hear(self, told: AnswerPart | AnswerEnded | Prefilled) -> None:
        for pane in self.panes:
            if pane.live.answer is told.answer:
                pane.live.hear(told, self._speed)
                self.show_status()
                if pane is self.pane:
                    self._meter.draw(now=not isinstance(told, AnswerPart))

    def on_chat_pane_full(self, event: ChatPane.Full) -> None:
        self.run_worker(load(COMMANDS)(self).make_room(event), group="overflow")

    def use(self, answerer: Answerer, stranger: str = "") -> None:
        """Answers come from another model from now on; the old one is freed first. `stranger`: see `Session`."""
        for pane in self.panes:
            pane.stop()
            pane.live = Live()  # its figures are the old one's
        self._changing = True
        old = self.session.use(answerer, stranger)

        def change() -> None:
            old.close()  # both may not fit memory at once
            answerer.start(Posts(self.app))

        self.learn_anew()
        self.run_worker(change, thread=True, group="models")

    def load(self, target: str | None, draft: str | None = None, **settings: Any) -> bool:
        """Loads models of this machine; says why if that cannot be."""
        with errors_said(self):
            self.use(self.session.made(target, draft, **settings))
            return True
        return False

    def choose(self, target: str, draft: str | None = None) -> bool:
        """Loads models of this machine, now and at later starts, and signs the chat in front with the target."""
        pane, loaded = self.pane, self.load(target, draft)
        if loaded:
            if pane is not None:
                self.session.archive.update_chat(pane.chat_id, model=target)
            with errors_said(self):
                installed.choose(target, draft)
        return loaded

    @work(group="exchange")
    async def tell(self, errand: Coroutine[Any, Any, str]) -> None:
        with errors_said(self):
            say(self, await errand)

    async def delete_chat(self, chat: Chat, undo: str) -> None:
        """Deletes a chat and what is kept of its answers; `undo`: what brings it back, in words."""
        for pane in self.panes:
            if pane.chat_id == chat.id:
                await self.close_chat(pane)  # first: it still keeps its unsent text
        self.session.archive.delete_chat(chat.id)
        self.run_worker(partial(self.session.forget, chat.key), thread=True)
        say(self, f"Deleted {plain_text(chat.title) or 'the chat'}; {undo} brings it back.")

    async def on_composer_submitted(self, event: Composer.Submitted) -> None:
        """Sends or queues a message, or does what a slash command says."""
        pane, text = self.front, event.prompt.text
        name, _, rest = text.strip()[1:].partition(" ")
        known = {row.name for row in commands()}
        if text.startswith("/") and name in known and pane.editing is None:
            pane.composer.take()
            try:
                await self.command(name, rest.strip())
            except Exception:
                pane.composer.put(text)
                raise
        elif text.startswith("/") and re.fullmatch(r"/[a-z]+", text.split(maxsplit=1)[0]):
            say(self, f"There is no command /{name}; F1 lists them. A space in front sends it as text.", problem=True)
        else:
            pane.send(event.prompt)

    async def command(self, name: str, rest: str) -> None:
        """Runs a slash command on the chat in front, or opens the screen that is called so."""
        if any(row.name == name for row in SCREENS):
            self.open(name)
            return
        with errors_said(self):
            await load(COMMANDS)(self).run(name, rest)

    def palette(self) -> Iterable[SystemCommand]:
        """The slash commands that need no words after them."""
        for row in sorted(OWN):
            if not row.usage.startswith(("TAG", "FILE", "N")):
                call = partial(self.call_later, self.command, row.name, "")
                yield SystemCommand(f"/{row.name}", row.doc[0].upper() + row.doc[1:], call)

    @property
    def _marked(self) -> StoredMessage | None:
        return self.focused.message if isinstance(self.focused, Bubble) else None

    def _asked(self) -> StoredMessage | None:
        return next((message for message in reversed(self.front.path) if message.role == "user"), None)

    def action_stop(self) -> None:
        """Esc: the nearest thing that can end, ends."""
        pane = self.front
        if pane.suggestions.display:
            pane.suggestions.close()
        elif pane.waits:
            pane.waits[-1].set()
        elif pane.answer is not None or pane.queue.prompts or pane.compactor.writing:
            pane.stop()
        elif pane.editing is not None:
            pane.end_edit()
        else:
            self.clear_selection()
            pane.composer.focus()

    def action_own_model(self) -> None:
        """The model that answered in the chat in front before answers again; later starts are left as they are."""
        model = self.front.own_model.model
        if model:
            self.load(model)
        else:
            say(self, "The model of this chat answers, or it is not here any more.", problem=True)

    async def action_compact(self) -> None:
        await self.command("compact", "")

    def action_end_thinking(self) -> None:
        self.front.end_thinking()

    async def action_close_tab(self) -> None:
        await self.close_chat(self.front)

    def action_tab(self, step: int) -> None:
        panes = self.panes
        index = (panes.index(self.front) + step) % len(panes)
        self._tabs.active = str(panes[index].id)

    def action_page(self, step: int) -> None:
        transcript = self.front.transcript
        transcript.scroll_relative(y=step * max(1, transcript.size.height - 2), animate=False)

    def action_walk(self, step: int) -> None:
        """Moves the focus from message to message; below the last one is the input."""
        pane = self.front
        bubbles = pane.transcript.bubbles
        here = next((i for i, bubble in enumerate(bubbles) if bubble is self.focused), len(bubbles))
        there = here + step
        if there < 0:
            pane.transcript.reveal_before()
        elif there >= len(bubbles):
            pane.transcript.to_end()
            self.set_focus(pane.composer)
        else:
            self.set_focus(bubbles[there])  # at once: the next key may follow from there

    def action_write(self) -> None:
        self.set_focus(self.front.composer)  # at once: the next letter is the input's

    def action_edit(self) -> None:
        message = self._marked or self._asked()
        if message is None:
            say(self, "There is no message of yours to edit.", problem=True)
        else:
            self.front.edit(message)

    def action_editor(self) -> None:
        composer = self.front.composer
        with errors_said(self):
            composer.put(edited(self.app, composer.text))

    def action_regenerate(self) -> None:
        """Answers again: the focused answer's question, the focused question, or the last one."""
        message = self._marked or self._asked()
        if message is None:
            say(self, "There is nothing to answer yet.", problem=True)
        elif (again := message.id if message.role == "user" else message.parent_id) is not None:
            self.front.ask(again=again)

    def action_go_on(self) -> None:
        path = self.front.path
        if not path or path[-1].role != "assistant":
            say(self, "There is no answer that could go on.", problem=True)
        else:
            self.front.ask(go_on=True)

    def action_copy(self) -> None:
        if selected := self.get_selected_text():
            copy(self.app, selected, "Selection")
        elif (message := self.front.selected) is not None:
            copy(self.app, message.content, "Message")

    @work(exclusive=True, group="code")
    async def action_copy_code(self) -> None:
        """Copies the block of code of the chosen message; asks which one if there are several."""
        message, rows = self.front.selected, list[tuple[str, str, str]]()
        for number, (language, code) in enumerate(code_blocks(message.content) if message is not None else (), 1):
            lines = plain_text(code).strip("\n").split("\n")
            shown = ["│ " + line for line in lines[:_SHOWN_LINES]] + ["│ ..."] * (len(lines) > _SHOWN_LINES)
            head = f"{code_head(number, one_line(language))} · {counted_lines(code)}"
            rows.append((code, head, "\n".join(shown)))
        if not rows:
            say(self, "There is no code block in this message.", problem=True)
            return
        if len(rows) == 1:
            copy(self.app, rows[0][0], "Code block")
        elif (chosen := await self.app.push_screen_wait(ChoiceDialog("Which block of code?", rows))) is not None:
            copy(self.app, chosen, "Code block")

    def action_sibling(self, step: int) -> None:
        if (message := self._marked) is not None:
            self.action_sibling_of(message.id, step)

    @work(group="path")  # a click comes from a bubble that goes: it cannot wait for its own end
    async def action_sibling_of(self, message_id: int, step: int) -> None:
        """Another version of a message, and what followed it."""
        pane = self.front
        pane.stop()
        parent = self.session.archive.message(message_id).parent_id
        path = self.session.archive.sibling(message_id, step)
        pane.transcript.release_anchor()  # it stays in its place, however long what follows is
        await pane.transcript.show(path)
        pane.transcript.reveal(next(message.id for message in path if message.parent_id == parent))
        pane.count()

    @work(group="path")
    async def action_delete_message(self) -> None:
        if (message := self._marked) is None:
            return
        pane = self.front
        pane.stop()
        self.session.archive.delete_message(message.id)
        await pane.transcript.show(pane.path)
        pane.composer.focus()
        pane.count()
        say(self, "Deleted, with what followed it; /undo brings it back.")

    async def action_branch(self) -> None:
        path = self.front.path
        if not path:
            say(self, "There is nothing to branch from yet.", problem=True)
            return
        await self.open_chat(self.session.archive.branch((self._marked or path[-1]).id).id)
        say(self, "This is a new chat with the messages so far; the other one is as it was.")

    async def action_undo(self) -> None:
        deletions = self.session.archive.deletions()
        if not deletions:
            say(self, "There is nothing to bring back.", problem=True)
            return
        self.session.archive.undo(deletions[0].id)
        pane = await self.open_chat(deletions[0].chat_id)
        await pane.transcript.show(pane.path)
        pane.count()

    async def action_look(self) -> None:
        views = [MARKDOWN, *(row.name for row in VIEWS)]
        self._view = views[(views.index(self._view) + 1) % len(views)]
        for pane in self.panes:
            await pane.transcript.look(self._view)


class Page(Screen[None]):
    """A full screen above the chat, which Esc closes."""

    VERTICAL_BREAKPOINTS = ChatScreen.VERTICAL_BREAKPOINTS
    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__()
        self.chats, self.session = chats, chats.session

    def action_close(self) -> None:
        self.dismiss(None)

    def compose(self) -> ComposeResult:
        yield Static(self.title or "", classes="page-title", markup=False)
        yield from self.body()
        yield Footer()

    def body(self) -> ComposeResult:
        yield from ()
