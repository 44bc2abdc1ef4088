"""Letting a chat go on with a summary of what came before its last turn. The chat's messages stay as they are."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError, UsageError
from localspec.tui.talk.answerer import Question
from localspec.tui.talk.consent import agreed
from localspec.tui.talk.conversation import Fit, Window, fit, last_turn, question_of, summary_question

if TYPE_CHECKING:
    from localspec.tui.widgets.pane import ChatPane


def begin(pane: ChatPane) -> None:
    """Compacts the chat, or says why not; prompts that are sent meanwhile are queued."""
    if pane.busy:
        pane.app.say("An answer or a summary is under way; compact the chat when it has ended.", problem=True)
    else:
        pane.run_worker(_compact_and_go_on(pane), group="compact")


def offer(pane: ChatPane, question: Question, found: Fit) -> None:
    """Offers it if the chat takes so much of the context and a summary would help."""
    helps = last_turn(pane.chat, pane.path, question) is not None
    pane.compactor.offer(found if helps else None)


async def set_window(pane: ChatPane, first: int | None, summary: str = "") -> None:
    """From now on the model sees the chat from this message on, and the summary; None = all of it."""
    pane.app.archive.set_window(pane.chat_id, first, summary)
    await pane.transcript.mark(pane.chat)
    pane.count()


async def _compact_and_go_on(pane: ChatPane) -> None:
    try:
        await _compact(pane)
    except LocalspecError as error:
        pane.app.say(str(error), problem=True)
        pane.hand_back()
    else:
        pane.send_next()


async def _compact(pane: ChatPane) -> None:
    """Lets the model summarise all before the last turn, and sends it that instead from now on; says what it brought.

    Raises:
        UsageError: there is nothing to summarise, or no model yet.
        LocalspecError: the summary failed; nothing is changed.
    """
    app, chat, path = pane.app, pane.chat, pane.path
    if app.facts is None:
        raise UsageError("A summary needs a model, and none is ready yet.", "Try again once it is loaded.")
    question = question_of(chat, path, app.facts)
    found = last_turn(chat, path, question)
    if found is None:
        raise UsageError("There is nothing before your last message that could be summarised.")
    if not await agreed(app):
        return
    summary = await summarise(pane, found, question)
    if summary is None:
        return
    shorter = question_of(replace(chat, window_first=found.first.id, window_summary=summary), path, app.facts)
    before = (await asyncio.to_thread(fit, app.answerer, question)).tokens
    after = (await asyncio.to_thread(fit, app.answerer, shorter)).tokens
    if before is not None and after is not None and after >= before:
        raise LocalspecError("The summary is as long as what it would stand for; nothing is changed.")
    await set_window(pane, found.first.id, summary)
    tokens = "" if before is None else f": {after:,} tokens instead of {before:,}"
    app.say(f"The model goes on with a summary{tokens}. /compact off undoes it.")


async def summarise(pane: ChatPane, found: Window, question: Question) -> str | None:
    """The model's summary of what a window drops; None = it was stopped, which is said.

    Raises:
        LocalspecError: it failed, or has no words.
    """
    answerer = pane.app.answerer
    asked = await asyncio.to_thread(summary_question, answerer, found, question)
    summary = await pane.compactor.write(answerer, asked)
    if summary is None:
        pane.app.say("The summary was stopped; nothing is changed.")
    elif not summary:
        raise LocalspecError("The model wrote no summary; nothing is changed.")
    return summary
