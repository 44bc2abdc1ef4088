"""The server of one model, in a process of its own with a life that is told, or on a thread of this one (`Here`).

It answers the program that started it, which proves that with a secret; every other client finds an application alone,
without these paths. An answer is asked for with {"id": its number, to cancel it by, "question": see `question_out`};
`remote.answerer.Question` says what each of its fields means (drafter, raw, room, thought_out, ...).
Where the question has a `room`, the first event says in `taken` how many tokens its prompt has.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import uvicorn
from anyio import Lock, to_thread
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from localspec.chat.reply.harmony import apart
from localspec.chat.reply.reply import AnswerParser
from localspec.chat.reply.tool import WholeCalls
from localspec.engine.slot import Event, FinishReason
from localspec.errors import Cancelled, ContextOverflowError, LocalspecError, told
from localspec.llama.exact.choice import Progress
from localspec.options import Options
from localspec.remote.answerer import POSTS_PER_SECOND, Question, Teller, question_in
from localspec.runner.child import HostUse
from localspec.runner.own_socket import HEADER, OwnSocket
from localspec.runtime.engine import Engine, WantedAnswer
from localspec.runtime.generation import Generation
from localspec.runtime.loaded import ModelFacts
from localspec.runtime.pool import Lease
from localspec.server.chat.answers import FINISH_WORDS, Joined
from localspec.server.http.output import DONE, LOG, EventStream
from localspec.server.own.life import Life, facts_of

if TYPE_CHECKING:
    from fastapi import FastAPI

    from localspec.server.chat.service import Service
    from localspec.server.http.settings import ServerSettings


Route: TypeAlias = Callable[[Request], Awaitable[Response]]
_Result = TypeVar("_Result")
PULSE_SECONDS = 1.0  # between two signs of life
_LONELY_SECONDS = 60.0
"""For the first listener to come. On Linux the system ends a process whose parent is gone before that."""
_END_SECONDS = 20.0
"""After which the process is ended by force: a pass may take long, and caches of chats are written."""
_KEEP_ALIVE = 86_400
"""Seconds that a connection without a request is kept: the program in front closes it."""
_SWITCH_SECONDS = 0.0002
"""Between threads of Python: the engine's has to wait so long for the one that writes answers. With Python's 0.005
eight users get 6 % fewer tokens a second (SmolLM2, 2 cores)."""
_SOCKET_FILES = hasattr(socket, "AF_UNIX")
"""The system has them; Windows has a port of this machine, where the secret keeps strangers out."""


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
        self._running: dict[str, _RunningAnswer] = {}
        self.routes: dict[tuple[str, str], Route] = {
            ("POST", "/v1/chat/completions"): self.answer,
            ("POST", "/localspec/count"): self.count,
            ("POST", "/localspec/cancel"): self.cancel,
            ("POST", "/localspec/forget"): self.forget,
            ("GET", "/localspec/doctor"): self.doctor,
        }

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        running = self._running[body["id"]] = _RunningAnswer()
        with ExitStack() as using:
            using.callback(self._running.pop, body["id"])
            await to_thread.run_sync(running.begin, using, self._lease, question_in(body["question"]))
            return EventStream(using.pop_all(), running.lines())
        raise AssertionError  # the stack swallows nothing

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
        from localspec.checks.doctor import examine_engine, examine_use

        length = int(request.query_params["context"])
        use = await self._asked(lambda engine: [asdict(one) for one in examine_use(engine, length)])
        parts = await self._asked(lambda engine: [asdict(one) for one in examine_engine(engine)])
        return JSONResponse({"use": use, "parts": parts})

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


class _RunningAnswer:
    """One answer, from when it is asked for to its end."""

    _engine: Engine  # it, and what follows, from `begin` on
    _reply: AnswerParser
    _generation: Generation

    def __init__(self) -> None:
        self._joined: Joined | None = None
        self._taken = 0
        """Tokens of the prompt, if they are to be told."""
        self._cancelled = False
        self._calls, self._called = WholeCalls(), 0

    def begin(self, using: ExitStack, lease: Callable[[], Lease], question: Question) -> None:
        """Asks the engine that `lease` gives, until `using` is left; on a thread. Raises ContextOverflowError if there
        is too little room."""
        leased = lease()
        using.callback(leased.release)
        engine = self._engine = leased.engine
        asked = _asked_of(engine, question)
        if (room := question.room) is not None:
            self._taken, n_ctx = len(asked.prompt), engine.loaded.context.n_ctx
            if room and self._taken > n_ctx - room:
                what = f"The prompt has {self._taken} tokens; with {room} for the answer {n_ctx} are too few."
                raise ContextOverflowError(what)
        self._reply = asked.reply
        options = options_of(question, asked.most)
        self._generation = engine.generate(asked.prompt, options, preserved=asked.preserved, grammar=asked.grammar())
        using.callback(self._generation.cancel)

    async def lines(self) -> AsyncIterator[str]:
        """The stream: an event for each batch, an error if there is one, and [DONE]."""
        teller = Teller(self._engine.loaded.model.piece)
        self._joined = Joined(self._generation, POSTS_PER_SECOND)
        if self._cancelled:
            self._joined.cancel()
        if self._taken:
            yield _event({"localspec": {"taken": self._taken}})
        try:
            async for events in self._joined.batches():
                yield self._line(teller, events)
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield self._line(teller, [], broken=True)
            yield _event({"error": told(error), "outdated": self._engine.outdated})
        yield DONE

    def _line(self, teller: Teller, events: Sequence[Event], broken: bool = False) -> str:
        """`broken`: no more events come; what the reply has held back does."""
        finish = events[-1].finish if events else None
        parts = self._reply.push("".join(event.text for event in events))
        if finish is not None or broken:
            parts += self._reply.finish(cut=finish in (FinishReason.LENGTH, FinishReason.CONTEXT))
        text, thoughts = apart(parts)
        whole = enumerate(self._calls.take(parts), self._called)
        calls = [{"index": index, **call.as_call()} for index, call in whole]
        self._called += len(calls)
        news = (("content", text), ("reasoning_content", thoughts), ("tool_calls", calls))
        delta = {name: said for name, said in news if said}
        word = None if finish is None else FINISH_WORDS[finish]
        return _event(
            {
                "object": "chat.completion.chunk",
                "choices": [{"index": 0, "delta": delta, "finish_reason": word}],
                "localspec": teller.told(events, self._generation.stats, self._generation.progress),
            }
        )

    def cancel(self) -> None:
        """Asks for the end, which comes with the last figures."""
        self._cancelled = True
        if self._joined is not None:
            self._joined.cancel()


def _asked_of(engine: Engine, question: Question) -> WantedAnswer:
    names = ("thinking", "reasoning", "prefix", "thought_out", "raw", "tools")
    return WantedAnswer(engine, question.messages, **{name: getattr(question, name) for name in names})


def options_of(question: Question, most: int | None) -> Options:
    """How an answer is drawn; of `most` tokens where the question has no limit."""
    keeps = not (question.alone or question.private)
    names = ("sampling", "seed", "stop", "drafter", "max_draft_tokens", "chat")
    given = {name: getattr(question, name) for name in names}
    return Options(**given, max_tokens=question.max_tokens or most, recall=keeps, remember=keeps)


def _event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"


def serve(life: Life, listening: socket.socket, secret: str, public: ServerSettings | None = None) -> None:
    """Serves until `life` ends, or a signal comes; then the models are closed. `secret`: the starting program alone
    knows it. `public`: of the server that is in front of it; None = there is none.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    _ModelServer(life, secret, public).run([listening])


