"""From a request's fields to what the engine is asked. Templates and grammars are slow: a worker thread makes them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from anyio import to_thread

from localspec.chat.reply.dialect import ReplyTurn
from localspec.chat.turn import Message
from localspec.engine.interfaces import fresh_seed
from localspec.errors import UsageError
from localspec.grammar.grammar import Grammar
from localspec.llama.model import Model
from localspec.options import LIMITS, Options
from localspec.runtime.pool import Lease
from localspec.server.chat.fields import ChatFields, CompletionFields, GenerationFields, LogitBias, Prompts
from localspec.server.chat.service import Service
from localspec.server.http.output import ApiError, context_exceeded, invalid
from localspec.types import NO_TOKENS, Prompt, SamplingParams, Tokens

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


_LONGEST_NAME = 1024  # characters of a text whose tokens are biased


def options_of(fields: GenerationFields, engine: Engine, max_tokens: int | None = None, **more: Any) -> Options:
    """What all choices of a request have in common, the seed chosen. `max_tokens`: overrides the field of that name;
    `more`: options that its fields do not tell. ApiError: 400, with the field at fault."""
    model, row = engine.loaded.model, LIMITS["max_tokens"]
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if "" in stop:
        raise invalid("stop holds an empty string.", "stop", "invalid_value")
    limit: int | None = row.meant(fields.max_tokens if max_tokens is None else max_tokens)
    try:
        row.check(limit)
    except UsageError as error:  # only completions that echo take 0
        raise invalid(error.message, row.name, "invalid_value") from None
    seed = LIMITS["seed"].meant(fields.seed)
    stop_tokens = known_tokens(fields.stop_token_ids or (), model, "stop_token_ids", "stop_token_ids holds")
    if (drafts := fields.speculative) is not None:
        more |= {"drafter": drafts.drafter, "max_draft_tokens": drafts.max_draft_tokens, "forced": drafts.force}
        if not drafts.enabled:
            more |= {"drafter": "none", "max_draft_tokens": 0, "forced": False}
    return Options(
        sampling=SamplingParams(**fields.sampling(), logit_bias=logit_bias(fields.logit_bias, model)),
        seed=fresh_seed() if seed is None else seed,
        max_tokens=limit,
        min_tokens=fields.min_tokens or 0,
        stop=tuple(stop),
        stop_tokens=frozenset(stop_tokens.tolist()),
        ignore_end=bool(fields.ignore_eos),
        prediction=_prediction(fields, engine),
        **more,
    )


def _prediction(fields: GenerationFields, engine: Engine) -> Tokens | None:
    """Tokens that are expected in the answer; parts of a text become lines."""
    if fields.prediction is None:
        return None
    content, model, n_ctx = fields.prediction.content, engine.loaded.model, engine.loaded.context.n_ctx
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    if model.fewest_tokens(text, n_ctx, special=False) <= n_ctx:
        tokens = model.tokenize(text, special=False, add_bos=False)
        if len(tokens) <= n_ctx:
            return tokens
    raise invalid(f"prediction does not fit: the context holds {n_ctx} tokens.", "prediction", "invalid_value")


def logit_bias(given: LogitBias | None, model: Model) -> tuple[tuple[int, float], ...]:
    """(token, bias) pairs from an object or a list of pairs; a text stands for each of its tokens, false for -inf."""
    pairs: list[Any] = list(given.items()) if isinstance(given, dict) else list(given or ())
    found: dict[int, float] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise _bad_bias(f"{pair!r} is no pair of a token and a number")
        name, value = pair
        if value is True or isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
            raise _bad_bias(f"the bias of {name!r} is {value!r}; it must be a number, or false")
        if isinstance(name, float | bool):
            raise _bad_bias(f"{name!r} is no token")
        if isinstance(name, str) and not (name.isascii() and name.isdigit()):
            if len(name) > _LONGEST_NAME:
                raise _bad_bias(f"{name[:40]!r}... has {len(name)} characters; at most {_LONGEST_NAME} are read")
            tokens = model.tokenize(name, special=True, add_bos=False).tolist()
        else:
            tokens = [int(name) if len(str(name)) < 12 else -1]
            if not 0 <= tokens[0] < model.n_vocab:
                raise _bad_bias(f"there is no token {str(name)[:40]}; ids are 0 to {model.n_vocab - 1}")
        found |= dict.fromkeys(tokens, -math.inf if value is False else float(value))
    return tuple(sorted(found.items()))


def _bad_bias(what: str) -> ApiError:
    return invalid(f"logit_bias: {what}.", "logit_bias", "invalid_value")


_Result = TypeVar("_Result")
TOOLS = "tools"  # the field of a grammar that no other field asks for: that of calls
_SAID = "localspec-answer"
"""Stands for the last answer of a conversation whose tokens are given: what a template writes after it comes next."""


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """One prompt and how it is to be answered."""

    prompt: Tokens
    options: Options  # but for the grammar, until it is compiled
    grammar: Grammar | None = None  # what the answer must look like, as it is written
    field: str = TOOLS  # which field asks for it


async def prepared(lease: Lease, work: Callable[[Engine], _Result]) -> _Result:
    """Runs `work` on a worker thread; the lease is released if it fails."""
    try:
        return await to_thread.run_sync(work, lease.engine)
    except BaseException:
        lease.release()
        raise


async def with_engine(service: Service, name: str | None, work: Callable[[Engine], _Result]) -> _Result:
    """Runs `work` on a worker thread, with the engine of a model."""
    lease = await service.lease(name)
    try:
        return await to_thread.run_sync(work, lease.engine)
    finally:
        lease.release()


async def prompt_length(service: Service, fields: ChatFields) -> int:
    """Tokens that the model would be shown, of which nothing is answered; raises as `chat_turn`."""
    return await with_engine(service, fields.model, lambda engine: len(chat_turn(fields, engine)[1]))


def chat_turn(fields: ChatFields, engine: Engine, said: Tokens = NO_TOKENS) -> tuple[ReplyTurn, Tokens]:
    """The turn a chat request asks for, and its prompt. `said`: tokens of a conversation, up to its last answer, that
    the messages go on from. ApiError: 400, messages that go with no template or do not fit."""
    if not engine.template.exists:
        raise invalid("This model has no chat template; use /v1/completions.", "messages", "unsupported_model")
    if engine.template.fault:
        raise invalid(f"{engine.template.fault} Use /v1/completions.", "messages", "unsupported_model")
    messages, beginning = fields.conversation()
    if len(said):
        messages = [Message("user", "?"), Message("assistant", _SAID), *messages]
    parallel = fields.parallel_tool_calls is not False
    turn = engine.dialect.turn(messages, fields.functions(), fields.choice_of_tool(), parallel)
    variables = fields.variables() | turn.variables
    if fields.add_generation_prompt is False and not beginning:
        variables["add_generation_prompt"] = False
    shown = engine.template.prompt(turn.messages, beginning=turn.dialect.begun(beginning), **variables)
    at = shown.text.find(_SAID) + len(_SAID)
    if len(said) and at >= len(_SAID):  # else the template does not show the mark: all of it is new
        shown = Prompt(shown.text[at:], tuple(one - at for one in shown.breaks if one > at))
    check_text(shown.text, engine, "messages")
    if len(said):
        return turn, np.concatenate((said, engine.loaded.model.tokenize_prompt(shown, add_bos=False)))
    return turn, engine.prompt_tokens(shown)


def chat_asked(fields: ChatFields, engine: Engine, said: Tokens = NO_TOKENS) -> tuple[ReplyTurn, AskedPrompt]:
    """The same with how it is to be answered."""
    turn, prompt = chat_turn(fields, engine, said)
    check_length(prompt, engine, "messages")
    if fields.top_logprobs and not fields.logprobs:
        raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs", "invalid_value")
    top = (fields.top_logprobs or 0) if fields.logprobs else None
    options = options_of(fields, engine, fields.limit(), preserved=turn.preserved, top_log_probs=top)
    wanted, field = fields.answer_grammar() or (None, TOOLS)
    headed = turn.dialect.has_channels and not turn.dialect.begins_answer(prompt)
    if wanted is not None and wanted.kind != "schema" and headed:
        prompt = turn.resume(prompt, "", "", thought_out=True)[0]  # a grammar knows of no header
    grammar = _joined(turn, prompt, wanted, field)
    _check_size(grammar, field)
    return turn, AskedPrompt(prompt, options, grammar, field)


def _joined(turn: ReplyTurn, prompt: Tokens, wanted: Grammar | None, field: str) -> Grammar | None:
    """The grammar of the answer, joined with that of tool calls and thoughts."""
    if wanted is not None and wanted.kind != "schema":
        if turn.tools:
            raise invalid(f"{field} and tools exclude each other.", field, "invalid_value")
        return wanted
    if wanted is not None and not turn.tools and turn.dialect.begins_answer(prompt):
        return wanted
    return turn.grammar(prompt, None if wanted is None else json.loads(wanted.source))


def text_asked(fields: CompletionFields, service: Service, engine: Engine) -> list[AskedPrompt]:
    """What each prompt of a request asks the engine."""
    if fields.best_of is not None and fields.best_of != fields.choices:
        raise invalid("best_of must equal n: nothing is thrown away here.", "best_of", "unsupported_value")
    if fields.echo and fields.suffix is not None:
        raise invalid("echo with suffix is not supported.", "echo", "unsupported_value")
    prompts = each_prompt(fields.prompt)
    service.check_count(engine, len(prompts) * fields.choices)
    scores = {"top_log_probs": fields.logprobs, "drawn_log_probs": fields.drawn_log_probs}
    options = options_of(fields, engine, -1 if fields.only_echo else None, **scores)
    wanted, field = fields.answer_grammar() or (None, TOOLS)
    asked = [AskedPrompt(_prompt_tokens(one, fields.suffix, engine), options, wanted, field) for one in prompts]
    for one in asked:
        check_length(one.prompt, engine, "prompt")
    _check_size(wanted, field)
    return asked


def each_prompt(prompt: Prompts) -> list[str | list[int]]:
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return cast("list[str | list[int]]", prompt)


def _prompt_tokens(prompt: str | list[int], suffix: str | None, engine: Engine) -> Tokens:
    """With a suffix: prefix, suffix and the mark of the middle, as fill-in models are trained: prefix first."""
    model = engine.loaded.model
    if suffix is not None:
        if model.fill_in is None:
            raise invalid("suffix: this model has no tokens to fill in a gap with.", "suffix", "unsupported_model")
        if not isinstance(prompt, str):
            raise invalid("prompt must be text where there is a suffix.", "prompt", "invalid_value")
        check_text(prompt, engine, "prompt", special=False)
        check_text(suffix, engine, "suffix", special=False)
        before, after, middle = model.fill_in
        plain = [model.tokenize(text, special=False, add_bos=False).tolist() for text in (prompt, suffix)]
        start = [model.bos] if model.add_bos and model.bos is not None else []
        return np.array([*start, before, *plain[0], after, *plain[1], middle], dtype=np.int32)
    if not isinstance(prompt, str):
        return known_tokens(prompt, model, "prompt")
    check_text(prompt, engine, "prompt")
    tokens = engine.tokenize(prompt)
    if not len(tokens):
        raise invalid("prompt is empty, and this model does not begin texts by itself.", "prompt", "invalid_value")
    return tokens


def known_tokens(given: Sequence[int], model: Model, param: str, begin: str = "") -> Tokens:
    """Tokens that a field gives by their ids; ApiError 400, with a sentence that begins so: one is not in the
    vocabulary."""
    wrong = next((token for token in given if not 0 <= token < model.n_vocab), None)
    if wrong is not None:
        what = f"{begin or f'{param} holds the token'} {str(wrong)[:24]}; ids are 0 to {model.n_vocab - 1}."
        raise invalid(what, param, "invalid_value")
    return np.array(given, dtype=np.int32)


# What does not fit the context is refused before the response begins; where a look at the text tells, before it is
# made into tokens, which would keep one of the threads that all routes share busy for minutes.


def check_text(text: str, engine: Engine, param: str, *, special: bool = True, room: int = 0) -> None:
    """Refuses a text, of the field `param`, that has too many tokens for certain. `special`: special tokens in it are
    read as such; `room`: tokens that are allowed even if the context holds fewer."""
    n_ctx = engine.loaded.context.n_ctx
    most = max(n_ctx, room)
    fewest = engine.loaded.model.fewest_tokens(text, most, special=special)
    if fewest > most:
        raise context_exceeded(fewest, n_ctx, param, at_least=True)


def check_length(prompt: Tokens, engine: Engine, param: str) -> None:
    """Refuses a prompt without room for an answer."""
    n_ctx = engine.loaded.context.n_ctx
    if len(prompt) >= n_ctx:
        raise context_exceeded(len(prompt), n_ctx, param)


LONGEST = 512 * 1024  # characters of a grammar, a schema, or the schemas of all tools together
DEEPEST = 64  # brackets within brackets in a GBNF grammar; its reader recurses
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')


def _check_size(grammar: Grammar | None, field: str) -> None:
    if grammar is None:
        return
    size, what = len(grammar.source), ""
    if size > LONGEST:
        of = f" (the {grammar.name})" if grammar.name else ""
        what = f"{field}{of} has {size} characters as the form of an answer; at most {LONGEST} are read."
    elif grammar.kind == "gbnf":
        depth = deepest = 0  # brackets that are open at once, those of literals and comments left out
        for bracket in re.findall(r"[()]", _QUOTED.sub("", grammar.source)):
            depth += 1 if bracket == "(" else -1
            deepest = max(deepest, depth)
        if deepest > DEEPEST:
            what = f"{field} has more than {DEEPEST} brackets within brackets."
    if what:
        raise invalid(what, field, "invalid_value")
