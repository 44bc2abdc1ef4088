"""Answers to the program that started this process: joined, and with what only the engine knows of them.

It proves with a secret to be that program; every other client finds an application alone, without these paths. An
answer is asked for with {"id": its number, to cancel it by, "question": see `question_out`}. Where the question has a
`room`, the first event says in `taken` how many tokens its prompt has.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from anyio import Lock, to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.chat.reply.harmony import apart
from localspec.chat.reply.reply import Parser
from localspec.checks import inside
from localspec.engine.slot import Event
from localspec.errors import ContextOverflowError, LocalspecError, told
from localspec.options import Options
from localspec.remote.answerer import POSTS_PER_SECOND, Question, Teller, question_in
from localspec.runner.own_socket import HEADER
from localspec.runtime.engine import Asked
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import FINISH_WORDS, Joined
from localspec.server.http.streaming import DONE, EventStream

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

Route: TypeAlias = Callable[[Request], Awaitable[Response]]
_Result = TypeVar("_Result")


class Own:
    """ASGI: answers what is on `routes` by itself, and hands the rest on."""

    def __init__(
        self, secret: str, routes: Mapping[tuple[str, str], Route], make: Callable[[], Awaitable[ASGIApp]]
    ) -> None:
        """`routes`: by method and path; `make`: makes the application of all others for the first of them."""
        self._secret = secret.encode()
        self._routes, self._make = routes, make
        self._app: ASGIApp | None = None
        self._one = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get(HEADER, "").encode("latin-1")
        is_own = hmac.compare_digest(given, self._secret)
        route = self._routes.get((scope["method"], scope["path"])) if is_own else None
        if route is None:
            await (await self.made())(scope, receive, send)
            return
        try:
            response = await route(Request(scope, receive))
        except LocalspecError as error:
            response = JSONResponse({"error": told(error)}, 400)
        await response(scope, receive, send)

    async def made(self) -> ASGIApp:
        async with self._one:
            if self._app is None:
                self._app = await self._make()
            return self._app


class OwnAnswers:
    """Answers of one model. `routes` are for `Own`."""

    def __init__(self, lease: Callable[[], Lease]) -> None:
        """`lease`: gives the engine, which it loads unless it is there; called on threads."""
        self._lease = lease
        self._running: dict[str, _Running] = {}
        self.routes: dict[tuple[str, str], Route] = {
            ("POST", "/v1/chat/completions"): self.answer,
            ("POST", "/localspec/count"): self.count,
            ("POST", "/localspec/cancel"): self.cancel,
            ("POST", "/localspec/forget"): self.forget,
            ("GET", "/localspec/doctor"): self.doctor,
        }

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        running = self._running[body["id"]] = _Running(partial(self._running.pop, body["id"]))
        try:
            await to_thread.run_sync(running.begin, self._lease, question_in(body["question"]))
        except BaseException:
            running.close()
            raise
        return EventStream(running, running.lines())

    async def count(self, request: Request) -> Response:
        """Tokens of a prompt; the body is a question."""
        question = question_in(await request.json())
        return JSONResponse({"tokens": await self._asked(lambda engine: len(_asked_of(engine, question).prompt))})

    async def cancel(self, request: Request) -> Response:
        """Has the answer `id` end, which its stream tells with the last figures; nothing if there is none."""
        running = self._running.get((await request.json())["id"])
        if running is not None:
            running.cancel()
        return JSONResponse({})

    async def forget(self, request: Request) -> Response:
        """Deletes what is kept of a `chat`; of none: the next answer begins as a fresh program's does."""
        chat = (await request.json()).get("chat")
        await self._asked(lambda engine: engine.forget() if chat is None else engine.forget_chat(chat))
        return JSONResponse({})

    async def doctor(self, request: Request) -> Response:
        """What is found of the models in use, with so many tokens of `context`; two lists of `Finding`s."""
        use = await self._asked(partial(inside.use, int(request.query_params["context"])))
        parts = await self._asked(inside.parts)
        return JSONResponse({"use": [asdict(one) for one in use], "parts": [asdict(one) for one in parts]})

    def end(self) -> None:
        for running in self._running.values():
            running.cancel()

    async def _asked(self, work: Callable[[Engine], _Result]) -> _Result:
        """What `work` returns, with the engine, on a thread."""

        def run() -> _Result:
            lease = self._lease()
            try:
                return work(lease.engine)
            finally:
                lease.release()

        return await to_thread.run_sync(run)


