"""Is it up, what has it done, what does it do now, what is it made of: /health, /metrics, /slots, /props."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from localspec.methods import PLAIN
from localspec.runtime.generation import Generation
from localspec.server.chat.answers import Timings, timings
from localspec.server.chat.service import props_of, props_unloaded
from localspec.server.front import Front
from localspec.server.http.meter import CONTENT_TYPE
from localspec.server.http.output import ApiError, overloaded, unknown_model
from localspec.server.http.reading import JsonRoute, Served

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

ROUTER = APIRouter(tags=["monitoring"], route_class=JsonRoute)


@ROUTER.get("/health", summary="Whether the default model is loaded")
@ROUTER.get("/v1/health", include_in_schema=False)
async def health(service: Served) -> dict[str, str]:
    """200 once the default model was loaded (also while it is unloaded for want of requests), else 503."""
    if service.ending or not service.ready:
        words = "The server is ending." if service.ending else "Loading model"
        raise ApiError(503, "unavailable_error", words, headers={"Retry-After": "1"})
    return {"status": "ok"}


@ROUTER.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(service: Served) -> Response:
    """llama-server's names, vLLM's speculative names, and our own."""
    processing = deferred = 0
    for name, facts in service.pool.facts().items():
        now = await service.under_way(name)
        processing += min(now.count, facts.slots)
        deferred += max(0, now.count - facts.slots)
        service.meter.follow(name, now.reading)
    headers = {"Process-Start-Time-Unix": str(service.started)}
    return Response(service.meter.text(processing, deferred), media_type=CONTENT_TYPE, headers=headers)


@ROUTER.get("/props", summary="Properties of a model")
async def props(service: Served, model: str | None = Query(None, description="default: the default model")) -> Any:
    """What llama-server's /props says, as far as it applies. No model is loaded for it: one that sleeps sleeps on, and
    of one that was never loaded its file tells. One that is being loaded is waited for."""
    name = service.resolve(model)
    if name not in service.pool.loaded():
        if name in service.known:
            return JSONResponse({**service.known[name], "is_sleeping": True})
        if not service.loading(name) and name in await to_thread.run_sync(service.pool.names):
            return JSONResponse(await to_thread.run_sync(props_unloaded, name, service.pool))
    lease = await service.lease(model)
    try:
        return JSONResponse(props_of(lease.name, service.pool.facts()[lease.name]))
    finally:
        lease.release()


# /slots: what is answered now, as llama-server tells it.


class NextToken(BaseModel):
    """How far an answer has come."""

    has_next_token: bool
    n_remain: int
    """Tokens that may still come by the request's own limit; -1 = there is none."""
    n_decoded: int


class SlotState(BaseModel):
    """A slot, under llama-server's names; prompts and texts are private and left out."""

    id: int
    n_ctx: int
    speculative: bool
    """Whether drafts may be made here."""
    is_processing: bool
    n_prompt_tokens: int | None = None
    n_prompt_tokens_processed: int | None = None
    """Those that have been computed for this request, not found in the cache; they grow as the prompt is read."""
    n_prompt_tokens_cache: int | None = None
    params: dict[str, Any] | None = None
    """Of the request: sampling, seed and limits."""
    next_token: list[NextToken] | None = None
    """Always one."""
    timings: Timings | None = None
    """As far as the answer has come."""


@ROUTER.get(
    "/slots",
    summary="What the slots of a model do now",
    response_model=list[SlotState],
    response_model_exclude_unset=True,
)
async def slots(
    request: Request,
    service: Served,
    model: str | None = Query(None, description="default: the default model"),
    fail_on_no_slot: str = Query("", description="Anything: answer 503 if all slots are busy."),
) -> Any:
    """llama-server's; empty for a model that is not in memory, which is not loaded for this."""
    name = service.resolve(model)
    lease = service.pool.lease_loaded(name)
    if lease is None:
        names = await to_thread.run_sync(service.pool.names)
        if name not in names:
            raise unknown_model(name, sorted(names))
        return []
    if isinstance(service, Front):
        return await service.passed_on(request, lease)
    try:
        engine = lease.engine
        running, count = engine.running, engine.settings.slots
        if fail_on_no_slot and len(running) >= count:
            raise overloaded(f"All slots of {name} are busy.")
        return [_slot(engine, index, running.get(index)) for index in range(count)]
    finally:
        lease.release()


def _slot(engine: Engine, index: int, generation: Generation | None) -> SlotState:
    drafts = bool(engine.drafters)
    state = SlotState(
        id=index, n_ctx=engine.loaded.context.n_ctx, speculative=drafts, is_processing=generation is not None
    )
    if generation is None:
        return state
    asked, stats = generation.request, generation.stats
    state.speculative = drafts and asked.drafter != PLAIN and asked.max_draft_tokens != 0
    state.n_prompt_tokens = len(asked.prompt)
    state.n_prompt_tokens_cache = stats.reused_tokens
    state.n_prompt_tokens_processed = generation.read
    bias = [[token, False if value == -math.inf else value] for token, value in asked.sampling.logit_bias]
    state.params = asdict(asked.sampling) | {
        "logit_bias": bias,
        "seed": asked.seed,
        "max_tokens": -1 if asked.max_tokens is None else asked.max_tokens,
        "ignore_eos": asked.ignore_end,
        "n_probs": asked.top_log_probs or 0,
        "speculative.drafter": asked.drafter,
        "speculative.n_max": asked.max_draft_tokens,
    }
    remain = -1 if asked.max_tokens is None else asked.max_tokens - stats.generated
    state.next_token = [NextToken(has_next_token=generation.finish is None, n_remain=remain, n_decoded=stats.generated)]
    state.timings = timings(stats)
    return state
