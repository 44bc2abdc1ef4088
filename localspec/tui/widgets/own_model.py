"""The line above the input that offers the model which answered in this chat before, while another one is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from localspec import paths
from localspec.chat.plain_text import one_line
from localspec.errors import LocalspecError
from localspec.models.installed.installed import find, knows

if TYPE_CHECKING:
    from localspec.tui.talk.answerer import Facts


def own_model(model: str, facts: Facts | None) -> str:
    """The model of a chat, if it is another one than the loaded one and can be loaded; else "".

    Args:
        model: as the chat has it.
        facts: of the model that answers; nothing is offered in place of a server's.
    """
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


class OwnModel(Static):
    """One line; hidden where the chat's own model answers, or has gone. A click does what the line offers."""

    DEFAULT_CSS = """
    OwnModel { height: 1; padding: 0 2; color: $text-accent; display: none; text-wrap: nowrap;
        text-overflow: ellipsis; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.model = ""
        """What `/own` loads; "" = nothing is offered."""
        self._asked: tuple[str, Facts | None] = ("", None)

    def tell(self, model: str, facts: Facts | None, begun: bool) -> None:
        """The model of the chat, what is loaded, and whether the chat has answers."""
        asked = (model if begun else "", facts)
        if asked == self._asked:
            return  # looking for files takes a while
        self._asked = asked
        self.model = own_model(*asked)
        self.update(Content(f"/own lets {short(self.model)} answer, as before in this chat"))
        self.display = bool(self.model)

    async def on_click(self) -> None:
        await self.run_action("screen.own_model")
