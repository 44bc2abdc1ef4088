"""Answers to the program that started this process: joined, and with what only the engine knows of them.

It sends a body of /v1/chat/completions with one more field, the object `localspec`:

    id      of the answer, to cancel it by
    resume  {reasoning, prefix, thought_out}: what it has thought and said already, and whether that thought is over
    raw     the text comes as the model says it, its marks included
    room    tokens that must be free after the prompt, else it is refused; null = as it may be. The first event of one
            that is not says in `taken` how many tokens the prompt has
    drafter, max_draft_tokens, chat, recall, remember: see `Options`

Everybody who does not prove with a secret to be that program finds an application alone, where there are no such paths
and fields.
"""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from anyio import Lock, to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec import checks
from localspec.chat.reply.harmony import apart
from localspec.chat.reply.reply import AnswerParser
from localspec.chat.turn import Message
from localspec.engine.slot import Event
from localspec.errors import ContextOverflowError, LocalspecError, told
from localspec.options import Options, SamplingParams
from localspec.remote.answerer import POSTS_PER_SECOND, Teller
from localspec.runner.place import HEADER
from localspec.runtime.engine import WantedAnswer
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import FINISH_WORDS, Joined
from localspec.server.http.streaming import DONE, EventStream
from localspec.settings import settings_of

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

Route: TypeAlias = Callable[[Request], Awaitable[Response]]
_Result = TypeVar("_Result")
_OPTIONS = ("drafter", "max_draft_tokens", "chat", "recall", "remember")


class Own:
    """ASGI: answers what is on `routes` by itself, and hands the rest on."""

    def __init__(
        self, secret: str, routes: Mapping[tuple[str, str], Route], make: Callable[[], Awaitable[ASGIApp]]
    ) -> None:
        """
        Args:
            secret: known by the program alone.
            routes: by method and path.
            make: the application of all others, when the first of them comes: it takes a second.
        """
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
        """The application of all others."""
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
        """Streams an answer.

        Raises:
            LocalspecError: the models cannot be loaded, the template refuses the messages, or they do not fit.
        """
        body = await request.json()
        number = body["localspec"]["id"]
        running = self._running[number] = _Running(partial(self._running.pop, number))
        try:
            await to_thread.run_sync(running.begin, self._lease, body)
        except BaseException:
            running.close()
            raise
        return EventStream(running, running.lines())

    async def count(self, request: Request) -> Response:
        """Tokens of a prompt; the body is an answer's."""
        body = await request.json()
        return JSONResponse({"tokens": await self._asked(lambda engine: len(_asked_of(engine, body).prompt))})

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
        use = await self._asked(partial(checks.use, int(request.query_params["context"])))
        parts = await self._asked(checks.parts)
        return JSONResponse({"use": [asdict(one) for one in use], "parts": [asdict(one) for one in parts]})

    def end(self) -> None:
        """Has all answers end."""
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
        self._reply: AnswerParser | None = None
        self._generation: Generation | None = None
        self._joined: Joined | None = None
        self._taken = 0
        """Tokens of the prompt, if they are to be told."""
        self._cancelled = False

    def begin(self, lease: Callable[[], Lease], body: Mapping[str, Any]) -> None:
        """Asks the engine that `lease` gives; on a thread.

        Raises:
            ContextOverflowError: after the prompt there is too little room.
        """
        self._lease = lease()
        engine = self._lease.engine
        asked = _asked_of(engine, body)
        if (room := body["localspec"].get("room")) is not None:
            self._taken, n_ctx = len(asked.prompt), engine.loaded.context.n_ctx
            if room and self._taken > n_ctx - room:
                what = f"The prompt has {self._taken} tokens; with {room} for the answer {n_ctx} are too few."
                raise ContextOverflowError(what)
        self._reply = asked.reply
        self._generation = engine.generate(asked.prompt, options_of(body, asked.most), preserved=asked.preserved)

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
        """Nobody reads it any more."""
        if self._generation is not None:
            self._generation.cancel()
        if self._lease is not None:
            self._lease.release()
        self._over()


def _asked_of(engine: Engine, body: Mapping[str, Any]) -> WantedAnswer:
    """What a body asks of a model."""
    messages = [Message(one["role"], one["content"]) for one in body["messages"]]
    thinking = body.get("chat_template_kwargs", {}).get("enable_thinking")
    more = body["localspec"]
    return WantedAnswer(engine, messages, thinking=thinking, raw=more.get("raw", False), **more.get("resume", {}))


def options_of(body: Mapping[str, Any], most: int | None) -> Options:
    """How an answer is drawn; what the body leaves out has its default, and `most` tokens."""
    more, given = body["localspec"], dict[str, Any]()
    for row in settings_of(SamplingParams):
        if row.api_name in body:
            given[row.name] = tuple(body[row.api_name]) if row.kind is tuple else body[row.api_name]
    biases = body.get("logit_bias", {}).items()
    given["logit_bias"] = tuple((int(token), -math.inf if bias is False else bias) for token, bias in biases)
    return Options(
        sampling=SamplingParams(**given),
        seed=body.get("seed"),
        max_tokens=body.get("max_tokens") or most,
        stop=tuple(body.get("stop", ())),
        **{name: more[name] for name in _OPTIONS if name in more},
    )


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
