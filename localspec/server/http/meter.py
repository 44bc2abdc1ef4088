"""What is counted over all requests, for Prometheus, and the log: one line a request, two an answer, plain or as JSON.

llama-server's and vLLM's dashboards read their names as they are; positions count from 0, as theirs do. No line has a
query string, a header, a prompt or a key.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from time import perf_counter, strftime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localspec.engine.slot import FinishReason
from localspec.engine.stats import RequestStats
from localspec.remote.answerer import figures_in, figures_out
from localspec.runtime.generation import Generation
from localspec.server.http.output import LOG, error_response, internal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATE = 256
"""Answers that have ended of which `follow` may still be told: it was asked before. A choice."""
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)


class _Speculation:
    """One server's names of the four speculative counters."""

    def __init__(self, prefix: str, labels: tuple[str, ...], registry: CollectorRegistry) -> None:
        def counter(name: str, what: str, *more: str) -> Counter:
            return Counter(f"{prefix}:spec_decode_num_{name}", what, (*labels, *more), registry=registry)

        self._plain = {
            "draft_passes": counter("drafts", "Passes that carried a draft."),
            "drafted": counter("draft_tokens", "Tokens drafted."),
            "accepted": counter("accepted_tokens", "Draft tokens accepted."),
        }
        self._per_position = counter("accepted_tokens_per_pos", "Draft tokens accepted by position.", "position")

    def add(self, stats: RequestStats, *labels: str) -> None:
        for name, counter in self._plain.items():
            (counter.labels(*labels) if labels else counter).inc(getattr(stats, name))
        for position, count in enumerate(stats.accepted_per_position):
            self._per_position.labels(*labels, str(position)).inc(count)


