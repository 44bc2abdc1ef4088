"""Where people write: lines, earlier prompts, folded pastes, files; and the lines above: suggestions, the model that
answered before, a summary, queued prompts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import OptionList, Static, TextArea
from textual.widgets.option_list import Option

from localspec import paths
from localspec.chat.archive.message import Attachment
from localspec.chat.plain_text import counted_lines, one_line, plain_text
from localspec.engine.slot import FinishReason
from localspec.errors import LocalspecError
from localspec.models.installed.installed import find, knows
from localspec.remote.answerer import Answer, AnswerEnded, Answerer, AnswerPart, Facts, Prefilled, Question
from localspec.tools.toolbox import Toolbox
from localspec.tui.talk import files
from localspec.tui.talk.session import Fit, Inbox, Posted
from localspec.tui.widgets.dialogs import ItemList
from localspec.tui.widgets.registry import bind, commands

_FOLD_CHARACTERS = 2_000  # a paste of so many characters is folded even if it is one line


class WrittenPrompt(NamedTuple):
    """What was written, ready to be sent."""

    text: str
    attachments: tuple[Attachment, ...] = ()

    @property
    def whole(self) -> str:
        return "\n\n".join(part for part in (self.text, *(item.content for item in self.attachments)) if part)


def joined(prompts: Sequence[WrittenPrompt], rest: str) -> str:
    return "\n\n".join(text for text in (*(prompt.whole for prompt in prompts), rest) if text)


class Composer(TextArea):
    """Posts `Submitted`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("write.send", "enter", "send", "Send", "Send the message"),
        bind("write.line", "shift+enter,ctrl+j", "new_line", "New line", "Begin a new line; or end the line with \\"),
        bind(
            "write.older", "up", "older", "Older", "The last queued prompt; else, in the first line, the prompt before"
        ),
        bind("write.newer", "down", "newer", "Newer", "In the last line: the prompt after"),
        bind("write.complete", "tab", "complete", "Complete", "Take the suggestion"),
    ]

    @dataclass
    class Submitted(TextualMessage):
        prompt: WrittenPrompt

    def __init__(self, prompts: Callable[[], list[str]], enter_sends: bool = True, fold_lines: int = 8) -> None:
        """`prompts`: earlier prompts, newest first; asked when the user begins to look through them."""
        super().__init__(
            tab_behavior="focus",
            highlight_cursor_line=False,
            compact=True,
            placeholder="Write a message.  / commands   @ files   F1 help",
        )
        self._prompts, self._enter_sends, self._fold_lines = prompts, enter_sends, fold_lines
        self._older: list[str] = []
        self._place = -1  # which older prompt is shown; -1 = none, what is written is one's own
        self._own = ""
        self._folded: dict[str, Attachment] = {}
        self.folds = True  # a long paste becomes an attachment; an answer that is edited has none
        self.steer: Callable[[str], bool] = lambda key: False
        """Asked first with `up`, `down`, `accept`, `close`: an open list of suggestions takes them."""
        self.take_queued: Callable[[], bool] = lambda: False
        """Asked by Up in an empty input: the last queued prompt comes back; False = there is none."""

    def action_send(self) -> None:
        if not self._enter_sends:
            self.insert("\n")
        elif not self.steer("accept"):
            self.send()

    def action_new_line(self) -> None:
        if self._enter_sends:
            self.insert("\n")
        else:
            self.send()

    def send(self) -> None:
        """Sends the text, unless it is blank or its line goes on."""
        text = self.text
        if self.cursor_at_end_of_line and self.document.get_line(self.cursor_location[0]).endswith("\\"):
            self.action_delete_left()
            self.insert("\n")
        elif text.strip():
            attachments = tuple(attached for mark, attached in self._folded.items() if mark in text)
            for mark in self._folded:
                text = text.replace(mark, "")
            self.post_message(self.Submitted(WrittenPrompt(text.strip("\n"), attachments)))

    def put(self, text: str) -> None:
        self.load_text(text)
        self.move_cursor(self.document.end)
        self._place = -1

    def take(self) -> None:
        self.put("")
        self._folded.clear()

    def restore(self, prompts: Sequence[WrittenPrompt]) -> None:
        """Puts prompts before what is written, with blank lines between; their attachments are folded again."""
        if prompts:
            parts = [
                " ".join(part for part in (prompt.text, *(self._mark(item) for item in prompt.attachments)) if part)
                for prompt in prompts
            ]
            self.put("\n\n".join(part for part in (*parts, self.text) if part))

    @property
    def whole(self) -> str:
        text = self.text
        for mark, attached in self._folded.items():
            text = text.replace(mark, attached.content)
        return text

    def _on_paste(self, event: events.Paste) -> None:  # type: ignore[override]
        event.prevent_default()  # TextArea's own handler, which Textual calls as well
        event.stop()
        text = plain_text(event.text)
        if self.folds and (text.count("\n") + 1 >= self._fold_lines or len(text) >= _FOLD_CHARACTERS):
            self.fold(text)
        else:
            self.replace(text, *self.selection)

    def fold(self, text: str) -> None:
        """Puts a mark into the input for a long text, which goes along as an attachment."""
        self.insert(self._mark(Attachment(self._new_name(), text)))

    def _mark(self, attached: Attachment) -> str:
        if any(other.name == attached.name and other != attached for other in self._folded.values()):
            attached = Attachment(self._new_name(), attached.content)
        mark = f"[{attached.name}: {counted_lines(attached.content)}]"
        self._folded[mark] = attached
        return mark

    def _new_name(self) -> str:
        names = {attached.name for attached in self._folded.values()}
        return next(name for number in count(1) if (name := f"pasted text {number}") not in names)

    def action_delete_left(self) -> None:
        """A mark goes as a whole."""
        row, column = self.cursor_location
        before = self.document.get_line(row)[:column]
        mark = next((mark for mark in self._folded if before.endswith(mark)), "")
        if mark and self.selection.is_empty:
            self.delete((row, column - len(mark)), (row, column))
        else:
            super().action_delete_left()

    def action_older(self) -> None:
        if self.steer("up") or (not self.text and self.take_queued()):
            return
        if not self.cursor_at_first_line:
            self.action_cursor_up()
            return
        if self._place < 0:
            self._older, self._own = self._prompts(), self.text
        self._go_to(self._place + 1)

    def action_newer(self) -> None:
        if not self.steer("down"):
            if self._place < 0 or not self.cursor_at_last_line:
                self.action_cursor_down()
            else:
                self._go_to(self._place - 1)

    def _go_to(self, place: int) -> None:
        if place < len(self._older):
            self.put(self._older[place] if place >= 0 else self._own)
            self._place = place

    def action_complete(self) -> None:
        if not self.steer("accept"):
            self.insert("    ")

    def _on_key(self, event: events.Key) -> None:  # type: ignore[override]
        if event.key == "enter":  # a binding, not text
            event.prevent_default()

    def word_before_cursor(self) -> str:
        row, column = self.cursor_location
        return self.document.get_line(row)[:column].split(" ")[-1]


