"""What happens before a chat outgrows its context: the person decides, and a summary stands for what came before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from localspec.errors import LocalspecError, UsageError
from localspec.remote.answerer import Question
from localspec.tui.talk.conversation import Window, fit, last_turn, question_of, room, summary_question, window
from localspec.tui.widgets.dialogs import Choice, errors_said, say
from localspec.tui.widgets.hints import short
from localspec.tui.widgets.pane import ChatPane


def begin(pane: ChatPane) -> None:
    """Compacts the chat, or says why not; prompts that are sent meanwhile are queued."""
    if pane.busy:
        say(pane, "An answer or a summary is under way; compact the chat when it has ended.", problem=True)
    else:
        pane.run_worker(_compact_and_go_on(pane), group="compact")


async def set_window(pane: ChatPane, first: int | None, summary: str = "") -> None:
    """From now on the model sees the chat from this message on, and the summary; None = all of it."""
    pane.session.archive.set_window(pane.chat_id, first, summary)
    await pane.transcript.mark(pane.chat)
    pane.count()


async def _compact_and_go_on(pane: ChatPane) -> None:
    try:
        await _compact(pane)
    except LocalspecError as error:
        say(pane, str(error), problem=True)
        pane.hand_back()
    else:
        pane.send_next()


async def _compact(pane: ChatPane) -> None:
    """Lets the model summarise all before the last turn, and sends it that instead from now on; says what it brought.

    Raises:
        UsageError: there is nothing to summarise, or no model yet.
        LocalspecError: the summary failed; nothing is changed.
    """
    session, chat, path = pane.session, pane.chat, pane.path
    if session.facts is None:
        raise UsageError("A summary needs a model, and none is ready yet.", "Try again once it is loaded.")
    question = pane.question()
    found = last_turn(chat, path, question)
    if found is None:
        raise UsageError("There is nothing before your last message that could be summarised.")
    if not await pane.agreed():
        return
    summary = await summarise(pane, found, question)
    if summary is None:
        return
    shorter = question_of(replace(chat, window_first=found.first.id, window_summary=summary), path, session.facts)
    before = (await asyncio.to_thread(fit, session.answerer, question)).tokens
    after = (await asyncio.to_thread(fit, session.answerer, shorter)).tokens
    if before is not None and after is not None and after >= before:
        raise LocalspecError("The summary is as long as what it would stand for; nothing is changed.")
    await set_window(pane, found.first.id, summary)
    tokens = "" if before is None else f": {after:,} tokens instead of {before:,}"
    say(pane, f"The model goes on with a summary{tokens}. /compact off undoes it.")


async def summarise(pane: ChatPane, found: Window, question: Question) -> str | None:
    """The model's summary of what a window drops; None = it was stopped, which is said.

    Raises:
        LocalspecError: it failed, or has no words.
    """
    answerer = pane.session.answerer
    asked = await asyncio.to_thread(summary_question, answerer, found, question)
    summary = await pane.compactor.write(answerer, asked)
    if summary is None:
        say(pane, "The summary was stopped; nothing is changed.")
    elif not summary:
        raise LocalspecError("The model wrote no summary; nothing is changed.")
    return summary


_ROOM = (
    ("drop", "Go on without the oldest messages", "They stay in the chat; the model no longer sees them."),
    ("summarise", "Go on with a summary of them", "The model writes it first; that takes a moment."),
    ("new", "Ask in a new chat", "With your last message alone."),
)
"""What helps where the last message alone fits."""
_EDIT = ("edit", "Let me shorten it", "Your message comes back into the input.")


async def ask(
    event: ChatPane.Full, load: Callable[[str], object], open_chat: Callable[[], Awaitable[ChatPane]]
) -> None:
    """Asks what to do about a question that does not fit, and does it; from a worker, as it opens a dialog.

    `load` lets another model answer, `open_chat` opens a new chat.
    """
    pane = event.pane
    with errors_said(pane):
        found = await asyncio.to_thread(window, pane.session.answerer, pane.chat, pane.path, event.question)
        what = "This chat has" if found.fits else "Your message alone is too long: there are"
        question = (
            f"{what} {event.tokens:,} tokens, and {room(event.limit):,} more are for the answer; the context holds "
            f"{event.limit:,}. `localspec --context N` begins with a larger one."
        )
        own = pane.own_model.model
        answers = [*(_ROOM if found.fits else ()), _EDIT]
        if own:
            answers.append(("own", f"Let {short(own)} answer", "It answered in this chat before."))
        chosen = await pane.app.push_screen_wait(Choice(question, answers))
        if chosen == "own":
            load(own)
            pane.ask()
        elif chosen in ("drop", "summarise"):
            summary = await summarise(pane, found, event.question) if chosen == "summarise" else ""
            if summary is not None:
                await set_window(pane, found.first.id, summary)
                pane.ask()
        elif chosen == "new":
            last = pane.path[-1]
            fresh = await open_chat()
            pane.session.archive.append_user(fresh.chat_id, last.content, attachments=last.attachments)
            await fresh.transcript.show(fresh.path)
            fresh.ask()
        elif pane.path and pane.path[-1].role == "user":
            pane.edit(pane.path[-1])
