"""From the form that an answer must have to a compiled grammar, off the event loop, and with an end."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from anyio import to_thread

from localspec.grammar.lazy import Lazy
from localspec.runtime.pool import Lease
from localspec.server.chat.form import Form
from localspec.server.chat.prepare import Asked
from localspec.server.chat.service import Service
from localspec.server.http.errors import invalid

LONGEST = 512 * 1024
"""Characters of a grammar, a schema, or the schemas of all tools together."""
DEEPEST = 64
"""Brackets within brackets in a GBNF grammar; its reader recurses."""
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*')


async def bind(service: Service, lease: Lease, asked: Sequence[Asked]) -> None:
    """Compiles the form of a request's prompts, which all have the same; the lease is released if that fails.

    Raises:
        ApiError: 400, the grammar is too large; 503, too many wait to be tried.
        UsageError: a mistake in the grammar, or it takes too long.
    """
    form = asked[0].form
    if form is None:
        return
    try:
        text = await to_thread.run_sync(_text, form)
        constraint = await service.grammar(lease.engine, form.kind, text)
    except BaseException:
        lease.release()
        raise
    if form.trigger is not None:
        constraint = Lazy(constraint, form.trigger, lease.engine.loaded.model.n_vocab)
    for one in asked:
        one.options["grammar"] = constraint


def _text(form: Form) -> str:
    value: Any = form.value
    text = json.dumps(value) if form.kind == "schema" else str(value)
    if len(text) > LONGEST:
        what = f"{form.field} has {len(text)} characters of grammar; at most {LONGEST} are read."
        raise invalid(what, form.field, "invalid_value")
    if form.kind == "gbnf" and _depth(text) > DEEPEST:
        what = f"{form.field} has more than {DEEPEST} brackets within brackets."
        raise invalid(what, form.field, "invalid_value")
    return text


def _depth(text: str) -> int:
    """The most brackets that are open at once, those of literals and comments left out."""
    depth = deepest = 0
    for bracket in re.findall(r"[()]", _QUOTED.sub("", text)):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    return deepest
