"""Prompts that wait for the end of an answer: a list above the input, the next one first."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content
from textual.message import Message as TextualMessage
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.chat.plain_text import plain_text
from localspec.tui.widgets.bindings import bind
from localspec.tui.widgets.composer import Prompt


class Queue(OptionList):
    """Shown while prompts wait. Posts `Taken` when one is to be edited."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("queue.edit", "enter", "take", "Edit", "Take this queued prompt back into the input", show=True),
        bind("queue.remove", "delete", "remove", "Remove", "Remove this queued prompt", show=True),
    ]

    class Taken(TextualMessage):
        """A prompt has left the queue and belongs into the input."""

        def __init__(self, prompt: Prompt) -> None:
            super().__init__()
            self.prompt = prompt

    class Emptied(TextualMessage):
        """The last prompt has left the queue."""

    def __init__(self) -> None:
        super().__init__(compact=True)
        self.display = False
        self.prompts: list[Prompt] = []
        """In the order in which they are sent. Change them by the methods only."""
        self._place: int | None = None
        """Where the prompt goes that was taken last, once it comes back; None = to the end."""

    def add(self, prompt: Prompt) -> None:
        """Adds a prompt at the end; one that was taken to be edited goes back to its place."""
        self.prompts.insert(len(self.prompts) if self._place is None else self._place, prompt)
        self._place = None
        self._draw()

    def pop(self, place: int = 0) -> Prompt:
        """Takes out the prompt at a place; the next one by default."""
        prompt = self.prompts.pop(place)
        if self._place is not None and place < self._place:
            self._place -= 1
        self._draw()
        return prompt

    def pop_all(self) -> list[Prompt]:
        """Empties the queue."""
        prompts, self.prompts = self.prompts, []
        self._place = None
        self._draw()
        return prompts

    def take_last(self) -> bool:
        """Takes the last prompt back into the input; False = there is none."""
        if self.prompts:
            self._take(len(self.prompts) - 1)
            return True
        return False

    def forget_place(self) -> None:
        """What was taken to be edited does not come back."""
        self._place = None

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
        self._place = place
        self.post_message(self.Taken(prompt))

    def _draw(self) -> None:
        marked = self.highlighted
        if not self.prompts and self.has_focus:
            self.post_message(self.Emptied())
        self.set_options(Option(_line(number, prompt)) for number, prompt in enumerate(self.prompts, 1))
        self.display = bool(self.prompts)
        if self.prompts:
            self.highlighted = min(marked or 0, len(self.prompts) - 1)


def _line(number: int, prompt: Prompt) -> Content:
    first, *others = plain_text(prompt.text).split("\n")
    more = [f"{len(others)} more lines"] if others else []
    more += [plain_text(attached.name) for attached in prompt.attachments]
    return Content.assemble(
        (f"queued {number}  ", "$text-muted"), first, (f"  + {', '.join(more)}" if more else "", "$text-muted")
    )