class Metrics:
    """Counters of a server. Thread-safe."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # they say nothing here and double the page
        registry = self.registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(name, what, labels, registry=registry)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(name, what, registry=registry)

        def seconds(name: str, what: str) -> Histogram:
            return Histogram(name, what, ("model_name",), registry=registry, buckets=_SECONDS)

        self._prompt_tokens = counter("llamacpp:prompt_tokens", "Prompt tokens processed.")
        self._prompt_cached = counter("llamacpp:prompt_tokens_cached", "Prompt tokens found in the cache.")
        self._prompt_seconds = counter("llamacpp:prompt_seconds", "Time spent on prompts.")
        self._predicted_tokens = counter("llamacpp:tokens_predicted", "Tokens generated.")
        self._predicted_seconds = counter("llamacpp:tokens_predicted_seconds", "Time spent on generating.")
        self._prompt_rate = gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens per second, over all requests.")
        self._predicted_rate = gauge(
            "llamacpp:predicted_tokens_seconds", "Generated tokens per second, over all requests."
        )
        self._decodes = counter("llamacpp:n_decode", "Passes of single requests.")
        processing = gauge("llamacpp:requests_processing", "Answers that have a slot.")
        deferred = gauge("llamacpp:requests_deferred", "Answers that wait for a slot.")
        self._llama_speculation = _Speculation("llamacpp", (), registry)

        self._vllm_prompt = counter("vllm:prompt_tokens", "Prompt tokens.", "model_name")
        self._vllm_generated = counter("vllm:generation_tokens", "Tokens generated.", "model_name")
        self._vllm_success = counter("vllm:request_success", "Answers finished.", "model_name", "finished_reason")
        self._vllm_ttft = seconds("vllm:time_to_first_token_seconds", "Time to first token, waiting included.")
        self._vllm_itl = seconds("vllm:inter_token_latency_seconds", "Time between the arrivals of two passes' tokens.")
        running = gauge("vllm:num_requests_running", "Answers that have a slot.")
        waiting = gauge("vllm:num_requests_waiting", "Answers that wait.")
        self._now = (processing, running, deferred, waiting)
        self._vllm_speculation = _Speculation("vllm", ("model_name",), registry)

        how = "Answers by model, how they ended, and exactness."
        self._requests = counter("localspec:answers", how, "model", "finish", "exact")
        self._by_drafter = counter("localspec:accepted_tokens", "Draft tokens accepted, by drafter.", "drafter")
        self._drafted_by = counter("localspec:drafted_tokens", "Tokens drafted, by drafter.", "drafter")
        self._refused = counter("localspec:refused_requests", "Requests refused because the queue was full.")
        self._totals = RequestStats()
        self._followed: dict[tuple[str, int], int] = {}
        """Tokens that were counted of the prompts of answers under way, by model and number."""
        self._over: deque[tuple[str, int]] = deque(maxlen=_LATE)
        self._lock = Lock()

    def follow(self, model: str, reading: Mapping[int, int]) -> None:
        """Adds what has been read of the prompts of answers under way: tokens by their numbers."""
        with self._lock:
            for number, read in reading.items():
                if (model, number) not in self._over:
                    self._tell_read((model, number), read)

    def _tell_read(self, answer: tuple[str, int], read: int) -> None:
        before = self._followed.get(answer, 0)
        self._followed[answer] = max(before, read)
        self._prompt_tokens.inc(self._followed[answer] - before)

    def answered(self, model: str, number: int, generation: Generation) -> None:
        """An answer has ended, however it ended; `number`: its own."""
        self._add(model, number, generation.finish or FinishReason.ERROR, generation.stats, generation.read)

    def refused(self) -> None:
        self._refused.inc()

    def lost(self, model: str) -> None:
        """The process that answered a request is gone, with what it knew of the answer."""
        self._requests.labels(model, FinishReason.ERROR.value, "false").inc()

    def hear(self, model: str, event: str, news: Mapping[str, Any]) -> None:
        """Counts what `Telling` says in the process of a model."""
        if event == "answered":
            stats = RequestStats()
            figures_in(stats, news["figures"])
            stats.gaps = news["gaps"]
            self._add(model, news["number"], FinishReason(news["finish"]), stats, news["read"])
        elif event == "read":
            self.read(model, news["tokens"], news["seconds"])
        elif event == "refused":
            self.refused()

    def _add(self, model: str, number: int, finish: FinishReason, stats: RequestStats, read: int) -> None:
        """Adds an answer that has ended, of whose prompt so many tokens were read."""
        with self._lock:
            self._requests.labels(model, finish.value, "true" if stats.exact else "false").inc()
            self._vllm_prompt.labels(model).inc(stats.prompt_tokens)
            self._vllm_generated.labels(model).inc(stats.generated)
            if finish in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CONTEXT):
                self._vllm_success.labels(model, "stop" if finish is FinishReason.STOP else "length").inc()
            if stats.generated:
                self._vllm_ttft.labels(model).observe(stats.ttft_seconds)
            for gap in stats.gaps:
                self._vllm_itl.labels(model).observe(gap)
            self._tell_read((model, number), read)
            del self._followed[model, number]
            self._over.append((model, number))
            self._prompt_cached.inc(stats.reused_tokens)
            self._count_llama(stats, read)
            self._llama_speculation.add(stats)
            self._vllm_speculation.add(stats, model)
            for drafter, drafted in stats.drafted_by_drafter.items():
                self._drafted_by.labels(drafter).inc(drafted)
                self._by_drafter.labels(drafter).inc(stats.accepted_by_drafter[drafter])

    def read(self, model: str, tokens: int, seconds: float) -> None:
        """A text was read without an answer, in so many seconds."""
        with self._lock:
            self._vllm_prompt.labels(model).inc(tokens)
            self._prompt_tokens.inc(tokens)
            self._count_llama(RequestStats(prompt_tokens=tokens, prefill_seconds=seconds), tokens)

    def _count_llama(self, stats: RequestStats, read: int) -> None:
        totals = self._totals
        totals.prompt_tokens += read
        totals.prefill_seconds += stats.prefill_seconds
        totals.generated += stats.generated
        totals.verify_seconds += stats.decode_seconds
        self._prompt_seconds.inc(stats.prefill_seconds)
        self._predicted_tokens.inc(stats.generated)
        self._predicted_seconds.inc(stats.decode_seconds)
        self._decodes.inc(stats.passes)
        if totals.prefill_seconds:
            self._prompt_rate.set(totals.prompt_tokens / totals.prefill_seconds)
        if totals.verify_seconds:
            self._predicted_rate.set(totals.generated / totals.verify_seconds)

    def text(self, processing: int, deferred: int) -> bytes:
        """Prometheus' text format; so many answers have a slot now, and so many wait for one."""
        for gauge, value in zip(self._now, (processing, processing, deferred, deferred), strict=True):
            gauge.set(value)
        return generate_latest(self.registry)


