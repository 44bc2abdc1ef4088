"""`/tools`: the servers of this chat and their tools, what is on, and what may be called without a question."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import one_line
from localspec.chat.turn import Message
from localspec.remote.answerer import Question
from localspec.tools.toolbox import Toolbox
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.widgets.dialogs import ItemList, errand, errors_said, say
from localspec.tui.widgets.registry import bind


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    """Of a server, or of a tool as the model is told it."""
    words: str
    switch: str | tuple[str, str]
    """What stands for it in `Toolbox.off`."""
    key: str = ""
    """Of a tool's consent; "" = it is a server."""


class ToolsScreen(Page):
    CSS_PATH = "stats.tcss"
    TITLE = "Tools"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("tools.switch", "space,enter", "switch", "On/off", "On or off in this chat", show=True, priority=True),
        bind("tools.ask", "ctrl+d", "ask", "Ask again", "Ask before each call of this tool again", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self._rows = ItemList[_Row](id="scroll")

    def body(self) -> ComposeResult:
        yield Static(id="scope", markup=False)
        yield self._rows

    def on_mount(self) -> None:
        self._rows.focus()
        self._look()

    @property
    def _toolbox(self) -> Toolbox | None:
        return None if self.chats.pane is None else self.session.toolbox(self.chats.pane.key)

    @work(exclusive=True, group="tools")
    async def _look(self) -> None:
        """Starts what is on, lists all, and says what the tools take of the context."""
        toolbox, head = self._toolbox, self.query_one("#scope", Static)
        with errors_said(self, head.update):
            tools = await self.chats.front.of_servers(Toolbox.tools)
            assert toolbox is not None
            rows = [_Row(one.name, one.words, one.name) for one in self.session.servers]
            for name, one in toolbox.listed.items():
                rows.append(_Row(name, one.tool.description, (one.server, one.name), one.key))
            self._rows.show(rows, self._line)
            head.update(f"{len(tools)} tools are on.")
            asked, limit = Question([Message("user", "?")]), getattr(self.session.facts, "context", None)
            count, told = self.session.answerer.count, replace(asked, tools=tools)
            without, whole = await errand(lambda: count(asked)), await errand(lambda: count(told))
            if without is not None and whole is not None:
                room = f" of {limit:,}" if limit else ""
                head.update(f"{len(tools)} tools are on; they take {whole - without:,}{room} tokens of the context.")

    def _line(self, row: _Row) -> Content:
        toolbox = self._toolbox
        on = toolbox is not None and row.switch not in toolbox.off
        free = "  not asked" if toolbox is not None and row.key and toolbox.is_free(row.key) else ""
        indent = "  " if row.key else ""
        name = (f"{indent}{'●' if on else '○'} {one_line(row.name)}", "" if row.key else "bold")
        return Content.assemble(name, (free, "$text-warning"), (f"  {one_line(row.words)[:120]}", "$text-muted"))

    def action_switch(self) -> None:
        row, toolbox = self._rows.item, self._toolbox
        if row is not None and toolbox is not None:
            toolbox.off ^= {row.switch}
            self._look()

    def action_ask(self) -> None:
        row, toolbox = self._rows.item, self._toolbox
        if row is not None and toolbox is not None and toolbox.is_free(row.key):
            toolbox.ask_again(row.key)
            say(self, f"Calls of {row.name} are asked for again.")
            self._look()
