"""What goes out: errors with the sentences that the command line prints, and answers, as a stream in the form of their
API or whole; and what happens when the client goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from localspec.errors import (
    Cancelled,
    ContextOverflowError,
    GrammarError,
    LocalspecError,
    NoRoomError,
    RunnerError,
    UsageError,
)
from localspec.options import Options, SamplingParams
from localspec.settings import numbers_of

LOG = logging.getLogger("localspec.server")
RETRY_SECONDS = 2
"""What Retry-After says when a queue is full."""
_SHOWN_CHARACTERS = 80
MOST_LEVELS = 200
"""Objects and lists within each other that pydantic's reader of JSON takes."""


class ApiError(HTTPException):
    """An answer that is an error. Raise it anywhere: in a route, below one, or while a stream runs."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        """
        Args:
            kind: `type` of the body: invalid_request_error, authentication_error, ... as llama-server has them.
            param: the field at fault.
            code: a word for programs, where OpenAI or its clients have one (context_length_exceeded, ...).
            details: more fields of the body.
        """
        super().__init__(status, message, dict(headers) if headers else None)
        self.kind, self.message, self.param, self.code, self.details = kind, message, param, code, details

    def body(self) -> dict[str, Any]:
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told | self.details}


BODIES: dict[str, Callable[[ApiError], dict[str, Any]]] = {}
"""Error bodies of APIs that are not OpenAI's, by the start of their paths."""


def error_body(error: ApiError, path: str) -> dict[str, Any]:
    """The body of an error in the shape that clients of this path understand."""
    for start, shape in sorted(BODIES.items(), reverse=True):  # the longer start goes first
        if path.startswith(start):
            return shape(error)
    return error.body()


def error_response(error: ApiError, path: str) -> JSONResponse:
    return JSONResponse(error_body(error, path), error.status_code, headers=error.headers)


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request cannot be served as it is."""
    return ApiError(400, "invalid_request_error", message, param=param, code=code)


def not_json(what: str, error: ValueError, param: str | None = None) -> ApiError:
    """400: a body or a field that should be JSON. `what` begins the sentence; `error` is pydantic's."""
    code = None if param is None else "invalid_value"
    if "recursion limit" in str(error):
        return invalid(f"{what} nests too deeply: JSON of at most {MOST_LEVELS} levels is read.", param, code)
    return invalid(f"{what} is not JSON: {error}.", param, code)


def unknown_model(name: str, names: Sequence[str]) -> ApiError:
    there = f"There are: {', '.join(names)}." if names else "There are none."
    what = f"There is no model {_short(name)!r}. {there}"
    return ApiError(404, "not_found_error", what, param="model", code="model_not_found")


def internal(error: Exception) -> ApiError:
    return ApiError(500, "server_error", f"Internal error: {type(error).__name__}. Please report it.")


def client_gone() -> ApiError:
    """499, for the log: the client has left, and does not read it."""
    return ApiError(499, "client_closed_request", "The client has left.")


def overloaded(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, "unavailable_error", message, code="overloaded", headers=headers)


def context_exceeded(n_prompt: int, n_ctx: int, param: str, *, at_least: bool = False) -> ApiError:
    """400: the prompt does not fit; with the numbers and the words that clients look for."""
    count = f"at least {n_prompt}" if at_least else n_prompt
    what = f"The prompt has {count} tokens and this model's maximum context length is {n_ctx} tokens. Shorten it."
    kind, code = "exceed_context_size_error", "context_length_exceeded"
    return ApiError(400, kind, what, param=param, code=code, n_prompt_tokens=n_prompt, n_ctx=n_ctx)


def from_localspec(error: LocalspecError) -> ApiError:
    if isinstance(error, ContextOverflowError):
        return ApiError(400, "exceed_context_size_error", str(error), code="context_length_exceeded")
    if isinstance(error, UsageError | GrammarError):
        return invalid(str(error))
    if isinstance(error, NoRoomError | RunnerError | Cancelled):
        return overloaded(str(error))
    return ApiError(500, "server_error", str(error))


_DECLARED = {row.api_name: row for owner in (Options, SamplingParams) for row in numbers_of(owner)}
"""Fields whose range is declared: they are refused with the engine's sentence."""
_OUTSIDE = frozenset(("greater_than_equal", "less_than_equal"))
_NOT_WHOLE = frozenset(("int_type", "int_from_float"))
"""Pydantic's words for what is wrong with a number."""


def from_validation(problems: Sequence[Any]) -> ApiError:
    """400 from pydantic's list of problems: the first, with the name of its field.

    A union reports every branch that failed; the problem that fits best is told (`_telling`).
    """
    problem = _telling(problems)
    where = [str(part) for part in problem["loc"] if part != "body"]
    name = ".".join(part for part in where if _is_field(part)) or None
    kind, words = problem["type"], str(problem["msg"])
    if kind == "extra_forbidden":
        name = ".".join([*(part for part in where[:-1] if _is_field(part)), _short(where[-1])])
        return invalid(f"Unknown or unsupported field: {name or repr(name)}. Leave it out.", name, "unknown_parameter")
    if name is None:
        return invalid("There is no body; send a JSON object." if kind == "missing" else "The body is no JSON object.")
    if kind == "missing":
        return invalid(f"The field {name} is missing.", name, "missing_required_parameter")
    shown = _short(repr(problem.get("input")))
    row = _DECLARED.get(name.rpartition(".")[2])
    if row is not None and kind in _NOT_WHOLE | _OUTSIDE:
        allowed = row.allowed if kind in _OUTSIDE else "a whole number"
        return invalid(f"{name} is {shown}; it must be {allowed}.", name, "invalid_value")
    words = words.removeprefix("Value error, ").rstrip(".")
    return invalid(f"{name} is {shown}: {words[:1].lower()}{words[1:]}.", name, "invalid_value")


