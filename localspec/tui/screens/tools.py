"""`/tools`: the servers of this chat and their tools, what is on, and what may be called without a question."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import one_line
from localspec.chat.turn import Message
from localspec.remote.answerer import Question
from localspec.tools.connections import Offered
from localspec.tools.servers import Server
from localspec.tools.toolbox import FolderFile, Toolbox
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.widgets.dialogs import ItemList, errand, errors_said, say
from localspec.tui.widgets.registry import bind

_Row = Server | Offered


class ToolsScreen(Page):
    CSS_PATH = "stats.tcss"
    TITLE = "Tools"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("tools.switch", "space,enter", "switch", "On/off", "On or off in this chat", show=True, priority=True),
        bind("tools.ask", "ctrl+d", "ask", "Ask again", "Take back that it is used without a question", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self._rows = ItemList[_Row](id="scroll")
        self._folder: FolderFile | None = None
        self._toolbox = None if chats.pane is None else self.session.toolbox(chats.pane.key)
        self._plain: int | None = None  # tokens of a prompt without tools

    def body(self) -> ComposeResult:
        yield Static("The servers are being started ...", id="scope", markup=False)
        yield self._rows

    def on_mount(self) -> None:
        self._rows.focus()
        self._look()

    @work(exclusive=True, group="tools")
    async def _look(self) -> None:
        """Starts what is on, lists all, and says what the tools take of the context."""
        toolbox, head = self._toolbox, self.query_one("#scope", Static)
        with errors_said(self, head.update):
            tools = await self.chats.front.of_servers(Toolbox.tools)
            assert toolbox is not None
            self._folder = FolderFile.find([])
            rows = list[_Row]()
            for server in self.session.servers:
                rows += [server, *(one for one in toolbox.listed.values() if one.server == server.name)]
            self._rows.show(rows, self._line)
            head.update(f"{len(tools)} tools are on.")
            asked, limit = Question([Message("user", "?")]), getattr(self.session.facts, "context", None)
            count, told = self.session.answerer.count, replace(asked, tools=tools)
            if self._plain is None:
                self._plain = await errand(lambda: count(asked))
            whole = await errand(lambda: count(told))
            if self._plain is not None and whole is not None:
                taken = f"{whole - self._plain:,}" + (f" of {limit:,}" if limit else "")
                head.update(f"{len(tools)} tools are on; they take {taken} tokens of the context.")

    def _key(self, row: _Row) -> str:
        """Of the user's consent: to a tool, or to the folder's file, which has this server; "" = it needs none."""
        if isinstance(row, Offered):
            return row.key
        return self._folder.key if self._folder is not None and row in self._folder.servers else ""

    def _line(self, row: _Row) -> Content:
        toolbox, key = self._toolbox, self._key(row)
        on = "●" if toolbox is not None and _switch(row) not in toolbox.off else "○"
        free = "  not asked" if toolbox is not None and key and toolbox.is_free(key) else ""
        if isinstance(row, Server):
            name, words = (f"{on} {one_line(row.name)}", "bold"), row.masked().words
        else:
            name, words = (f"  {on} {one_line(row.tool.name)}", ""), row.tool.description
        return Content.assemble(name, (free, "$text-warning"), (f"  {one_line(words)[:120]}", "$text-muted"))

    def action_switch(self) -> None:
        row, toolbox = self._rows.item, self._toolbox
        if row is not None and toolbox is not None:
            toolbox.off ^= {_switch(row)}
            self._look()

    def action_ask(self) -> None:
        row, toolbox = self._rows.item, self._toolbox
        if row is not None and toolbox is not None and toolbox.is_free(key := self._key(row)):
            toolbox.ask_again(key)
            folder = "The next start asks for the servers of this folder again."
            say(self, folder if isinstance(row, Server) else f"Calls of {row.tool.name} are asked for again.")
            self._look()


def _switch(row: _Row) -> str | tuple[str, str]:
    """What stands for it in `Toolbox.off`."""
    return row.name if isinstance(row, Server) else (row.server, row.name)
