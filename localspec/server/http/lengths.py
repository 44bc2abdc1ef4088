"""What does not fit the context is refused before the response begins; where a look at the text tells, before it is
made into tokens, which would keep one of the threads that all routes share busy for minutes."""

from __future__ import annotations

from localspec.runtime.engine import Engine
from localspec.server.http.errors import context_exceeded
from localspec.types import Tokens


def check_text(text: str, engine: Engine, param: str, *, special: bool = True, room: int = 0) -> None:
    """Refuses a text that has too many tokens for certain.

    Args:
        text: of which tokens are to be made.
        engine: whose context it is for.
        param: the field that it came in.
        special: special tokens in it are read as such.
        room: tokens that are allowed even if the context holds fewer.

    Raises:
        ApiError: 400.
    """
    n_ctx = engine.loaded.context.n_ctx
    most = max(n_ctx, room)
    fewest = engine.loaded.model.fewest_tokens(text, most, special=special)
    if fewest > most:
        raise context_exceeded(fewest, n_ctx, param, at_least=True)


def check_length(prompt: Tokens, engine: Engine, param: str) -> None:
    """Refuses a prompt without room for an answer.

    Raises:
        ApiError: 400.
    """
    n_ctx = engine.loaded.context.n_ctx
    if len(prompt) >= n_ctx:
        raise context_exceeded(len(prompt), n_ctx, param)
