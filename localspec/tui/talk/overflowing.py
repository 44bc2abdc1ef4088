"""What happens before a chat outgrows its context: the person decides, and the archive remembers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError
from localspec.tui.shell.dialogs import Choice
from localspec.tui.talk.compacting import set_window, summarise
from localspec.tui.talk.conversation import window

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen
    from localspec.tui.widgets.pane import ChatPane

_ANSWERS = (
    ("drop", "Go on without the oldest messages", "They stay in the chat; the model no longer sees them."),
    ("summarise", "Go on with a summary of them", "The model writes it first; that takes a moment."),
    ("new", "Ask in a new chat", "With your last message alone."),
    ("edit", "Let me shorten it", "Your message comes back into the input."),
)


def offer(screen: ChatScreen, event: ChatPane.Full) -> None:
    """Asks what to do about a question that does not fit, and does it."""
    screen.run_worker(_offer(screen, event), group="overflow")


async def _offer(screen: ChatScreen, event: ChatPane.Full) -> None:
    app, pane = screen.app, event.pane
    question = f"This chat has {event.tokens:,} tokens, the model's context holds {event.limit:,}. How to go on?"
    chosen = await app.push_screen_wait(Choice(question, _ANSWERS))
    try:
        if chosen in ("drop", "summarise"):
            await _make_room(screen, event, chosen == "summarise")
        elif chosen == "new":
            last = pane.path[-1]
            fresh = await screen.open_chat()
            app.archive.append_user(fresh.chat_id, last.content, attachments=last.attachments)
            await fresh.transcript.show(fresh.path)
            fresh.ask()
        elif pane.path and pane.path[-1].role == "user":
            pane.edit(pane.path[-1])
    except LocalspecError as error:
        app.say(str(error), problem=True)


async def _make_room(screen: ChatScreen, event: ChatPane.Full, with_summary: bool) -> None:
    app, pane = screen.app, event.pane
    found = await asyncio.to_thread(window, app.answerer, pane.chat, pane.path, event.question)
    if not found.fits:
        app.say("Even your last message alone does not fit; shorten it.", problem=True)
        pane.edit(pane.path[-1])
        return
    summary = await summarise(pane, found, event.question) if with_summary else ""
    if summary is not None:
        await set_window(pane, found.first.id, summary)
        pane.ask()
