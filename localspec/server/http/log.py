"""Log lines, plain or as JSON: one a request, two an answer; without query strings, headers, prompts or keys."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter, strftime
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.engine.request import FinishReason
from localspec.runtime.generation import Generation
from localspec.server.http.errors import ApiError, error_response

LOG = logging.getLogger("localspec.server")
_ENGINE = "localspec"
"""The engine's logger, which is not ours alone."""
_FIELDS = ("client", "method", "path", "status", "seconds")


class AccessLog:
    """Outermost ASGI middleware: writes a line when a request has ended, and answers unforeseen errors with 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception as error:
            LOG.error("internal error: %r", error, exc_info=LOG.isEnabledFor(logging.DEBUG))
            if status:
                raise  # half a response is out: only closing the connection tells the client
            failure = ApiError(500, "server_error", f"Internal error: {type(error).__name__}. Please report it.")
            await error_response(failure, scope["path"])(scope, receive, sent)
        finally:
            _write(scope, status, perf_counter() - start)


def _write(scope: Scope, status: int, seconds: float) -> None:
    client = scope.get("client")
    told = {
        "client": client[0] if client else "-",
        "method": scope["method"],
        "path": scope["path"][:200].encode("unicode_escape").decode("ascii"),
        "status": status,
        "seconds": round(seconds, 3),
    }
    LOG.info("%(client)s %(method)s %(path)s %(status)s %(seconds)s s", told, extra=told)


class _Json(logging.Formatter):
    """A JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"time": strftime("%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        fields = {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        return json.dumps(told | (fields or {"message": record.getMessage()}), ensure_ascii=False)


@contextmanager
def written_to(stream: TextIO, *, as_json: bool = False, quiet: bool = False) -> Iterator[None]:
    """Sends the endpoint's, the engine's and uvicorn's lines to a stream while it is entered; the latter two's only if
    they matter, requests unless `quiet`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    levels = {
        LOG.name: logging.WARNING if quiet else logging.INFO,
        _ENGINE: logging.WARNING,
        "uvicorn.error": logging.ERROR,
    }
    with ExitStack() as after:
        for name, least in levels.items():
            logger = logging.getLogger(name)
            after.callback(_put_back, logger, logger.handlers, logger.propagate, logger.level)
            logger.handlers, logger.propagate = [handler], name == _ENGINE
            logger.setLevel(least)
        yield


def _put_back(logger: logging.Logger, handlers: list[logging.Handler], propagate: bool, level: int) -> None:
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


# Two lines of the log for each answer: that it is asked for, and how it went; never a word of prompt or answer.

_WHY = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "its limit was reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "done",
    FinishReason.ERROR: "it failed",
}
"""Why an answer ended. One that its own reader cancels, having the call that was wanted, is done."""


def answer_asked(model: str, generation: Generation) -> None:
    """An answer is asked for; it may wait for a slot."""
    LOG.info("%s reads a prompt of %d tokens", model, len(generation.request.prompt))


def answer_ended(model: str, generation: Generation, *, left: bool, stopped: bool) -> None:
    """It is over.

    Args:
        model: its name.
        generation: the answer.
        left: the client did not wait for it.
        stopped: the server ended it.
    """
    stats, why = generation.stats, _WHY[generation.finish or FinishReason.ERROR]
    if generation.finish is FinishReason.CANCELLED and (left or stopped):
        seconds = perf_counter() - generation.started
        why = "the server ended" if stopped else f"the client left after {seconds:.1f} s"
    guesses = f"{stats.accepted} of {stats.drafted} guesses accepted"
    if not stats.drafted:
        guesses = f"plain: nothing drafted ({stats.undrafted_reason})" if stats.undrafted else "plain"
    LOG.info(
        "%s answered: %d of %d prompt tokens read, %d cached; %d tokens, %.1f tokens/s, %s; %s",
        model,
        generation.read,
        stats.prompt_tokens,
        stats.reused_tokens,
        stats.generated,
        stats.tokens_per_second,
        guesses,
        why,
    )
