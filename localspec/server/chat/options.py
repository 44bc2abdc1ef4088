"""Fields of a request to `Options`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localspec.engine.interfaces import fresh_seed
from localspec.errors import UsageError
from localspec.llama.model import Model
from localspec.options import LIMITS, Options
from localspec.server.chat.chat_fields import GenerationFields
from localspec.server.chat.fields import LogitBias, joined
from localspec.server.http.errors import ApiError, invalid
from localspec.types import SamplingParams, Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine

_LONGEST_NAME = 1024
"""Characters of a text whose tokens are biased."""


def options_of(fields: GenerationFields, engine: Engine, max_tokens: int | None = None, **more: Any) -> Options:
    """What all choices of a request have in common, the seed chosen.

    Args:
        fields: the request.
        engine: the engine that will answer.
        max_tokens: overrides the field of that name.
        more: options that its fields do not tell.

    Raises:
        ApiError: 400, with the field at fault.
        UsageError: a value the engine refuses.
    """
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if "" in stop:
        raise invalid("stop holds an empty string.", "stop", "invalid_value")
    seed = LIMITS["seed"].meant(fields.seed)
    return Options(
        sampling=sampling_params(fields, engine.loaded.model),
        seed=fresh_seed() if seed is None else seed,
        max_tokens=_most(fields.max_tokens if max_tokens is None else max_tokens),
        min_tokens=fields.min_tokens or 0,
        stop=tuple(stop),
        stop_tokens=_stop_tokens(fields.stop_token_ids or (), engine.loaded.model),
        ignore_end=bool(fields.ignore_eos),
        prediction=None if fields.prediction is None else _prediction(joined(fields.prediction.content), engine),
        **_drafting(fields),
        **more,
    )


def _most(given: int | None) -> int | None:
    row = LIMITS["max_tokens"]
    limit: int | None = row.meant(given)
    try:
        row.check(limit)
    except UsageError as error:  # only completions that echo take 0
        raise invalid(error.message, row.name, "invalid_value") from None
    return limit


def _stop_tokens(given: Sequence[int], model: Model) -> frozenset[int]:
    wrong = next((token for token in given if not 0 <= token < model.n_vocab), None)
    if wrong is not None:
        what = f"stop_token_ids holds {str(wrong)[:24]}; ids are 0 to {model.n_vocab - 1}."
        raise invalid(what, "stop_token_ids", "invalid_value")
    return frozenset(given)


def _prediction(text: str, engine: Engine) -> Tokens:
    model, n_ctx = engine.loaded.model, engine.loaded.context.n_ctx
    if model.fewest_tokens(text, n_ctx, special=False) <= n_ctx:
        tokens = model.tokenize(text, special=False, add_bos=False)
        if len(tokens) <= n_ctx:
            return tokens
    raise invalid(f"prediction does not fit: the context holds {n_ctx} tokens.", "prediction", "invalid_value")


def _drafting(fields: GenerationFields) -> dict[str, Any]:
    wanted = fields.speculative
    if wanted is None:
        return {}
    if not wanted.enabled:
        return {"drafter": "none", "max_draft_tokens": 0}
    return {"drafter": wanted.drafter, "max_draft_tokens": wanted.max_draft_tokens, "forced": wanted.force}


def sampling_params(fields: GenerationFields, model: Model) -> SamplingParams:
    """How tokens are drawn; what is not given is llama.cpp's default."""
    return SamplingParams(**fields.sampling(), logit_bias=logit_bias(fields.logit_bias, model))


def logit_bias(given: LogitBias | None, model: Model) -> tuple[tuple[int, float], ...]:
    """(token, bias) pairs from an object or a list of pairs; a text stands for each of its tokens, false for -inf.

    Raises:
        ApiError: 400, no such token, or no such bias.
    """
    pairs: list[Any] = list(given.items()) if isinstance(given, dict) else list(given or ())
    found: dict[int, float] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise _bad_bias(f"{pair!r} is no pair of a token and a number")
        name, value = pair
        if value is True or isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
            raise _bad_bias(f"the bias of {name!r} is {value!r}; it must be a number, or false")
        for token in _tokens_of(name, model):
            found[token] = -math.inf if value is False else float(value)
    return tuple(sorted(found.items()))


def _tokens_of(name: Any, model: Model) -> list[int]:
    if isinstance(name, float | bool):
        raise _bad_bias(f"{name!r} is no token")
    if isinstance(name, str) and not (name.isascii() and name.isdigit()):
        if len(name) > _LONGEST_NAME:
            raise _bad_bias(f"{name[:40]!r}... has {len(name)} characters; at most {_LONGEST_NAME} are read")
        return [int(token) for token in model.tokenize(name, special=True, add_bos=False)]
    token = int(name) if len(str(name)) < 12 else -1
    if not 0 <= token < model.n_vocab:
        raise _bad_bias(f"there is no token {str(name)[:40]}; ids are 0 to {model.n_vocab - 1}")
    return [token]


def _bad_bias(what: str) -> ApiError:
    return invalid(f"logit_bias: {what}.", "logit_bias", "invalid_value")
