"""Lines above the input: the model that answered before, a summary, queued prompts; and chats that are not saved."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from textual import work
from textual.app import App
from textual.binding import BindingType
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec import paths
from localspec.chat.archive.archive import Archive
from localspec.chat.plain_text import one_line, plain_text
from localspec.engine.slot import FinishReason
from localspec.errors import LocalspecError
from localspec.models.installed.installed import find, knows
from localspec.remote.answerer import Answer, AnswerEnded, Answerer, AnswerPart, Facts, Prefilled, Question
from localspec.tui.talk.session import Fit, Inbox, Posted
from localspec.tui.widgets.composer import WrittenPrompt
from localspec.tui.widgets.dialogs import ChoiceDialog
from localspec.tui.widgets.registry import bind


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

    DEFAULT_CSS = """
    Hint { height: 1; padding: 0 2; display: none; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)

    def tell(self, text: str) -> None:
        self.update(Content(text))
        self.display = bool(text)


class OwnModel(Hint):
    """Says nothing where the chat's own model answers, or has gone. A click does what the line offers."""

    DEFAULT_CSS = "OwnModel { color: $text-accent; }"

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

    DEFAULT_CSS = "Compactor { color: $text-warning; }"

    def __init__(self) -> None:
        super().__init__()
        self._offer = ""
        self._parts: list[str] = []
        self._answer: Answer | None = None
        self._done: asyncio.Event | None = None  # set at the end of the summary; None = none is being written
        self._error: LocalspecError | None = None
        self._stopped = False

    @property
    def writing(self) -> bool:
        return self._done is not None

    def offer(self, found: Fit | None) -> None:
        """Offers it if the context is nearly full; None = a summary would not help."""
        self._offer = ""
        if found is not None and found.nearly_full:
            self._offer = f"/compact goes on with a summary: the context is {found.share}"
        if not self.writing:
            self.tell(self._offer)

    async def write(self, answerer: Answerer, question: Question) -> str | None:
        """Asks a question and collects the answer; None = it was stopped."""
        done = self._done = asyncio.Event()
        self._parts, self._error, self._stopped = [], None, False
        self.tell("Esc stops the summary, which is being written")
        inbox = Inbox(self)
        answer = self._answer = answerer.answer(question, inbox)
        try:
            await done.wait()
        finally:
            inbox.stop()
            answer.cancel()
            self._done = None
            self.tell(self._offer)
        if self._stopped:
            return None
        if self._error is not None:
            raise self._error
        return "".join(self._parts).strip()

    def stop(self) -> None:
        """Ends the writing; `write` returns None. Nothing if there is none."""
        if self._done is not None:
            self._stopped = True
            self._done.set()

    async def on_click(self) -> None:
        if not self.writing:
            await self.run_action("screen.compact")

    def on_posted(self, event: Posted) -> None:
        event.stop()
        told, done = event.told, self._done
        if done is None:
            return
        if isinstance(told, Prefilled) and told.total is not None and told.done < told.total:
            self.tell(f"Esc stops the summary: {told.done:,} of {told.total:,} tokens are read")
        elif isinstance(told, AnswerPart):
            self._parts.append(told.text)
            self.tell(f"Esc stops the summary: {len(''.join(self._parts).split())} words so far")
        elif isinstance(told, AnswerEnded) and told.answer is self._answer and not self._stopped:
            self._error = told.error if told.finish is FinishReason.ERROR else None
            done.set()


class Queue(OptionList):
    """Shown while prompts wait. Posts `Returned` when one is to be edited."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("queue.edit", "enter", "take", "Edit", "Take this queued prompt back into the input", show=True),
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

    def action_take(self) -> None:
        if self.highlighted is not None:
            self._take(self.highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click on a prompt takes it back into the input."""
        event.stop()
        self._take(event.option_index)

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


_TRY_SECONDS = 5.0
"""How often it is tried to save what is in memory only: a person who has made room does not wait long."""
_QUESTION = "The chats of this session are kept in memory only, and are lost when localspec ends. Leave?"
_ANSWERS = (
    ("stay", "Stay", "/export FILE writes the chat in front to a file; it may be on another disk."),
    ("leave", "Leave", "What was written since then is lost."),
)


class Unsaved(Static):
    """Shown as long as what is written does not last, with the reason."""

    DEFAULT_CSS = "Unsaved { height: auto; padding: 0 2; color: $text-warning; display: none; }"

    class Saved(TextualMessage):
        """All that was in memory only lasts now."""

    def __init__(self, archive: Archive) -> None:
        super().__init__(markup=False)
        self._archive = archive

    def on_mount(self) -> None:
        self.set_interval(_TRY_SECONDS, lambda: self._save_back() if self.display else None)

    @work(thread=True, exclusive=True, group="save-back")
    def _save_back(self) -> None:
        if self._archive.save_back():
            self.post_message(self.Saved())

    def tell(self) -> None:
        wanted = does_not_last(self._archive)
        if wanted != self.display:
            self.update(Content(plain_text(self._archive.notice)))
            self.display = wanted


def does_not_last(archive: Archive) -> bool:
    """Whether what is written is kept in memory only, and should not be."""
    return archive.file is not None and not archive.persistent


async def may_leave(app: App[Any], archive: Archive) -> bool:
    """Saves what would be lost if that can be done by now; else asks whether it may be lost."""
    if await asyncio.to_thread(archive.save_back):
        return True
    return await app.push_screen_wait(ChoiceDialog(_QUESTION, _ANSWERS)) == "leave"
