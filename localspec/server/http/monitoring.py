"""Is it up, what has it done, what is it made of: /health, /metrics, /props."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from localspec import __version__
from localspec.runtime.engine import Engine
from localspec.server.chat.service import Service
from localspec.server.http.errors import ApiError
from localspec.server.http.meter import CONTENT_TYPE
from localspec.server.http.route import JsonRoute
from localspec.types import SamplingParams

ROUTER = APIRouter(tags=["monitoring"], route_class=JsonRoute)


@ROUTER.get("/health", summary="Whether the default model is loaded")
@ROUTER.get("/v1/health", include_in_schema=False)
async def health(request: Request) -> dict[str, str]:
    """200 once the default model was loaded (also while it is unloaded for want of requests), else 503."""
    service: Service = request.app.state.service
    if service.ending or not service.ready:
        words = "The server is ending." if service.ending else "Loading model"
        raise ApiError(503, "unavailable_error", words, headers={"Retry-After": "1"})
    return {"status": "ok"}


@ROUTER.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """llama-server's names, vLLM's speculative names, and our own."""
    service: Service = request.app.state.service
    processing = deferred = 0
    for name, engine in service.pool.loaded().items():
        live = service.live[name]
        processing += min(live, engine.settings.slots)
        deferred += max(0, live - engine.settings.slots)
    service.meter.follow(service.answering())
    return Response(service.meter.text(processing, deferred), media_type=CONTENT_TYPE)


@ROUTER.get("/props", summary="Properties of a model")
async def props(request: Request, model: str | None = Query(None, description="default: the default model")) -> Any:
    """What llama-server's /props says, as far as it applies; loads the model if need be."""
    service: Service = request.app.state.service
    lease = await service.lease(model)
    try:
        return JSONResponse(_props(lease.name, lease.engine))
    finally:
        lease.release()


def _props(name: str, engine: Engine) -> dict[str, Any]:
    loaded, settings = engine.loaded, engine.settings
    model = loaded.model
    params = asdict(SamplingParams())
    params["logit_bias"] = []
    return {
        "default_generation_settings": {"n_ctx": loaded.context.n_ctx, "params": params},
        "total_slots": settings.slots,
        "model_alias": name,
        "model_path": str(settings.target),
        "draft_model_path": None if settings.draft is None else str(settings.draft),
        "chat_template": model.chat_template or "",
        "bos_token": model.text_of(model.bos),
        "eos_token": model.text_of(model.eos),
        "modalities": {"vision": False, "audio": False},
        "build_info": f"localspec {__version__}",
        "is_sleeping": False,
        "speculative": {
            "drafter": settings.drafter,
            "max_draft_tokens": settings.max_draft_tokens,
            "verify_rule": settings.verify_rule.name.lower(),
            "exact": settings.exact,
            "configuration": loaded.configuration,
        },
    }
