"""Answers that call tools: a model is asked, its calls are made, and it is asked again with their results.

An answer with calls is one answer to the face that wants it, whose parts, figures and end come as of any other; between
them come its calls.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import CANCELLED, PARAGRAPH, MadeCall, rounds
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError
from localspec.remote.answerer import Answer, AnswerEnded, Answerer, AnswerPart, Prefilled, Question, Sink, Taken, Told
from localspec.tools.connections import Offered
from localspec.tools.toolbox import REFUSED, Consent, Toolbox

MOST_ROUNDS = 20
"""Rounds of an answer, unless a setting says otherwise: a model that calls the same tool again and again has an end."""
_AGAIN = "Do not call the tool again. The result is above: answer the user with it, in words."
"""To a model that repeats a call of the same answer. Small ones do so forever otherwise (Qwen2.5-Coder-1.5B)."""
_SHARE = 0.5  # of the context that is left, for one result: what is longer is cut in the middle
_CHARACTERS = 2  # of a token, in a result: English has 4, code 3; of Chinese more are cut than need be


@dataclass(eq=False, repr=False)
class OfTools(Told):
    """What an answer tells of its tools, between its parts."""

    answer: CallingAnswer


@dataclass(eq=False, repr=False)
class CallDue(OfTools):
    """A call is about to be made, once the user has said so, if `asks`: by `answer.consent`."""

    call: ToolCall
    server: str
    asks: bool


@dataclass(eq=False, repr=False)
class Noticed(OfTools):
    """Something of the tools that the user should know, such as a server that does not start."""

    text: str


@dataclass(eq=False, repr=False)
class CallMade(OfTools):
    """What became of a call; it may have been refused."""

    made: MadeCall


class CallingAnswer:
    """One answer under way, of as many rounds as it takes. Its thread asks, and hands on what is posted."""

    def __init__(self, answerer: Answerer, toolbox: Toolbox, question: Question, sink: Sink, most_rounds: int) -> None:
        self.seed = question.seed
        self._answerer, self._toolbox, self._question, self._sink = answerer, toolbox, question, sink
        self._most_rounds = most_rounds
        self._inbox, self._consents = SimpleQueue[Told](), SimpleQueue[Consent]()
        self._cancelled = threading.Event()
        self._now: Answer | None = None  # the round under way
        self._text, self._thoughts = question.prefix, question.reasoning  # of all rounds
        self._calls = list[MadeCall]()
        self._lock = threading.Lock()  # of the next
        self._due: MadeCall | None = None
        self._last: tuple[Offered, dict[str, Any]] | None = None  # tool and arguments of the last that did not fail
        self._stats, self._prompt = RequestStats(), 0  # of the rounds that have ended, tokens of the last one's prompt

    def cancel(self) -> None:
        self._cancelled.set()
        if (now := self._now) is not None:
            now.cancel()
        self._tell()
        self._consents.put("no")  # for who waits

    def consent(self, consent: Consent) -> None:
        """The user's word to the call that asks for it."""
        self._consents.put(consent)

    def post_message(self, message: Told) -> bool:
        """Takes what the answerer posts of a round."""
        self._inbox.put(message)
        return True

    def run(self) -> None:
        try:
            end = self._rounds()
        except Cancelled:
            end = AnswerEnded(self, FinishReason.CANCELLED, self._stats)
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            if not isinstance(error, LocalspecError):
                error = LocalspecError(f"The tools failed: {error!r}.", "LOCALSPEC_DEBUG=1 shows more.")
            self.cancel()
            end = AnswerEnded(self, FinishReason.ERROR, self._stats, error)
        self._sink.post_message(end)

    def _rounds(self) -> AnswerEnded:
        question, facts = self._question, self._answerer.facts
        completes = facts is not None and facts.completes  # it cannot be told of tools
        number = 0
        while True:
            if self._cancelled.is_set():
                raise Cancelled("Cancelled before it was asked.")
            tools = () if completes else self._toolbox.tools(self._cancelled.is_set)  # a server may change them
            for text in self._toolbox.notices():
                self._sink.post_message(Noticed(self, text))
            messages, text, thoughts = rounds(self._text, self._thoughts, self._calls)
            stuck = number >= self._most_rounds or sum(one.result == _AGAIN for one in self._calls) > 1
            offered = () if stuck else tools  # it has to answer without more calls
            asked = replace(question, messages=[*question.messages, *messages], tools=offered)
            if number:
                left = None if question.max_tokens is None else max(1, question.max_tokens - self._stats.generated)
                asked = replace(asked, prefix=text, reasoning=thoughts, thought_out=False)
                asked = replace(asked, max_tokens=left, seed=self.seed)
            end, calls = self._round(asked)
            self._stats = self._stats.before(end.stats) if number else end.stats
            self._prompt = end.stats.prompt_tokens
            if end.notice:
                self._sink.post_message(Noticed(self, end.notice))
            if end.finish is not FinishReason.STOP or not calls or stuck:
                return AnswerEnded(self, end.finish, self._stats, end.error)
            for call in calls:
                self._make(call, number)
            number += 1

    def _round(self, question: Question) -> tuple[AnswerEnded, list[ToolCall]]:
        """Asks, hands on what comes, and returns the end and the calls."""
        calls, first = list[ToolCall](), bool(self._calls and self._text)
        self._now = self._answerer.answer(question, self)
        self.seed = self._now.seed
        if self._cancelled.is_set():
            self._now.cancel()
        while not isinstance(news := self._inbox.get(), AnswerEnded):
            if isinstance(news, AnswerPart):
                calls += news.calls
                if news.text and first:
                    news.text, first = PARAGRAPH + news.text, False
                self._text, self._thoughts = self._text + news.text, self._thoughts + news.thinking
                news.stats = self._stats.before(news.stats) if self._calls else news.stats
            if isinstance(news, AnswerPart | Prefilled | Taken):
                news = replace(news, answer=self)
            if not (isinstance(news, Taken) and self._calls):  # once is enough
                self._sink.post_message(news)
        return news, calls

    def _make(self, call: ToolCall, number: int) -> None:
        """Makes a call if it can and may be made, and tells what became of it."""
        if self._cancelled.is_set():
            raise Cancelled("Cancelled before a call.")
        self._due = MadeCall(call, CANCELLED, number, len(self._text), len(self._thoughts), failed=True)
        try:
            found = self._toolbox.checked(call)
            if isinstance(found, str):
                self._tell(result=found)
            elif found == self._last:
                self._tell(result=_AGAIN)
            elif not self._may(call, found[0]):
                self._tell(result=REFUSED)
            else:
                called = self._toolbox.call(*found, self._cancelled.is_set, self._most_characters(number))
                self._tell(result=called.text, failed=called.failed, seconds=called.seconds)
                self._last = self._last if called.failed else found
        finally:
            self._tell()

    def _tell(self, **became: Any) -> None:
        """What became of the call that is due: the first word counts, so that who cancels is told at once."""
        with self._lock:
            made, self._due = self._due, None
        if made is not None:
            self._calls.append(replace(made, **became))
            self._sink.post_message(CallMade(self, self._calls[-1]))

    def _may(self, call: ToolCall, one: Offered) -> bool:
        asks = not self._toolbox.allows(one)
        self._sink.post_message(CallDue(self, call, one.server, asks))
        consent = self._consents.get() if asks else "once"
        if fault := self._toolbox.take(one, consent):
            self._sink.post_message(Noticed(self, f"The consent is not kept: {fault}."))
        return consent != "no"

    def _most_characters(self, number: int) -> int | None:
        """Of the next result, so that the rest of the answer has as much room; None = the context is not known."""
        facts = self._answerer.facts
        if facts is None or facts.context is None:
            return None
        new = [one.result for one in self._calls if one.round == number]  # the prompt had those before
        used = self._prompt + sum(map(len, new)) // _CHARACTERS
        return max(500, int((facts.context - used) * _SHARE) * _CHARACTERS)


def answer_with(
    toolbox: Toolbox, answerer: Answerer, question: Question, sink: Sink, most_rounds: int = MOST_ROUNDS
) -> CallingAnswer:
    """An answer that may call the tools of a toolbox; as `Answerer.answer`, but what is `OfTools` comes, too."""
    answer = CallingAnswer(answerer, toolbox, question, sink, most_rounds)
    threading.Thread(target=answer.run, name="localspec-calls", daemon=True).start()
    return answer