class _Running:
    """One answer, from when it is asked for to its end."""

    def __init__(self, over: Callable[[], object]) -> None:
        self._over = over
        self._lease: Lease | None = None
        self._reply: Parser | None = None
        self._generation: Generation | None = None
        self._joined: Joined | None = None
        self._taken = 0
        """Tokens of the prompt, if they are to be told."""
        self._cancelled = False

    def begin(self, lease: Callable[[], Lease], question: Question) -> None:
        """Asks the engine that `lease` gives; on a thread. Raises ContextOverflowError if there is too little room."""
        self._lease = lease()
        engine = self._lease.engine
        asked = _asked_of(engine, question)
        if (room := question.room) is not None:
            self._taken, n_ctx = len(asked.prompt), engine.loaded.context.n_ctx
            if room and self._taken > n_ctx - room:
                what = f"The prompt has {self._taken} tokens; with {room} for the answer {n_ctx} are too few."
                raise ContextOverflowError(what)
        self._reply = asked.reply
        options = options_of(question, asked.most)
        self._generation = engine.generate(asked.prompt, options, preserved=asked.preserved)

    async def lines(self) -> AsyncIterator[str]:
        """The stream: an event for each batch, an error if there is one, and [DONE]."""
        assert self._lease is not None
        assert self._generation is not None
        teller = Teller(self._lease.engine.loaded.model.piece)
        self._joined = Joined(self._generation, POSTS_PER_SECOND)
        if self._cancelled:
            self._joined.cancel()
        if self._taken:
            yield _event({"localspec": {"taken": self._taken}})
        try:
            async for events in self._joined.batches():
                yield self._line(self._generation, teller, events)
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield self._line(self._generation, teller, [], broken=True)
            yield _event({"error": told(error), "outdated": self._lease.engine.outdated})
        yield DONE

    def _line(self, generation: Generation, teller: Teller, events: Sequence[Event], broken: bool = False) -> str:
        """`broken`: no more events come; what the reply has held back does."""
        finish = events[-1].finish if events else None
        assert self._reply is not None
        parts = self._reply.push("".join(event.text for event in events))
        if finish is not None or broken:
            parts += self._reply.finish()
        text, thoughts = apart(parts)
        delta = {name: said for name, said in (("content", text), ("reasoning_content", thoughts)) if said}
        word = None if finish is None else FINISH_WORDS[finish]
        return _event(
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": word}],
                "localspec": teller.told(events, generation.stats, generation.progress),
            }
        )

    def cancel(self) -> None:
        """Asks for the end, which comes with the last figures."""
        self._cancelled = True
        if self._joined is not None:
            self._joined.cancel()

    def close(self) -> None:
        if self._generation is not None:
            self._generation.cancel()
        if self._lease is not None:
            self._lease.release()
        self._over()


def _asked_of(engine: Engine, question: Question) -> Asked:
    given = {name: getattr(question, name) for name in ("thinking", "reasoning", "prefix", "thought_out", "raw")}
    return Asked(engine, question.messages, **given)


def options_of(question: Question, most: int | None) -> Options:
    """How an answer is drawn; of `most` tokens where the question has no limit."""
    keeps = not (question.alone or question.private)
    names = ("sampling", "seed", "stop", "drafter", "max_draft_tokens", "chat")
    given = {name: getattr(question, name) for name in names}
    return Options(**given, max_tokens=question.max_tokens or most, recall=keeps, remember=keeps)


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