class _OwnServer(uvicorn.Server):
    """Ends when it is told to, also before it has begun: the answers first, then the connections."""

    def __init__(self, app: ASGIApp, ending: Callable[[], bool], end: Callable[[], Awaitable[None]]) -> None:
        """`ending`: it is to end; `end` ends the answers."""
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self._ending, self._end = ending, end

    async def on_tick(self, counter: int) -> bool:
        return self._ending() or await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end()
        await super().shutdown(sockets)


class _ModelServer(_OwnServer):
    """Tells its life, and serves the application to a server in front of it. Ends with its life, with a signal, and if
    need be by force.
    """

    def __init__(self, life: Life, secret: str, public: ServerSettings | None) -> None:
        self._life, self._public = life, public
        self._service: Service | None = None
        self._stopped = False  # perhaps before the application is made
        routes: dict[tuple[str, str], Route] = {
            ("GET", "/localspec/life"): self._listen,
            ("POST", "/localspec/end"): self._stop_all,
            ("GET", "/localspec/running"): self._running,
            ("POST", "/localspec/stop"): self._stop_answers,
        }
        answers = OwnAnswers(lambda: life.pool.lease(life.pool.default))
        self._own = Own(secret, routes | answers.routes, self._make)
        super().__init__(self._own, lambda: life.ending, self._end_life)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._beats = asyncio.create_task(self._beat())
        asyncio.get_running_loop().call_later(_LONELY_SECONDS, self._life.check_alone)
        if self._public is not None:  # while the models are loaded
            self._making = asyncio.create_task(self._own.made())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True, file=os.open(os.devnull, os.O_WRONLY))
        await super().shutdown(sockets)
        faulthandler.cancel_dump_traceback_later()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's has the signal kill the process once more when all is over. Ctrl-C is for the parent."""
        self._life.ending = self._life.ending or sig != signal.SIGINT

    async def _end_life(self) -> None:
        await to_thread.run_sync(self._life.close)
        self._beats.cancel()
        self._life.end()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            self._life.pulse()

    async def _make(self) -> ASGIApp:
        """The application for the clients of the server in front."""

        def make() -> FastAPI:
            from localspec.server.http.app import create_app  # takes a second: events of the life go out meanwhile
            from localspec.server.http.meter import Telling
            from localspec.server.http.settings import ServerSettings

            LOG.setLevel(logging.INFO)  # the program in front chooses
            settings = self._public or ServerSettings(behind=True)
            return create_app(self._life.pool, settings, counting=Telling(self._life.say, self._life.say_state))

        app = await to_thread.run_sync(make)
        self._service = app.state.service
        if self._stopped:
            self._service.stop()
        return app

    async def _listen(self, request: Request) -> Response:
        """All that is told of the life, until the listener goes or the process ends."""
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[str | None]()

        def hear(line: str | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lines.put_nowait, line)

        async def heard() -> AsyncIterator[str]:
            while (line := await lines.get()) is not None:
                yield line

        self._life.join(hear)
        leaving = ExitStack()
        leaving.callback(self._life.leave, hear)
        return EventStream(leaving, heard(), "application/x-ndjson")

    async def _stop_all(self, request: Request) -> Response:
        self._life.ending = True
        return Response(status_code=202)

    async def _running(self, request: Request) -> Response:
        """What is answered now: `UnderWay`."""
        await self._own.made()
        assert self._service is not None
        return JSONResponse(asdict(await self._service.under_way(self._life.pool.default)))

    async def _stop_answers(self, request: Request) -> Response:
        """Nothing more is answered, and what runs ends with an error."""
        self._stopped = True
        if self._service is not None:
            self._service.stop()
        return Response(status_code=202)


