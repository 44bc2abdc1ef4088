"""From a request's fields to what the engine is asked. Slow parts (templates, grammars) run on a worker thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread

from localspec.chat.reply.dialect import Dialect, Turn
from localspec.runtime.engine import Engine
from localspec.runtime.generation import Generation
from localspec.runtime.pool import Lease
from localspec.server.chat.chat_fields import ChatFields, tool_of
from localspec.server.chat.form import Form
from localspec.server.chat.options import engine_options
from localspec.server.http.errors import invalid
from localspec.server.http.lengths import check_length, check_text
from localspec.types import Tokens

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt and how it is to be answered."""

    prompt: Tokens
    options: dict[str, Any]
    """Of `Engine.generate`, but for the form."""
    form: Form | None = None
    """What the answer must look like."""

    def starts(self, engine: Engine, choices: int) -> list[Callable[[], Generation]]:
        """What submits each choice; they share the seed and differ in the stream of random numbers."""
        return [
            partial(engine.generate, self.prompt, stream=stream, **self.options)  # no tokenizing: it is fast
            for stream in range(choices)
        ]


async def prepared(lease: Lease, work: Callable[[Engine], _Result]) -> _Result:
    """Runs `work` on a worker thread; the lease is released if it fails."""
    try:
        return await to_thread.run_sync(work, lease.engine)
    except BaseException:
        lease.release()
        raise


def chat_turn(fields: ChatFields, engine: Engine) -> tuple[Turn, Tokens]:
    """The turn a chat request asks for, and its prompt.

    Raises:
        ApiError: 400, messages that go with no template or do not fit.
        UsageError: messages or tools that the template or the engine refuses.
    """
    if not engine.template.exists:
        raise invalid("This model has no chat template; use /v1/completions.", "messages", "unsupported_model")
    messages, beginning = fields.conversation()
    tools = [tool_of(tool) for tool in fields.tools or ()]
    parallel = fields.parallel_tool_calls is not False
    turn = Dialect(engine.loaded.model).turn(messages, tools, fields.choice_of_tool(), parallel)
    variables = fields.variables() | turn.variables
    shown = engine.template.prompt(turn.messages, beginning=turn.begun(beginning), **variables)
    check_text(shown.text, engine, "messages")
    return turn, engine.prompt_tokens(shown)


def chat_asked(fields: ChatFields, engine: Engine) -> tuple[Turn, Asked]:
    """The same with the options of `Engine.generate`."""
    turn, prompt = chat_turn(fields, engine)
    check_length(prompt, engine, "messages")
    options = engine_options(fields, engine, fields.limit())
    options["preserved"] = turn.preserved
    if fields.logprobs:
        options["top_log_probs"] = fields.top_logprobs or 0
    elif fields.top_logprobs:
        raise invalid("top_logprobs needs logprobs to be true.", "top_logprobs", "invalid_value")
    form = fields.form()
    headed = turn.dialect.has_channels and not turn.dialect.begins_answer(prompt)
    if form is not None and form.schema is None and headed:
        prompt = turn.resume(prompt, "", "", thought_out=True)[0]  # a grammar knows of no header
    return turn, Asked(prompt, options, _joined(turn, prompt, form))


def _joined(turn: Turn, prompt: Tokens, form: Form | None) -> Form | None:
    """The form that the answer must have, joined with the form of tool calls and thoughts."""
    if form is not None and form.schema is None:
        if turn.tools:
            raise invalid(f"{form.field} and tools exclude each other.", form.field, "invalid_value")
        return form
    if form is not None and not turn.tools and turn.dialect.begins_answer(prompt):
        return form
    lark = turn.lark(prompt, form.schema if form is not None else None)
    if lark is None and (lazy := turn.lazily(prompt)) is not None:
        return Form("lark", lazy[0], "tools", lazy[1])
    return None if lark is None else Form("lark", lark, form.field if form is not None else "tools")
