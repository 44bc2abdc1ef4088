"""An OpenAI-style endpoint as an answerer: vLLM, llama-server, another localspec. One thread runs the requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from time import monotonic
from typing import Any

from localspec.engine.request import FinishReason
from localspec.errors import LocalspecError
from localspec.remote.endpoint import Endpoint, Reply
from localspec.tui.talk.answerer import (
    POSTS_PER_SECOND,
    AnswerEnded,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Prefilled,
    Question,
    Sink,
)


class RemoteAnswerer:
    """Asks `URL/chat/completions` with `stream`; knows no tokens, origins or context."""

    def __init__(self, endpoint: str, model: str | None = None, key: str | None = None) -> None:
        """`endpoint`: with or without /v1 at its end. `model`: None = the first that the endpoint lists.

        Raises:
            UsageError: the address is none.
        """
        self._endpoint = Endpoint(endpoint, key)
        self.base = self._endpoint.base
        """The address, with /v1 at its end."""
        self.name = model or self._endpoint.name
        self.facts: Facts | None = None
        self.piece: Callable[[int], bytes] | None = None
        self.model = model
        """As the endpoint calls it; None = it has not been asked yet."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="localspec-remote", daemon=True)
        self._thread.start()

    def start(self, sink: Sink) -> None:
        self._run(self._find_model(sink))

    async def models(self) -> list[str]:
        """Names of the endpoint's models; for the screen's own loop.

        Raises:
            LocalspecError: it does not list any.
        """
        found: list[str] = await asyncio.wrap_future(self._run(self._endpoint.models()))
        return found

    def choose(self, model: str, sink: Sink) -> None:
        """Lets this model of the endpoint answer from the next question on."""
        self.model = model
        self.facts = Facts(model, remote=True, can_think=True)
        sink.post_message(ModelReady(self.facts))

    def answer(self, question: Question, sink: Sink) -> RemoteAnswer:
        answer = RemoteAnswer(question.seed)
        sink.post_message(Prefilled(answer, 0, None))
        answer.task = self._run(self._answer(answer, question, sink))
        return answer

    def count(self, question: Question) -> int | None:
        return None

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, job: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(job, self._loop)

    async def _end(self) -> None:
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await self._endpoint.close()
        self._loop.call_soon(self._loop.stop)

    async def _find_model(self, sink: Sink) -> None:
        sink.post_message(Loading(f"Asking {self.base}", 0.0))
        try:
            model = self.model or (await self._endpoint.models())[0]
        except LocalspecError as error:
            sink.post_message(LoadFailed(error))
        else:
            self.choose(model, sink)

    async def _answer(self, answer: RemoteAnswer, question: Question, sink: Sink) -> None:
        reply = Reply(question)
        parts = _Parts(answer, reply, sink)
        finish, error = FinishReason.STOP, None
        try:
            async with aclosing(self._endpoint.answer(question, self.model or "", reply)) as streamed:
                async for text, thinking in streamed:
                    parts.add(text, thinking)
            finish = reply.finish
        except asyncio.CancelledError:
            finish = FinishReason.CANCELLED
        except LocalspecError as failure:
            finish, error = FinishReason.ERROR, failure
        if finish in (FinishReason.CANCELLED, FinishReason.ERROR):
            parts.add(*reply.rest())
        parts.flush()
        sink.post_message(AnswerEnded(answer, finish, reply.stats, error))


class RemoteAnswer:
    """Cancelling closes the connection: servers stop generating then."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.task: Any = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _Parts:
    """What has come of an answer, joined until a post is due."""

    def __init__(self, answer: RemoteAnswer, reply: Reply, sink: Sink) -> None:
        self._answer, self._reply, self._sink = answer, reply, sink
        self._text, self._thinking, self._posted = "", "", 0.0

    def add(self, text: str, thinking: str) -> None:
        self._text += text
        self._thinking += thinking
        if monotonic() - self._posted >= 1 / POSTS_PER_SECOND:
            self.flush()

    def flush(self) -> None:
        if self._text or self._thinking:
            self._posted = monotonic()
            part = AnswerPart(self._answer, self._text, stats=self._reply.stats, thinking=self._thinking)
            self._text, self._thinking = "", ""
            self._sink.post_message(part)
