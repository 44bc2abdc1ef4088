"""How long a server will read a coding agent's first prompt, told before the agent starts."""

from __future__ import annotations

import secrets
from typing import Any

_WORDS = 300
"""Of the text that is read to measure the speed; a word is a token or more."""
_WARM_UP_WORDS = 30
"""Of the text before it: a pass or two."""
_SECONDS = 120.0
"""How long each may take, loading the model included."""
_WORTH_SAYING = 10.0
"""Seconds of waiting below which nothing is said."""


def warning(url: str, model: str, key: str, client: str, tokens: int) -> str:
    """A sentence for a client whose first prompt takes long here; "" = it does not, or the server cannot say.

    Args:
        url: of the server, without /v1.
        model: that will answer.
        key: of the server; "" = none.
        client: its name.
        tokens: of its first prompt.
    """
    rate = _tokens_per_second(url, model, key)
    if rate is None or tokens / rate < _WORTH_SAYING:
        return ""
    seconds = tokens / rate
    told = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return (
        f"localspec: the first prompt of {client} has some {round(tokens, -3):,} tokens; at {rate:.0f} tokens/s this "
        f"machine reads them in about {told}. Later prompts begin alike, and what is alike is read once."
    )


def _tokens_per_second(url: str, model: str, key: str) -> float | None:
    """The speed at which a text is read that no cache holds; None = the server does not tell.

    A first text is not measured: it waits until the model is loaded and its file is read from disk.
    """
    import httpx2 as httpx

    from localspec.remote.server import way_to

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    rate: Any = None
    try:
        with httpx.Client(headers=headers, timeout=_SECONDS, **way_to(url)) as asking:
            for words in (_WARM_UP_WORDS, _WORDS):
                prompt = " ".join(secrets.token_hex(2) for _ in range(words))
                body = {"model": model, "prompt": prompt, "max_tokens": 1}
                answer: Any = asking.post(f"{url}/v1/completions", json=body).json()
                rate = answer["timings"]["prompt_per_second"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
