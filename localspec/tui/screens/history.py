"""All chats, and full-text search in them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Input, Static

from localspec.chat.archive.message import Chat, Hit
from localspec.chat.export import stamp
from localspec.chat.plain_text import plain_text
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.talk import files
from localspec.tui.widgets.composer import short
from localspec.tui.widgets.dialogs import ItemList, Line, errors_said, say
from localspec.tui.widgets.registry import bind

_MOST_SHOWN = 100


class HistoryScreen(Page):
    """Type to search; Enter opens. `#tag` as the first word lists the chats with that tag."""

    CSS_PATH = "history.tcss"
    TITLE = "Chats"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("history.rename", "ctrl+t", "rename", "Rename", "Give the marked chat another title", show=True),
        bind("history.pin", "ctrl+b", "pin", "Pin", "Pin the marked chat to the top, or let it go", show=True),
        bind("history.tags", "ctrl+g", "tags", "Tags", "Set the marked chat's tags", show=True),
        bind(
            "history.export", "ctrl+e", "export", "Export", "Write the marked chat to a file", show=True, priority=True
        ),
        bind("history.delete", "ctrl+d", "delete", "Delete", "Delete the marked chat", show=True, priority=True),
        bind("history.undo", "ctrl+u", "undo", "Undo", "Bring back what was deleted last", show=True, priority=True),
        bind("history.up", "up", "move(-1)", "Up", "The entry above", priority=True),
        bind("history.down", "down", "move(1)", "Down", "The entry below", priority=True),
    ]

    def __init__(self, chats: ChatScreen, words: str = "") -> None:
        super().__init__(chats)
        self._words, self._entries = words, ItemList[Chat | Hit](id="entries")
        self._entries.can_focus = False

    def body(self) -> ComposeResult:
        yield Input(self._words, placeholder="Search all chats; #tag lists a tag", id="words")
        with Horizontal():
            yield self._entries
            yield Static("", id="preview", markup=False)

    @work(exclusive=True, group="look")
    async def look(self) -> None:
        words, archive = self.query_one("#words", Input).value.strip(), self.session.archive
        entries: Sequence[Chat | Hit]
        with errors_said(self):
            if not words or words.startswith("#"):
                tag = words[1:].strip() or None
                entries = await asyncio.to_thread(archive.chats, tag=tag, limit=_MOST_SHOWN)
            else:
                entries = await asyncio.to_thread(archive.search, words, limit=_MOST_SHOWN)
            self._entries.show(entries, _line)
            if not entries:
                self.query_one("#preview", Static).update("Nothing found." if words else "There are no chats yet.")

    def on_option_list_option_highlighted(self) -> None:
        if (chat := self.marked_chat) is None:
            return
        facts = f"{chat.messages} messages · {short(chat.model) or 'no model'} · {stamp(chat.used)}"
        tags = "  ".join(f"#{plain_text(tag)}" for tag in chat.tags)
        last = self.session.archive.path(chat.id)[-6:]
        said = "\n\n".join(f"{'You' if m.role == 'user' else 'Answer'}: {plain_text(m.content)[:400]}" for m in last)
        title = (plain_text(chat.title) or "New chat", "bold")
        preview = Content.assemble(title, "\n", (facts, "$text-muted"), f"\n{tags}\n\n{said}")
        self.query_one("#preview", Static).update(preview)

    def on_input_submitted(self) -> None:
        if (entry := self._entries.item) is not None:
            chat_id, message_id = (entry.id, None) if isinstance(entry, Chat) else (entry.chat_id, entry.message_id)
            self.dismiss(None)
            self.chats.run_worker(self.chats.open_chat(chat_id, message_id), group="open")

    on_option_list_option_selected = on_input_submitted

    on_mount = on_input_changed = look

    @property
    def marked_chat(self) -> Chat | None:
        entry = self._entries.item
        return self.session.archive.chat(entry.chat_id) if isinstance(entry, Hit) else entry

    def action_move(self, step: int) -> None:
        if entries := self._entries.items:
            self._entries.highlighted = min(max((self._entries.highlighted or 0) + step, 0), len(entries) - 1)

    @work
    async def action_rename(self) -> None:
        chat = self.marked_chat
        if chat is not None and (title := await self.app.push_screen_wait(Line("Title", chat.title))):
            self.session.archive.update_chat(chat.id, title=title)
            self._changed()

    @work
    async def action_tags(self) -> None:
        if (chat := self.marked_chat) is not None:
            line = Line("Tags, blanks between them", " ".join(chat.tags), " ".join(self.session.archive.tags()))
            if (text := await self.app.push_screen_wait(line)) is not None:
                self.session.archive.set_tags(chat.id, text.split())
                self._changed()

    def action_pin(self) -> None:
        if (chat := self.marked_chat) is not None:
            self.session.archive.update_chat(chat.id, pinned=not chat.pinned)
            self._changed()

    @work
    async def action_export(self) -> None:
        if (chat := self.marked_chat) is not None:
            path, _ = files.target(chat.title or "chat", "")
            if file := await self.app.push_screen_wait(Line("Write to (.md, .json or .html)", str(path))):
                with errors_said(self):
                    self.chats.tell(files.export(self.session.archive, chat, file))

    async def action_delete(self) -> None:
        if (chat := self.marked_chat) is not None:
            await self.chats.delete_chat(chat, "Ctrl+U")
            self._changed()

    def action_undo(self) -> None:
        if deletions := self.session.archive.deletions():
            self.session.archive.undo(deletions[0].id)
            self._changed()
        else:
            say(self, "There is nothing to bring back.", problem=True)

    def _changed(self) -> None:
        self.chats.show_titles()
        self.look()


def _line(entry: Chat | Hit) -> Content:
    if isinstance(entry, Hit):
        snippet = Content(entry.snippet)
        for start, end in entry.marks:
            snippet = snippet.stylize("reverse", start, end)
        return Content.assemble((plain_text(entry.title) or "New chat", "bold"), "\n  ", snippet)
    pin = "^ " if entry.pinned else ""
    return Content.assemble(f"{pin}{plain_text(entry.title) or 'New chat'}", (f"  {stamp(entry.used)}", "$text-muted"))