class Telling:
    """Counts in the process of a model for the meter of the server in front: its events are those of `Metrics.hear`."""

    def __init__(self, say: Callable[..., None], say_state: Callable[[], None]) -> None:
        self._say, self._say_state = say, say_state

    def answered(self, model: str, number: int, generation: Generation) -> None:
        stats, finish = generation.stats, generation.finish or FinishReason.ERROR
        if finish is FinishReason.ERROR:
            self._say_state()  # before who asked hears of the error
        more = {"read": generation.read, "figures": figures_out(stats), "gaps": stats.gaps}
        self._say("answered", number=number, finish=finish.value, **more)

    def read(self, model: str, tokens: int, seconds: float) -> None:
        self._say("read", tokens=tokens, seconds=seconds)

    def refused(self) -> None:
        self._say("refused")


MOST_REMEMBERED = 200
"""Ignored names of fields that the log tells, each once, before it tells no more."""
_ENGINE = "localspec"
"""The engine's logger, which is not ours alone."""
_REQUEST = "request"
"""Of a record of the log: the fields that its line has."""


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
            await error_response(internal(error), scope["path"])(scope, receive, sent)
        finally:
            client = scope.get("client")
            told = {
                "client": client[0] if client else "-",
                "method": scope["method"],
                "path": scope["path"][:200].encode("unicode_escape").decode("ascii"),
                "status": status,
                "seconds": round(perf_counter() - start, 3),
            }
            LOG.info("%(client)s %(method)s %(path)s %(status)s %(seconds)s s", told, extra={_REQUEST: told})


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {"time": strftime("%Y-%m-%dT%H:%M:%S%z"), "level": record.levelname.lower()}
        said = getattr(record, _REQUEST, {"message": record.getMessage()})
        return json.dumps(told | said, ensure_ascii=False)


@contextmanager
def written_to(stream: TextIO, *, as_json: bool = False, quiet: bool = False) -> Iterator[None]:
    """Sends the endpoint's, the engine's and uvicorn's lines to a stream while it is entered; the latter two's only if
    they matter, requests unless `quiet`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    levels = {LOG: logging.WARNING if quiet else logging.INFO, logging.getLogger(_ENGINE): logging.WARNING}
    levels[logging.getLogger("uvicorn.error")] = logging.ERROR
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in levels]
    for logger, least in levels.items():
        logger.handlers, logger.propagate = [handler], logger.name == _ENGINE
        logger.setLevel(least)
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


class IgnoredNames:
    """What the log has told: each name once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, names: Iterable[str]) -> None:
        """Writes a line about those that are new, while there is room to remember them."""
        fresh = [name for name in names if name not in self._told][: MOST_REMEMBERED - len(self._told)]
        if fresh:
            self._told.update(fresh)
            LOG.warning("Ignored unknown fields of requests, told once each: %s", ", ".join(fresh))


_WHY = {
    FinishReason.STOP: "done",
    FinishReason.LENGTH: "its limit was reached",
    FinishReason.CONTEXT: "the context is full",
    FinishReason.CANCELLED: "done",
    FinishReason.ERROR: "it failed",
}
"""Why an answer ended. One that its own reader cancels, having the call that was wanted, is done."""


def answer_asked(model: str, generation: Generation) -> None:
    """An answer is asked for; it may wait for a slot. Never a word of prompt or answer is logged."""
    LOG.info("%s reads a prompt of %d tokens", model, len(generation.request.prompt))


def answer_ended(model: str, generation: Generation, *, left: bool, stopped: bool) -> None:
    """It is over; `left`: the client did not wait for it; `stopped`: the server ended it."""
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
