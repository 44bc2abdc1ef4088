"""Requests to an OpenAI-style server (vLLM, llama-server, Ollama, another localspec), and an answerer over them.

There is no event loop: each request waits on a thread of its own, and any other thread may end that.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urljoin

import httpx2 as httpx

from localspec.chat.reply.harmony import MARKS, apart
from localspec.chat.reply.reply import ReplyParser
from localspec.chat.reply.tool import ToolCall
from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.errors import Cancelled, LocalspecError
from localspec.remote.answerer import (
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
from localspec.remote.server import END, ODD, CallPiece, Piece, Refused, Server

_LIST_SECONDS = 30.0
_CUT = "The request was cut."
_TOOLLESS = set[tuple[str, str]]()
"""Servers, by their address, and models of theirs that answered once they were asked without tools."""
_ENDS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


class Requests:
    """Requests to one server, from any thread. Each has a connection of its own: a server may close an idle one just as
    it is used again."""

    def __init__(
        self, server: Server, path: Path | None = None, met: Callable[[socket.socket], object] = lambda _: None
    ) -> None:
        """`path`: of its socket, where that is a file. `met` looks at a connection before anything is sent, and raises
        if that shall not be."""
        self.server, self._met = server, met
        settings, limits = dict(server.settings), httpx.Limits(max_keepalive_connections=0)
        if path is not None:
            # Certificates are not read for it: that takes longer than a question.
            settings["transport"] = httpx.HTTPTransport(verify=False, uds=str(path), limits=limits, trust_env=False)
        self._client = httpx.Client(**settings, limits=limits)
        self._lock, self._closed = threading.Lock(), False
        self._calls = set[Call]()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for call in self._calls:
                call.cut()

    def models(self) -> list[str]:
        """Names of its models, in its order. Raises LocalspecError: it is away, refuses, or lists no models."""
        reply = self.whole("GET", "models", seconds=_LIST_SECONDS)
        try:
            names = [str(card["id"]) for card in reply.json()["data"]]
        except ODD as error:
            raise self.server.failure(error) from None
        if not names:
            raise LocalspecError(f"{self.server.base} lists no models.", "Load one there, or name one with --model.")
        return list(dict.fromkeys(names))

    def whole(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, seconds: float | None = None
    ) -> httpx.Response:
        """A successful answer that comes at once; `path` is below the server's base, or with a / below its host,
        `seconds` are those of silence."""
        with self._calling(Call()) as settings:
            if seconds is not None:
                settings["timeout"] = seconds
            reply = self._client.request(method, urljoin(f"{self.server.base}/", path), json=body, **settings)
            self.server.check(reply, reply.content)
        return reply

    def pieces(self, path: str, body: Mapping[str, Any], call: Call | None = None) -> Generator[Piece]:
        """The pieces of a streamed answer, to its end; closing the iterator closes the connection: servers stop then.
        Raises Cancelled: `call` was cut."""
        call, whole, url = call or Call(), False, f"{self.server.base}/{path}"
        with self._calling(call) as settings, self._client.stream("POST", url, json=body, **settings) as reply:
            self.server.check(reply, b"" if reply.is_success else reply.read())
            for line in reply.iter_lines():
                piece = self.server.piece(line)
                if piece is None:
                    continue
                call.begun, whole = True, whole or piece.done
                if piece == END:
                    break
                yield piece
        if not whole:
            raise Cancelled(_CUT) if call.is_cut else self.server.failure(None)

    @contextmanager
    def _calling(self, call: Call) -> Iterator[dict[str, Any]]:
        """What to send a request with; its errors in sentences."""
        with self._lock:
            if self._closed:
                raise Cancelled(_CUT)
            self._calls.add(call)
        try:
            yield {"extensions": {"trace": lambda step, facts: call.follow(step, facts, self._met)}}
        except ODD as error:
            raise Cancelled(_CUT) if call.is_cut else self.server.failure(error, call.begun) from None
        finally:
            with self._lock:
                self._calls.discard(call)
            call.end()


class Call:
    """A request that any thread may cut."""

    def __init__(self) -> None:
        self.is_cut = False
        self.begun = False  # something of the answer has come
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def cut(self) -> None:
        """A waiting request ends with an error at once, one that connects after that: nothing is sent."""
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with suppress(OSError):  # the server has closed it
                    self._socket.shutdown(socket.SHUT_RDWR)

    def follow(self, step: str, facts: Mapping[str, Any], met: Callable[[socket.socket], object]) -> None:
        """Hears of the steps of httpx, and takes hold of the connection."""
        if not step.endswith((".connect_tcp.complete", ".connect_unix_socket.complete")):
            return
        stream = facts["return_value"]
        try:
            with self._lock:
                if self.is_cut:
                    raise Cancelled(_CUT)
                self._socket = stream.get_extra_info("socket").dup()  # TLS takes the descriptor out of this one
            met(self._socket)
        except BaseException:
            stream.close()
            raise

    def end(self) -> None:
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None


class Reply:
    """One answer: chunks become text and thinking, and figures are kept."""

    def __init__(self, requests: Requests, question: Question, model: str) -> None:
        self.seed = question.seed  # what the server was told to draw with; None = nothing
        self.stats = RequestStats()  # what is known of it: tokens of prompt and answer, times
        self.finish = FinishReason.STOP  # why it ended, as the server says
        self.notice = ""  # what the user should know of it
        self._requests, self._body, self._call = requests, question.body(model), Call()
        self._asked = requests.server.base, model
        if self._asked in _TOOLLESS:
            self._body.pop("tools", None)
        self._parser = ReplyParser(thought=None if question.prefix else MARKS, thinking=bool(question.reasoning))
        self._began, self._first = perf_counter(), 0.0
        self._calling: CallPiece | None = None  # the call that is coming

    def cancel(self) -> None:
        """Lets `read` end at once, from any thread, and closes the connection: servers stop then."""
        self._call.cut()

    def read(
        self, take: Callable[[str, str], object], called: Callable[[tuple[ToolCall, ...]], object] = lambda _: None
    ) -> None:
        """Asks, and hands (text, thinking) on as they come, and whole calls to `called`; text that was held back comes
        after an error, too. A call that the server cut is left out."""
        stats = self.stats
        try:
            with closing(self._pieces()) as pieces:
                for piece in pieces:
                    text, thinking = apart(self._parser.push(piece.text))
                    thinking += piece.thinking
                    calls, says, now = self._whole(piece), bool(text or thinking or piece.calls), perf_counter()
                    self.finish = _ENDS.get(piece.finish, self.finish)
                    stats.prompt_tokens = piece.prompt_tokens or stats.prompt_tokens
                    # Servers send a token a chunk, mostly; the exact number may come at the end.
                    stats.generated = piece.tokens or stats.generated + says
                    if says:
                        if not self._first:
                            self._first = now
                            stats.ttft_seconds = stats.prefill_seconds = now - self._began
                        stats.verify_seconds = now - self._first
                        if text or thinking:
                            take(text, thinking)
                    if calls:
                        called(calls)
        finally:
            text, thinking = apart(self._parser.finish())
            if text or thinking:
                take(text, thinking)
        last = self._calling
        if last is not None and last.name and (last.is_whole or self.finish is not FinishReason.LENGTH):
            called((last.call,))

    def _pieces(self) -> Generator[Piece]:
        """What comes; asks once more without tools where these may be why the server refuses."""
        try:
            yield from self._requests.pieces("chat/completions", self._body, self._call)
        except Refused as refusal:
            named = refusal.status in (404, 422) and "tool" in refusal.message.lower()
            if self._body.pop("tools", None) is None or not (named or refusal.status == 400):
                raise
            yield from self._requests.pieces("chat/completions", self._body, self._call)
            _TOOLLESS.add(self._asked)
            self.notice = f"The server {self._requests.server.name} takes no tools; the answer was asked without them."

    def _whole(self, piece: Piece) -> tuple[ToolCall, ...]:
        """Calls that are whole, as others have begun."""
        found = list[ToolCall]()
        for one in piece.calls:
            last = self._calling
            self._calling = (last and last.then(one)) or one
            if last is not None and last.name and self._calling is one:
                found.append(last.call)
        return tuple(found)


class ServedAnswerer:
    """Asks `URL/chat/completions` with `stream`; knows no tokens, origins or context."""

    def __init__(self, endpoint: str, model: str | None = None, key: str | None = None) -> None:
        """`endpoint`: with or without /v1 at its end. `model`: None = the first that the endpoint lists."""
        server = Server(endpoint, key)
        self._requests = Requests(server)
        self.base = server.base  # the address, with /v1 at its end
        self.name = model or server.name
        self.facts: Facts | None = None
        self.piece: Callable[[int], bytes] | None = None
        self.model = model  # as the endpoint calls it; None = it has not been asked yet
        self.models = self._requests.models  # lists the endpoint's models: waits for the network

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._find_model, args=(sink,), name="localspec-load", daemon=True).start()

    def choose(self, model: str, sink: Sink) -> None:
        """Lets this model of the endpoint answer from the next question on."""
        self.model = model
        self.facts = Facts(model, remote=True, can_think=True)
        sink.post_message(ModelReady(self.facts))

    def answer(self, question: Question, sink: Sink) -> Reply:
        reply = Reply(self._requests, question, self.model or "")
        sink.post_message(Prefilled(reply, 0, None))

        def post(text: str, thinking: str = "", calls: tuple[ToolCall, ...] = ()) -> None:
            sink.post_message(AnswerPart(reply, text, stats=reply.stats, thinking=thinking, calls=calls))

        def read() -> None:
            finish, error = None, None
            try:
                reply.read(post, lambda calls: post("", calls=calls))
            except Cancelled:
                finish = FinishReason.CANCELLED
            except LocalspecError as failure:
                finish, error = FinishReason.ERROR, failure
            sink.post_message(AnswerEnded(reply, finish or reply.finish, reply.stats, error, reply.notice))

        threading.Thread(target=read, name="localspec-read", daemon=True).start()
        return reply

    def count(self, question: Question) -> int | None:
        return None

    def forget_chat(self, chat: str) -> bool:
        return False

    def look(self, context: int) -> None:
        return None

    def close(self) -> None:
        self._requests.close()

    def _find_model(self, sink: Sink) -> None:
        sink.post_message(Loading(f"Asking {self.base}", 0.0))
        try:
            model = self.model or self.models()[0]
        except Cancelled:  # closed meanwhile
            return
        except LocalspecError as error:
            sink.post_message(LoadFailed(error))
        else:
            self.choose(model, sink)