_MOST_SUGGESTIONS = 8
Choices = list[tuple[str, str]]  # what may stand in place of the word before the cursor, and what it is
Named = Mapping[str, Callable[[], Awaitable[Choices]]]


class Suggestions(ItemList[tuple[str, str]], can_focus=False):
    """The list above an input: slash commands at its start, what may follow such as `/model`, files after an @. Shown
    while it has anything to say; keys come through the input, which keeps the focus."""

    def __init__(self, composer: Composer, toolbox: Callable[[], Toolbox | None], named: Named) -> None:
        """`named`: by a command with its slash, what gives the names that may follow it, anew each time."""
        super().__init__(compact=True)
        self.display = False
        self._composer, self._toolbox, self._named = composer, toolbox, named
        self._files: list[str] | None = None
        self._names: tuple[str, Choices] = ("", [])  # the command that was typed last, and what may follow
        self._closed_for = ""
        composer.steer = self._steer

    def follow(self) -> None:
        composer, word = self._composer, self._composer.word_before_cursor()
        command, _, rest = composer.text.partition(" ")
        if word == self._closed_for and word:
            return
        self._closed_for = ""
        if word.startswith("/") and composer.text.startswith(word) and "\n" not in composer.text:
            self._offer([(f"/{row.name}", row.doc) for row in commands() if row.name.startswith(word[1:])])
        elif command in self._named and rest == word:
            if word and self._names[0] == command:
                self._offer_names(word)
                return
            self._offer([])
            load = partial(self._load_names, command)  # not a coroutine, which might never be awaited
            composer.run_worker(load, exclusive=True, group="names", exit_on_error=False)  # type: ignore[arg-type]
        elif word.startswith("@"):
            offer = partial(self._offer_files, word)  # not a coroutine, which might never be awaited
            composer.run_worker(offer, exclusive=True, group="files")  # type: ignore[arg-type]
        else:
            self._offer([])

    def close(self) -> None:
        """Hides the list until another word is written."""
        self._closed_for = self._composer.word_before_cursor()
        self._offer([])

    def _offer(self, found: Choices) -> None:
        """Shows what may stand in place of the word before the cursor, the first marked; none = hides."""
        offered = found[:_MOST_SUGGESTIONS]
        width = max((len(text) for text, _ in offered), default=0) + 2
        self.show(offered, lambda one: Content.assemble(one[0].ljust(width), (one[1], "$text-muted")))
        self.display = bool(found)
        self.highlighted = 0 if found else None

    def _steer(self, key: str) -> bool:
        """False = the key is not the list's."""
        if not self.display:
            return False
        if key != "accept":
            self.highlighted = ((self.highlighted or 0) + (-1 if key == "up" else 1)) % len(self.items)
            return True
        chosen = self.item[0] if self.item is not None else ""
        if chosen in ("", self._composer.word_before_cursor()):  # it stands there already
            self._offer([])
            return False
        row, column = self._composer.cursor_location
        start = (row, column - len(self._composer.word_before_cursor()))
        ending = " " * (not chosen.endswith("/"))  # in a folder the list goes on
        self._composer.replace(chosen + ending, start, (row, column))
        return True

    async def _offer_files(self, word: str) -> None:
        if self._files is None:
            self._files = await asyncio.to_thread(files.files, Path.cwd())
        begun = word[1:].strip('"')
        listed = [] if (toolbox := self._toolbox()) is None else toolbox.resources()
        more = [one for one in listed if begun.lower() in " ".join(one).lower()][: _MOST_SUGGESTIONS // 2]
        paths = await asyncio.to_thread(files.matching, self._files, begun, _MOST_SUGGESTIONS - len(more))
        if self._composer.word_before_cursor() == word:
            found = [*((path, "") for path in paths), *more]
            self._offer([(f'@"{name}"' if " " in name else f"@{name}", about) for name, about in found])

    async def _load_names(self, command: str) -> None:
        self._names = "", []
        with suppress(LocalspecError):
            self._names = command, await self._named[command]()
        word = self._composer.word_before_cursor()
        if self._composer.text == f"{command} {word}":
            self._offer_names(word)

    def _offer_names(self, word: str) -> None:
        begins = [one for one in self._names[1] if one[0].startswith(word)]
        self._offer(begins or [one for one in self._names[1] if word in one[0]])


def own_model(model: str, facts: Facts | None) -> str:
    """The model of a chat, if it is another one than the loaded one and can be loaded; else "". Nothing is offered in
    place of a server's."""
    if not model or facts is None or facts.target is None or model == facts.key:
        return ""
    try:
        if not (knows(model) or Path(model).is_absolute()):
            return ""
        target, _ = find(model)
    except LocalspecError:
        return ""
    return model if os.path.isfile(target) and paths.real(target) != paths.real(facts.target) else ""


def short(model: str) -> str:
    """A model's name without the folders of its file."""
    return one_line(model.rpartition("/")[2])


class Hint(Static):
    """One line, hidden while it says nothing."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, text: str) -> None:
        self.update(Content(text))
        self.display = bool(text)


class OwnModel(Hint):
    """Says nothing where the chat's own model answers, or has gone. A click does what the line offers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = ""  # what `/own` loads; "" = nothing is offered
        self._asked: tuple[str, Facts | None] = ("", None)

    def offer(self, model: str, facts: Facts | None, begun: bool) -> None:
        """The model of the chat, what is loaded, and whether the chat has answers."""
        asked = (model if begun else "", facts)
        if asked == self._asked:
            return  # looking for files takes a while
        self._asked = asked
        self.model = own_model(*asked)
        self.tell(f"/own lets {short(self.model)} answer, as before in this chat" if self.model else "")

    async def on_click(self) -> None:
        await self.run_action("screen.own_model")


class Compactor(Hint):
    """Offers to compact a chat whose context is nearly full, asks for the summary, and tells how far that is."""

    def __init__(self) -> None:
        super().__init__()
        self._offer = ""
        self._parts: list[str] = []
        self._answer: Answer | None = None
        self._result: asyncio.Future[str | None] | None = None  # what is being written; None = nothing is

    @property
    def writing(self) -> bool:
        return self._result is not None

    def offer(self, found: Fit | None) -> None:
        """Offers it if the context is nearly full; None = a summary would not help."""
        self._offer = ""
        if found is not None and found.nearly_full:
            self._offer = f"/compact goes on with a summary: the context is {found.share}"
        if not self.writing:
            self.tell(self._offer)

    async def write(self, answerer: Answerer, question: Question) -> str | None:
        """Asks a question and collects the answer; None = it was stopped."""
        result: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._result = result
        self._parts = []
        self.tell("Esc stops the summary, which is being written")
        inbox = Inbox(self)
        answer = self._answer = answerer.answer(question, inbox)
        try:
            return await result
        finally:
            inbox.stop()
            answer.cancel()
            self._result = None
            self.tell(self._offer)

    def stop(self) -> None:
        """Ends the writing; `write` returns None. Nothing if there is none."""
        if self._result is not None and not self._result.done():
            self._result.set_result(None)

    async def on_click(self) -> None:
        if not self.writing:
            await self.run_action("screen.compact")

    def on_posted(self, event: Posted) -> None:
        event.stop()
        told, result = event.told, self._result
        if result is None or result.done():
            return
        if isinstance(told, Prefilled) and told.total is not None and told.done < told.total:
            self.tell(f"Esc stops the summary: {told.done:,} of {told.total:,} tokens are read")
        elif isinstance(told, AnswerPart):
            self._parts.append(told.text)
            self.tell(f"Esc stops the summary: {len(''.join(self._parts).split())} words so far")
        elif isinstance(told, AnswerEnded) and told.answer is self._answer:
            if told.error is not None and told.finish is FinishReason.ERROR:
                result.set_exception(told.error)
            else:
                result.set_result("".join(self._parts).strip())


class Queue(OptionList):
    """Shown while prompts wait. Posts `Returned` when one is to be edited."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("queue.edit", "enter", "select", "Edit", "Take this queued prompt back into the input", show=True),
        bind("queue.remove", "delete", "remove", "Remove", "Remove this queued prompt", show=True),
    ]

    @dataclass
    class Returned(TextualMessage):
        prompt: WrittenPrompt

    class Emptied(TextualMessage):
        """The last prompt has left the queue."""

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.display = False
        self.prompts: list[WrittenPrompt] = []  # in the order in which they are sent. Change them by the methods only.
        self.place: int | None = None
        """Where the prompt goes that was taken last, once it comes back; None = to the end."""

    def add(self, prompt: WrittenPrompt) -> None:
        """Adds a prompt at the end; one that was taken to be edited goes back to its place."""
        self.prompts.insert(len(self.prompts) if self.place is None else self.place, prompt)
        self.place = None
        self._draw()

    def pop(self, place: int = 0) -> WrittenPrompt:
        """Takes out the prompt at a place; the next one by default."""
        prompt = self.prompts.pop(place)
        if self.place is not None and place < self.place:
            self.place -= 1
        self._draw()
        return prompt

    def pop_all(self) -> list[WrittenPrompt]:
        prompts, self.prompts = self.prompts, []
        self.place = None
        self._draw()
        return prompts

    def take_last(self) -> bool:
        if self.prompts:
            self._take(len(self.prompts) - 1)
            return True
        return False

    def action_select(self) -> None:
        """Enter and a click take the prompt at once: an event would come when another may stand at its place."""
        if self.highlighted is not None:
            self._take(self.highlighted)

    def action_remove(self) -> None:
        if self.highlighted is not None:
            self.pop(self.highlighted)

    def _take(self, place: int) -> None:
        prompt = self.pop(place)
        self.place = place
        self.post_message(self.Returned(prompt))

    def _draw(self) -> None:
        marked, options = self.highlighted, list[Option]()
        if not self.prompts and self.has_focus:
            self.post_message(self.Emptied())
        for number, prompt in enumerate(self.prompts, 1):
            first, *others = plain_text(prompt.text).split("\n")
            more = [f"{len(others)} more lines"] * bool(others) + [plain_text(one.name) for one in prompt.attachments]
            added = f"  + {', '.join(more)}" if more else ""
            options.append(
                Option(Content.assemble((f"queued {number}  ", "$text-muted"), first, (added, "$text-muted")))
            )
        self.set_options(options)
        self.display = bool(self.prompts)
        if self.prompts:
            self.highlighted = min(marked or 0, len(self.prompts) - 1)
