"""How a request's body is read: by a strict JSON parser (no lone surrogates, no NaN, no endless nesting); then null
stands for a field that is left out, and an unknown field is ignored, unless it would change the answer: those of
`SWITCHES` are refused. A strict reading refuses every field that is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Annotated, Any

from anyio import to_thread
from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from localspec.server.chat.service import Service
from localspec.server.http.output import ApiError, from_validation, invalid, not_json

HEADER = "Localspec-Ignored-Fields"
"""Header of a response: names of the request's fields that were ignored."""
MOST_NAMES = 20
"""Ignored names that are told of one request."""
LONGEST_NAME = 64
"""Characters of an ignored name that are told."""
LARGE_BODY = 256 * 1024
"""Bytes of a body that is parsed on a worker thread: a smaller one takes a few milliseconds."""
MOST_VALUES = 1 << 20
"""Separators in a body: at most so many values are made into Python objects, which takes up to a second."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")

SWITCHES: Mapping[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "dynamic_temperature": (False,),
    "nsigma": (-1, 0),
    "adaptive_target": (-1,),
    "top_a": (0,),
    "tfs": (1,),
    "tfs_z": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "smoothing_factor": (0,),
    "no_repeat_ngram_size": (0,),
    "guidance_scale": (1,),
    "cfg_scale": (1,),
    "num_beams": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "include_stop_str_in_output": (False,),
    "lora": ([], {}),
    "lora_request": ([], {}),
    "lora_adapters": ([], {}),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": ([],),
    "images": ([],),
    "image_data": ([],),
    "multimodal_data": ([], {}),
    "prompt_embeds": ([],),
    "best_of": (1,),
    "dimensions": (),
    "messages": ([],),
    "prompt": (),
    "conversation": (),
}
"""Fields of other servers that change the answer and that are not supported, with the values that turn each off.
Fields that only tune one of them (`mirostat_tau`, `guidance_rescale`, ...) change nothing by themselves."""


async def _service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_service_of)]
"""What routes get as an argument."""


class BodyReading:
    """The context in which the body of one request is validated. Collects the names of ignored fields."""

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.ignored: dict[str, None] = {}
        """Names that may stand in a header and in the log, in order."""

    def taken(self, data: dict[Any, Any], kind: type[BaseModel]) -> dict[Any, Any]:
        """The fields of an object that `kind` is to validate."""
        if self._strict:
            return data
        known, kept = _names(kind), {}
        for name, value in data.items():
            if value is None:
                continue
            if name in known:
                kept[name] = value
            else:
                may = name in getattr(kind, "ignored_switches", ())
                if not may and name in SWITCHES and value not in SWITCHES[name]:
                    what = f"{name} is not supported and would change the answer. Leave it out or turn it off."
                    raise invalid(what, name, "unsupported_parameter")
                self._ignore(str(name))
        return kept

    def with_tools(self, data: dict[Any, Any], types: frozenset[str]) -> dict[Any, Any]:
        """The same without tools of other types, which no client runs; a tool without a type stays."""
        tools = data.get("tools")
        if self._strict or not isinstance(tools, list):
            return data
        kept = []
        for tool in tools:
            kind = tool.get("type") if isinstance(tool, dict) else None
            if isinstance(kind, str) and kind not in types:
                self._ignore(f"tools.{kind}")
            else:
                kept.append(tool)
        return {**data, "tools": kept}

    def _ignore(self, name: str) -> None:
        told = shown(name)
        if told and len(self.ignored) < MOST_NAMES:
            self.ignored[told] = None


def shown(name: str) -> str:
    """A name without what could forge a header or a line of the log; "" if nothing is left."""
    return _UNSAFE.sub("", name[: 4 * LONGEST_NAME])[:LONGEST_NAME]


def renamed(data: dict[Any, Any], other_names: Mapping[str, str]) -> dict[Any, Any]:
    """The same fields under our names; ApiError 400: two names of one field, and two values."""
    if not any(other in data for other in other_names):
        return data
    data = dict(data)
    for other, own in other_names.items():
        value = data.pop(other, None)
        if value is None:
            continue
        if data.get(own, value) not in (None, value):
            raise invalid(f"{other} and {own} differ, and are two names of one field.", other, "invalid_value")
        data[own] = value
    return data


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """What the fields of a model are called in JSON."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


class JsonRoute(APIRoute):
    """For every router that needs no model. What is let in here can be sent out again."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's, over a request that parses and validates for itself, and with a header for ignored fields."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind = self.body_field.field_info.annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)

        async def handled(request: Request) -> Response:
            service: Service = request.app.state.service
            reading = BodyReading(strict=service.settings.strict_fields)
            response = await handle(_ReadRequest(request, kind, reading))
            if reading.ignored:
                response.headers[HEADER] = ", ".join(reading.ignored)
                service.ignored.tell(reading.ignored)
            return response

        return handled


class ModelRoute(JsonRoute):
    """For routes that need a model, which may be in another process."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            service: Service = request.app.state.service
            return await service.served(request, handle)

        return handled


def separators(body: bytes) -> int:
    """Commas and opening brackets of a body: as many values as it can have."""
    return sum(body.count(mark) for mark in (b",", b"[", b"{"))


class _ReadRequest(Request):
    def __init__(self, request: Request, kind: type[BaseModel], reading: BodyReading) -> None:
        super().__init__(request.scope, request.receive)
        self._kind, self._reading = kind, reading

    async def json(self) -> Any:
        """The body, validated, which FastAPI takes as it is."""
        body = await self.body()
        if len(body) <= LARGE_BODY:
            return self._read(body)
        service: Service = self.app.state.service
        return await to_thread.run_sync(self._read, body, limiter=service.large_bodies)

    def _read(self, body: bytes) -> BaseModel:
        values = separators(body)
        if values > MOST_VALUES:
            what = f"The body has {values} commas and opening brackets; at most {MOST_VALUES} are read."
            raise ApiError(413, "invalid_request_error", what)
        try:
            data = from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise not_json("The body", error) from None
        try:
            return self._kind.model_validate(data, context=self._reading)
        except ValidationError as error:
            problems = error.errors(include_url=False)
            raise from_validation([one | {"loc": ("body", *one["loc"])} for one in problems]) from None