def _telling(problems: Sequence[Any]) -> Any:
    """Of the first field's problems: an unknown field, or a list of the wrong length, or the one deepest inside; rather
    not one of an object whose `type` says that it is another."""
    first = problems[0]
    same_field = [one for one in problems if one["loc"][:2] == first["loc"][:2]]

    def rank(one: Any) -> tuple[bool, bool, int]:
        return one["type"] == "extra_forbidden", one["type"] in ("too_long", "too_short"), len(one["loc"])

    best = max(same_field, key=rank)
    others = {one["loc"][:-1] for one in same_field if one["type"] == "literal_error"}
    as_deep = [one for one in same_field if len(one["loc"]) >= len(best["loc"]) and one["loc"][:-1] not in others]
    return max(as_deep, key=rank) if as_deep and best["loc"][:-1] in others else best


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _is_field(part: str) -> bool:
    """Whether a step of a location is a field or an index, and not pydantic's name of a branch of a union."""
    return part.isdigit() or (part.isidentifier() and part.islower() and part not in ("str", "int", "float", "bool"))


PING = ":\n\n"
"""A comment: keeps a silent stream alive."""
DONE = "data: [DONE]\n\n"
EVENTS, NDJSON = "text/event-stream", "application/x-ndjson"
_Result = TypeVar("_Result")
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # the latter: nginx, do not collect


class Closing(Protocol):
    """Is closed with its response."""

    def close(self) -> None: ...


class EventStream(StreamingResponse):
    """Server-sent events of a request's answers, which are closed with it: read to the end, cut off, or never begun."""

    def __init__(self, answers: Closing, lines: AsyncIterator[str], media_type: str = EVENTS) -> None:
        super().__init__(lines, media_type=media_type, headers=_HEADERS)
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answers.close()


class Framing(NamedTuple):
    """How an API streams: the text before and after each object, its end, and its media type."""

    begin: str = "data: "
    after: str = "\n\n"
    end: str = ""
    media_type: str = EVENTS

    async def lines(self, chunks: AsyncIterator[Mapping[str, Any] | None], path: str) -> AsyncIterator[str]:
        """Chunks (None = nothing to say yet) as text, an error as the last of them, and the end."""
        try:
            async for chunk in chunks:
                yield PING if chunk is None else self._text(chunk)
        except Exception as error:  # noqa: BLE001 - the status is out: the stream itself must tell
            yield self._text(error_body(told(error), path))
        yield self.end

    def _text(self, chunk: Mapping[str, Any]) -> str:
        return self.begin.format_map({"type": "error", **chunk}) + compact(chunk) + self.after


OPENAI = Framing(end=DONE)
NAMED = Framing("event: {type}\ndata: ")
LLAMA_SERVER = Framing()
LINES = Framing("", "\n", media_type=NDJSON)


class ApiReply(Protocol):
    """The answers of a request in the shape of its API; `chunks`: None whenever `silence` seconds brought nothing."""

    def chunks(self, silence: float) -> AsyncIterator[Mapping[str, Any] | None]: ...

    async def collected(self) -> Any: ...


async def respond(request: Request, answers: Closing, reply: ApiReply, stream: bool | None, form: Framing) -> Response:
    """Answers as they come, or as one object when all are there."""
    if stream:
        chunks = reply.chunks(request.app.state.service.settings.ping_seconds)
        return EventStream(answers, form.lines(chunks, request.url.path), form.media_type)
    return json_response(await whole(request, answers, reply.collected))


def compact(body: Mapping[str, Any]) -> str:
    """JSON text; a number that JSON cannot tell is null."""
    return to_json(body, inf_nan_mode="null").decode()


def told(error: Exception) -> ApiError:
    """An error as the client may read it; an unforeseen one is logged, and told without its details."""
    if isinstance(error, ApiError):
        return error
    LOG.error("internal error: %r", error)
    return internal(error)


async def whole(request: Request, answers: Closing, collect: Callable[[], Awaitable[_Result]]) -> _Result:
    """What `collect` makes of the answers; they are cancelled if the client goes away meanwhile."""
    collecting = asyncio.ensure_future(collect())
    async with leaving(request) as left:
        try:
            await asyncio.wait((collecting, left), return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise client_gone()
            return collecting.result()
        finally:
            answers.close()
            collecting.cancel()
            await asyncio.gather(collecting, return_exceptions=True)


@asynccontextmanager
async def leaving(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Is done when the client has left."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":  # the body was read before
            pass

    left = asyncio.ensure_future(gone())
    try:
        yield left
    finally:
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)


def json_response(body: Any) -> Response:
    return Response(to_json(body, inf_nan_mode="null"), media_type="application/json")