class Here:
    """A `Host`: an engine of this process. Loads when it is waited for, on that thread; closed meanwhile, it gives up
    at the next progress.
    """

    last_log: tuple[str, ...] = ()

    def __init__(self, load: Callable[[Progress], Engine], closes: bool = True) -> None:
        """`load`: gives the engine; `closes`: closes it in the end."""
        self._load, self._closes = load, closes
        self._turn = threading.Lock()
        """Guards what is below."""
        self._closed = False
        self.engine: Engine | None = None
        self._use: Callable[[], HostUse] | None = None
        self._thread: threading.Thread | None = None
        self.facts: ModelFacts | None = None

    @property
    def outdated(self) -> str:
        return "" if self.engine is None else self.engine.outdated

    def wait(self, progress: Progress | None = None) -> None:
        def report(what: str, share: float) -> None:
            self._check_open()
            if progress is not None:
                progress(what, share)

        self._check_open()
        engine = self._load(report)
        try:
            facts = facts_of(engine)
            with self._turn:
                self._check_open()
                self._serve(engine)
                self.facts = facts
        except BaseException:
            if self._closes:
                engine.close()
            raise

    @contextmanager
    def use(self) -> Iterator[HostUse]:
        if self._closed:
            raise _closed()
        if self._use is None:
            raise LocalspecError("The models are not loaded yet.")
        yield self._use()

    def close(self, at_once: bool = False) -> None:
        with self._turn:
            self._closed = True
        if self._thread is not None:
            self._thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("Closed while loading.")

    def _serve(self, engine: Engine) -> None:
        """Begins to. Raises UsageError if there can be no such socket."""
        answers, secret = OwnAnswers(lambda: Lease(None, "", engine)), secrets.token_urlsafe()
        headers = {HEADER: secret}

        async def end() -> None:
            answers.end()
            if self._closes:
                await to_thread.run_sync(engine.close)

        async def make() -> ASGIApp:  # there is nothing for other clients here
            return Response(status_code=404)

        server = _OwnServer(Own(secret, answers.routes, make), lambda: self._closed, end)
        if _SOCKET_FILES:
            own = OwnSocket()
            listening, leave = own.socket, own.close
            use = partial(HostUse, own.path, headers, _closed)
        else:
            listening = socket.create_server(("127.0.0.1", 0))
            leave, url = listening.close, f"http://127.0.0.1:{listening.getsockname()[1]}"
            use = partial(HostUse, None, headers, _closed, url)

        def run() -> None:
            try:
                server.run([listening])
            finally:
                leave()

        self.engine, self._use = engine, use
        self._thread = threading.Thread(target=run, name="localspec-serve", daemon=True)
        self._thread.start()


def _closed() -> LocalspecError:
    return LocalspecError("The engine is closed.")
