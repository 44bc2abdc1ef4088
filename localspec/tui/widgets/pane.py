"""One chat: its messages, its input, and the answer under way. The archive keeps everything; this shows and asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from time import monotonic
from typing import Literal

from textual import work
from textual.app import ComposeResult
from textual.message import Message as TextualMessage
from textual.widgets import TabPane

from localspec.chat.archive.archive import AnswerWriter
from localspec.chat.archive.message import Attachment, Chat, StoredMessage
from localspec.chat.export import signature
from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.turn import Message
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import ContextOverflowError, LocalspecError, RunnerError, UsageError
from localspec.models.installed import installed
from localspec.paths import typed
from localspec.remote.answerer import Answer, AnswerEnded, AnswerPart, Prefilled, Question, Taken
from localspec.tools.answers import CallDue, CallMade, Noticed, OfTools, answer_with
from localspec.tools.toolbox import Consent, Toolbox
from localspec.tui.talk import files
from localspec.tui.talk.session import Fit, Inbox, Posted, Session, fit, last_turn, question_of, room
from localspec.tui.widgets.composer import Compactor, Composer, OwnModel, Queue, Suggestions, WrittenPrompt, joined
from localspec.tui.widgets.dialogs import ChoiceDialog, T, errand, errors_said, say
from localspec.tui.widgets.meter import Live
from localspec.tui.widgets.transcript import Bubble, Transcript

_STOP_SECONDS = 0.02
"""How long a stopped answer may take to tell its figures; 0.025 went by before it was sure that Esc is Esc."""
_SAVE_SECONDS = 0.7  # how long after the last key unsent text is saved
_LOOK_SECONDS = 1.0  # how often it is looked for what other windows write
_CONSENT_SECONDS = 0.05  # between two looks whether a call can be asked for
_LONGEST_LABEL = 24  # characters of a tab's label; three tabs fit a terminal of 80 columns
_LONG_SECONDS = 10.0  # from asking to the end of an answer: so long that the user may have turned away
_ASKING = ("send", "ask", "compact")  # groups of workers that lead to an answer, or to a summary


class ChatPane(TabPane):
    """A tab. Knows its chat's id; everything else of the chat is read from the archive."""

    class Changed(TextualMessage):
        """Title, context use or state differ: the screen should look again."""

    @dataclass
    class Full(TextualMessage):
        """The next question does not fit the context; nothing was asked."""

        pane: ChatPane
        question: Question
        tokens: int
        limit: int

    @dataclass
    class LongAnswered(TextualMessage):
        """An answer has ended that the user may have turned away from."""

        title: str

    def __init__(self, session: Session, chat: Chat, asleep: bool = False) -> None:
        """`asleep`: its messages are drawn when it is woken."""
        super().__init__(tab_label(chat), id=f"chat-{chat.key}")
        self.session, self.chat_id, self.key, self._asleep = session, chat.id, chat.key, asleep
        self.answer: Answer | None = None  # the one under way
        self.live = Live()  # what the meter tells of the last one
        self.editing: int | None = None  # id of the message whose new version is in the input
        self.context_tokens: int | None = None  # tokens of the chat as the model sees it; None = not counted yet
        self._writer: AnswerWriter | None = None
        self._bubble: Bubble | None = None
        self._inbox: Inbox | None = None  # through which the answer comes
        self._asked = 0.0  # when the answer was asked for, in seconds of the monotonic clock
        self._asking: tuple[Question, list[StoredMessage], bool] | None = None
        """What was asked for, of whom, and whether an answer goes on; until it is taken."""
        self._stopped = False  # the user stopped the answer; what still comes of it is not shown
        self._thinks = False  # the answer under way has thoughts and says nothing yet
        self.elsewhere = False  # another window writes the last answer
        self._version: int | None = None  # of the archive, when it was looked at last
        self._unsaved: float | None = None
        self._put_aside = ""
        self._sending: WrittenPrompt | None = None  # on its way into the archive
        self.waits = list[Event]()  # of what is asked of servers for the user: set, it ends

    def compose(self) -> ComposeResult:
        liked, archive = self.session.preferences, self.session.archive
        self.transcript = Transcript(self.session)
        self.composer = Composer(partial(archive.prompts, limit=500), liked.enter_sends, liked.fold_paste_lines)
        self.suggestions = Suggestions(self.composer, partial(self.session.toolbox, self.key), {
            "/model": lambda: errand(lambda: [(name, "") for name in installed.names()]),
            "/preset": lambda: errand(lambda: [(one.name, one_line(one.system)) for one in archive.presets()]),
            "/prompt": lambda: self.of_servers(Toolbox.prompts),
        })  # fmt: skip
        self.compactor, self.own_model, self.queue = Compactor(), OwnModel(), Queue()
        self.composer.take_queued = self.queue.take_last
        yield from (self.transcript, self.compactor, self.own_model, self.queue, self.suggestions, self.composer)

    async def of_servers(self, ask: Callable[[Toolbox, Callable[[], bool]], T]) -> T:
        """What `ask` gets of the servers of this chat, and is to give up as its second argument says: Esc was pressed.
        Raises LocalspecError: it fails; Cancelled."""
        toolbox, ended = self.session.toolbox(self.key), Event()
        if toolbox is None:
            raise UsageError("There are no servers.", "In a shell: localspec mcp add NAME -- COMMAND")
        if not toolbox.listed:
            say(self, "The servers are being started; Esc ends the wait.")
        self.waits.append(ended)
        try:
            return await errand(lambda: ask(toolbox, ended.is_set))
        finally:
            ended.set()
            self.waits.remove(ended)
            for text in toolbox.notices():
                say(self, text, problem=True)

    async def on_mount(self) -> None:
        self.composer.put(self.chat.unsent)
        if not self._asleep:
            await self._draw()

    async def wake(self) -> None:
        if self._asleep:
            self._asleep = False
            await self._draw()

    async def _draw(self) -> None:
        await self.transcript.mark(self.chat)
        await self.transcript.show(self.path)
        self.count()
        self.set_interval(_SAVE_SECONDS / 2, self._save_unsent)
        self._look_elsewhere()
        self.set_interval(_LOOK_SECONDS, self._look_elsewhere)

    @work(exclusive=True, group="elsewhere")
    async def _look_elsewhere(self) -> None:
        """Shows what another window has written into this chat, and whether it is writing now."""
        if self.answer is not None or self.busy or not self.display:
            return
        archive = self.session.archive
        version = archive.version
        if version == self._version and not self.elsewhere:
            return
        first, self._version = self._version is None, version
        try:
            path = self.path
            self.elsewhere = bool(path) and archive.written_elsewhere(path[-1])
        except LocalspecError:
            return  # it was deleted there
        if not first:
            await self.transcript.catch_up(self.path)
        self.post_message(self.Changed())

    @property
    def chat(self) -> Chat:
        return self.session.archive.chat(self.chat_id)

    @property
    def path(self) -> list[StoredMessage]:
        return self.session.archive.path(self.chat_id)

    @property
    def selected(self) -> StoredMessage | None:
        """The focused message, else the last answer, else the last message."""
        focused = self.screen.focused
        if isinstance(focused, Bubble):
            return focused.message
        path = self.path
        return next((message for message in reversed(path) if message.role == "assistant"), path[-1] if path else None)

    @property
    def starting(self) -> str:
        """The servers that an answer waits for, in words; "" = none."""
        facts, toolbox = self.session.facts, None if self.answer is None else self.session.toolbox(self.key)
        if toolbox is None or facts is None or facts.completes:
            return ""
        names = ", ".join(toolbox.connections.starting(toolbox.off))
        return f"The servers start: {names} ..." if names else ""

    def question(self) -> Question:
        toolbox = self.session.toolbox(self.key)
        question = question_of(self.chat, self.path, self.session.facts, private=self.session.private)
        return question if toolbox is None else replace(question, tools=toolbox.told)

    def on_text_area_changed(self) -> None:
        self._unsaved = monotonic()
        self.suggestions.follow()
        if not self.composer.text:
            self.queue.place = None  # what was taken to be edited does not come back

    def on_queue_returned(self, event: Queue.Returned) -> None:
        event.stop()
        if self.editing is not None:
            self.end_edit()
        self.composer.restore([event.prompt])
        self.composer.focus()

    def on_queue_emptied(self) -> None:
        self.composer.focus()

    @property
    def busy(self) -> bool:
        """Whether an answer is under way or about to be asked for."""
        asking = (worker for worker in self.workers if worker.node is self and worker.group in _ASKING)
        answering = self.answer is not None and not self._stopped
        return answering or self.compactor.writing or any(not worker.is_finished for worker in asking)

    def send(self, prompt: WrittenPrompt) -> None:
        """Sends what was written; while an answer is under way it joins the queue."""
        if self.elsewhere:
            say(self, "Another window answers in this chat; send it when that answer has ended.", problem=True)
            return
        if self.editing is not None:
            self._send(prompt)
            return
        self.composer.take()
        if self.busy:
            self.queue.add(prompt)
        else:
            self._sending = prompt
            self._send(prompt)

    def hand_back(self, *first: WrittenPrompt) -> None:
        """Puts prompts that were not sent, and the queued ones, into the input before what is written there."""
        prompts = [*first, *self.queue.pop_all()]
        if self.editing is None:
            self.composer.restore(prompts)
        else:
            self._put_aside = joined(prompts, self._put_aside)

    @work(group="send")
    async def _send(self, prompt: WrittenPrompt) -> None:
        """Sends a prompt, or the new version of an edited message, and asks; what is not sent goes back."""
        try:
            with errors_said(self):
                await self._send_with_files(prompt)
        except Exception:
            self._take_back(prompt)
            raise
        self._take_back(prompt)

    def _take_back(self, prompt: WrittenPrompt) -> None:
        if self._sending is not None:
            self._sending = None
            self.hand_back(prompt)

    async def _send_with_files(self, prompt: WrittenPrompt) -> None:
        archive, attachments = self.session.archive, prompt.attachments
        edited = None if self.editing is None else archive.message(self.editing)
        answer_edited = edited is not None and edited.role == "assistant"
        if not answer_edited:  # in an answer an @path is a word of the model's
            named = await asyncio.to_thread(files.attached, prompt.text)
            below = await self._folders(prompt.text)
            if below is None:
                return
            words = files.resources(prompt.text, [one.name for one in self.session.servers])
            read = [Attachment(word, await self.of_servers(partial(Toolbox.read, name=word))) for word in words]
            attachments = (*attachments, *named, *below, *read)
        self._end()
        if self._sending is not None:
            archive.append_user(self.chat_id, prompt.text, attachments=attachments)
            self._sending = None
        elif edited is not None and edited.id == self.editing:
            names = {one.name for one in attachments}
            again = tuple(name.rstrip("/") + "/" for name in files.folders(prompt.text))
            kept = [  # those that the new version mentions and that are not here to be read any more
                one
                for one in edited.attachments
                if one.name not in names and not one.name.startswith(again) and files.mentioned(prompt.text, one.name)
            ]
            archive.edit(edited.id, prompt.text, attachments=(*kept, *attachments))
            self.end_edit()
        self._unsaved = monotonic()  # what is queued and what has been written since
        await self.transcript.show(self.path)
        self.transcript.to_end()
        self.post_message(self.Changed())
        if answer_edited:
            self.count()
        else:
            self.ask()

    async def _folders(self, text: str) -> tuple[Attachment, ...] | None:
        """The files of the folders that a message mentions, if the user wants them; None = do not send it."""
        found: tuple[Attachment, ...] = ()
        for name in files.folders(text):
            inside = await asyncio.to_thread(files.attached_below, typed(name), name)
            words = "\n\n".join(f"{one.name}\n{one.content}" for one in inside)
            asked = replace(self.question(), messages=[Message("user", words)], prefix="", reasoning="")
            tokens = (await asyncio.to_thread(fit, self.session.answerer, asked)).tokens
            size = f"{tokens:,} tokens" if tokens is not None else f"{len(words):,} characters"
            limit = self.session.facts.context if self.session.facts is not None else None
            room = f"; a chat can hold {limit:,}" if limit is not None else ""
            what = f"the {len(inside)} text files" if len(inside) > 1 else "the text file"
            question = f"Attach {what} of {name}: {size}{room}?"
            answer = await self.app.push_screen_wait(
                ChoiceDialog(question, [("yes", "Attach them", "what .gitignore names is left out"),
                                  ("no", "Only the words", f"@{name} stays a word"),
                                  ("back", "Back", "the message comes back into the input")])
            )  # fmt: skip
            if answer not in ("yes", "no"):
                return None
            found += inside if answer == "yes" else ()
        return found

    def edit(self, message: StoredMessage) -> None:
        """Puts a message into the input: the user's to be sent again, an answer to be kept, as another version."""
        if self.editing is None:
            self._put_aside = self.composer.text
        self.editing = message.id
        self.composer.folds = message.role == "user"
        self.composer.put("")
        unnamed = tuple(one for one in message.attachments if not files.mentioned(message.content, one.name))
        self.composer.restore([WrittenPrompt(message.content, unnamed)])
        self.composer.add_class("editing")
        does = "sends it" if message.role == "user" else "keeps it"
        self.composer.border_title = f"Editing · Enter {does} as another version · Esc gives up"
        self.composer.focus()

    def end_edit(self) -> None:
        """Leaves editing; what was being written before comes back."""
        self.editing = None
        self.composer.folds = True
        self.composer.remove_class("editing")
        self.composer.border_title = None
        self.composer.put(self._put_aside)
        self._put_aside = ""

    def leave(self) -> None:
        """The tab or the program is about to close: unsent and queued text is kept, the answer stops."""
        if self.editing is not None:
            self.end_edit()
        self.compactor.stop()
        self._unsaved = None if self._asleep else 0.0
        self._save_unsent()
        self._end()

    def _save_unsent(self) -> None:
        if self._unsaved is not None and self.editing is None and monotonic() - self._unsaved >= _SAVE_SECONDS:
            self._unsaved = None
            prompts = [*([] if self._sending is None else [self._sending]), *self.queue.prompts]
            try:
                self.session.archive.update_chat(self.chat_id, unsent=joined(prompts, self.composer.whole))
            except LocalspecError:  # another program has the file just now: later once more
                self._unsaved = monotonic()

    @work(group="ask")
    async def ask(self, go_on: bool = False, again: int | None = None, thought_out: bool = False) -> None:
        """Answers the last message; or lets the last answer go on; or answers message `again` once more. `thought_out`:
        an answer that goes on does not go on thinking."""
        if not await self.agreed():
            self.hand_back()
            return
        path, answerer = self.path, self.session.answerer
        if again is not None:
            path = path[: next(i for i, message in enumerate(path) if message.id == again) + 1]
        try:
            question = question_of(self.chat, path, self.session.facts, go_on, thought_out, self.session.private)
        except LocalspecError as error:
            say(self, str(error), problem=True)
            self.hand_back()
            return
        self._end()
        if answerer.facts is not None and (limit := answerer.facts.context) is not None:
            self._asking = question, path, go_on  # the answerer refuses what does not fit
            self._ask(replace(question, room=0 if go_on else room(limit)))
        else:
            self.context_tokens = None
            await self._begin(question, path, go_on)
            self._ask(question)

    async def on_posted(self, event: Posted) -> None:
        """What comes of the answer under way goes on to the screen; what comes of one that was stopped does not."""
        told = event.told
        if isinstance(told, Taken):
            event.stop()
            if told.answer is self.answer and self._asking is not None and not self._stopped:
                asked, self._asking = self._asking, None
                self.context_tokens = told.tokens
                await self._begin(*asked)
                self.post_message(self.Changed())
        elif isinstance(told, OfTools):
            event.stop()
            if told.answer is self.answer and (isinstance(told, CallMade) or not self._stopped):
                await self._take_call(told)
        elif not isinstance(told, AnswerPart | AnswerEnded | Prefilled) or told.answer is not self.answer:
            event.stop()
        elif isinstance(told, AnswerEnded):
            await self._ended(told)
        elif isinstance(told, AnswerPart):
            if self._writer is None or self._stopped:
                event.stop()
            else:
                self._writer.extend(told.text, reasoning=told.thinking)
                self._thinks = (self._thinks or bool(told.thinking.strip())) and not told.text.strip()
                for record in told.records:
                    self._writer.extend(record=record)
                if self._bubble is not None:
                    await self._bubble.extend(told)

    async def _take_call(self, told: OfTools) -> None:
        """Shows a call, and asks for the user's consent where that is wanted."""
        if isinstance(told, Noticed):
            say(self, told.text, problem=True)
        elif isinstance(told, CallMade) and self._writer is not None:
            self._writer.add_call(told.made)
            if self._bubble is not None:
                await self._bubble.add_call(told.made)
        elif isinstance(told, CallDue):
            if self._bubble is not None:
                await self._bubble.begin_call(told.call)
            if told.asks:
                self._ask_consent(told)

    @work(group="consent")
    async def _ask_consent(self, told: CallDue) -> None:
        """Asks once this chat is in front and the user does not write, so that no key that was meant for something else
        answers; not any more once the answer has ended."""

        def asks() -> bool:
            return told.answer is self.answer and not self._stopped

        def in_front() -> bool:
            return self.app.screen is self.screen and self.display

        if not in_front():
            title = self.chat.title or "The new chat"
            say(self, f"{title}: a call of {told.call.name} waits there for your word.", problem=True)
        while asks() and not (in_front() and monotonic() - (self._unsaved or 0.0) >= _SAVE_SECONDS):
            await asyncio.sleep(_CONSENT_SECONDS)
        rows: list[tuple[Consent, str, str]] = [
            ("once", "Call it", "this once"),
            ("chat", "Call it in this chat", f"{told.call.name} is called without a question until the chat is closed"),
            ("always", "Always call it", "in all chats, while the server and the tool stay as they are"),
            ("no", "Do not call it", "the model is told so, and goes on"),
        ]
        title = f"Call a tool of {told.server}?\n\n{signature(told.call)}"
        consent = await self.app.push_screen_wait(ChoiceDialog(title, rows, asks)) if asks() else None
        told.answer.consent(consent or "no")

    @work(group="ask")
    async def _refused(self, question: Question, error: LocalspecError) -> None:
        """Prompts that wait go back, and it is told why: the context is full, or another error."""
        found = Fit(None, None)
        try:
            found = await asyncio.to_thread(fit, self.session.answerer, question)
        except LocalspecError as failure:
            error = failure
        self.hand_back()
        if found.full and found.tokens is not None and found.limit is not None:
            self.post_message(self.Full(self, question, found.tokens, found.limit))
        else:
            say(self, str(error), problem=True)

    async def agreed(self) -> bool:
        """Whether a prompt may go to who answers now: of a server that was found by a search, the user is asked once.
        From a worker, as it may open a dialog."""
        session, answerer = self.session, self.session.answerer
        if not session.stranger:
            return True
        rows = [
            ("yes", "Send it", "the program at this address gets the messages of your chats from now on"),
            ("no", "Do not send it", "the message stays in the chat; F5 loads a model of this machine"),
        ]
        answer = await self.app.push_screen_wait(ChoiceDialog(f"Send this chat to {session.stranger}?", rows))
        if answer != "yes" or session.answerer is not answerer:
            say(self, "Nothing was sent.")
            return False
        session.stranger = ""
        return True

    async def _begin(self, question: Question, path: list[StoredMessage], go_on: bool) -> None:
        """The answer is there, and empty."""
        archive, answerer = self.session.archive, self.session.answerer
        model = answerer.facts.name if answerer.facts else answerer.name
        if go_on:
            self._writer = archive.resume_answer(path[-1].id, piece=answerer.piece)
        else:
            self._writer = archive.begin_answer(
                path[-1].id, model=model, seed=question.seed, sampling=question.sampling, piece=answerer.piece
            )
        if answerer.facts is not None:
            archive.update_chat(self.chat_id, model=answerer.facts.key or answerer.facts.name)
        await self.transcript.show(self.path)
        self._bubble = self.transcript.bubble(self._writer.message_id)
        self.transcript.to_end()

    def _ask(self, question: Question) -> None:
        self._inbox = Inbox(self)
        self._thinks, self._asked = False, monotonic()
        toolbox = self.session.toolbox(self.key)
        if toolbox is None:
            self.answer = self.session.answerer.answer(question, self._inbox)
        else:
            most = self.session.preferences.tool_rounds
            self.answer = answer_with(toolbox, self.session.answerer, question, self._inbox, most)
        self.live.begin(self.answer)
        self.post_message(self.Changed())

    async def _ended(self, event: AnswerEnded) -> None:
        if self._asking is not None and isinstance(event.error, RunnerError) and not self._stopped:
            asked, self._asking = self._asking, None
            await self._begin(*asked)  # so that the chat keeps what went wrong
        state, note = event.state if not self._stopped else ("stopped", "")
        refused = self._asking
        self._end(state, note, event.stats)
        if refused is not None and isinstance(event.error, ContextOverflowError) and state == "error":
            self._refused(refused[0], event.error)
            return
        if event.error is not None and event.finish is FinishReason.ERROR:
            say(self, str(event.error), problem=True)
        if state != "stopped" and monotonic() - self._asked >= _LONG_SECONDS:
            self.post_message(self.LongAnswered(self.chat.title))
        if state != "done":
            self.hand_back()
        elif not self.busy:
            self.send_next()

    def send_next(self) -> None:
        if self.queue.prompts:
            self._sending = self.queue.pop()
            self._send(self._sending)

    def stop(self) -> None:
        """Ends the answer under way: nothing more is shown, and the model is not waited for longer than a moment.
        Queued prompts go back into the input."""
        self.hand_back()
        self.compactor.stop()
        if self.answer is not None and self._inbox is not None and not self._stopped:
            self._stopped, answer = True, self.answer
            self._inbox.stop()
            answer.cancel()
            self.set_timer(_STOP_SECONDS, lambda: self._end() if self.answer is answer else None)

    def end_thinking(self) -> None:
        """Lets the answer begin with what has been thought so far."""
        if self.session.facts is not None and self.session.facts.remote:
            say(self, "A server's thinking cannot be ended early; Esc stops its answer.", problem=True)
        elif self.answer is None or self._stopped or not self._thinks:
            say(self, "There is no thinking under way.", problem=True)
        else:
            self._end()
            self.ask(go_on=True, thought_out=True)

    def _end(
        self, state: Literal["done", "stopped", "error"] = "stopped", note: str = "", stats: RequestStats | None = None
    ) -> None:
        """The answer is over: what there is of it is stored and painted once more."""
        writer, bubble = self._writer, self._bubble
        if self.answer is not None and self._inbox is not None:
            self._inbox.stop()
            self.answer.cancel()
        self._writer = self._bubble = self._inbox = self.answer = self._asking = None
        self.live.rest()
        self._stopped = False
        if writer is None:
            return
        stored = writer.finish(state, stats=None if stats is None else stats.as_dict(), note=note)
        if bubble is not None and bubble.is_mounted:
            settle = partial(bubble.settle, stored)  # not a coroutine, which might never be awaited as the app ends
            self.run_worker(settle, group="settle")  # type: ignore[arg-type]
        self.count()
        self.post_message(self.Changed())

    @work(exclusive=True, group="count")
    async def count(self) -> None:
        try:
            question = self.question()
            found = await asyncio.to_thread(fit, self.session.answerer, question)
        except LocalspecError:
            return  # an empty chat, or one the template refuses: asking will say so
        self.context_tokens = found.tokens
        helps = last_turn(self.chat, self.path, question) is not None
        self.compactor.offer(found if helps else None)
        self.post_message(self.Changed())


def tab_label(chat: Chat) -> str:
    """The chat's title on one line, cut to 24 characters, as markup that shows it literally."""
    title = plain_text(chat.title).replace("\n", " ").replace("[", "\\[") or "New chat"
    return title if len(title) <= _LONGEST_LABEL else title[: _LONGEST_LABEL - 1] + "…"
