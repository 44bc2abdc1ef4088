"""`localspec connect`: a coding agent's command, set up for a running `localspec serve`; `--run` starts it.

Nothing is written into the client's own configuration, and the key goes into its environment alone.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import subprocess
import sys
from shlex import quote
from typing import TYPE_CHECKING, Any

from localspec.cli.clients import CLIENTS, KEY_VARIABLE, NO_KEY, Server, Setup, without_keys
from localspec.cli.output import print_plain
from localspec.errors import LocalspecError, UsageError
from localspec.remote.server import base_of, way_to

if TYPE_CHECKING:
    import httpx2

ENOUGH_CONTEXT = 32_768
"""Tokens below which coding agents soon run out: their system messages and tools alone take some 10,000."""
_SECONDS, _LOAD_SECONDS = 5.0, 120.0
"""How long a server may take to list its models, and to load one."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "client",
        choices=[*CLIENTS],
        metavar="CLIENT",
        help=f"one of {', '.join(CLIENTS)}; what stands after -- goes to it",
    )
    parser.add_argument("--run", action="store_true", help="start the client instead of printing its command")
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="where the server is; default: http://127.0.0.1:8080"
    )
    parser.add_argument("--model", metavar="NAME", help="which of its models; default: the first")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help=f"file with the server's key; or the variable {KEY_VARIABLE}"
    )


def run(options: argparse.Namespace) -> int:
    from localspec.cli.commands.serve import api_keys

    keys = api_keys(options.api_key_file)
    server = _ask(options.url, options.model, keys[0] if keys else "")
    if server.context is None:
        print("localspec: warning: the server does not say how long its context is.", file=sys.stderr)
    elif server.context < ENOUGH_CONTEXT:
        print(
            f"localspec: warning: the server's context holds {server.context:,} tokens, and coding agents need "
            f"{ENOUGH_CONTEXT:,} or more. Start it with --context {ENOUGH_CONTEXT}.",
            file=sys.stderr,
        )
    setup = CLIENTS[options.client](server)
    if options.run:
        key = keys[0] if keys else ""
        told = setup.first_prompt and warning(server.url, server.model, key, options.client, setup.first_prompt)
        if told:
            print(told, file=sys.stderr)
        return _start(setup, options.after_dashes, keys[0] if keys else NO_KEY)
    print_plain(_command(setup, options.after_dashes, bool(keys)))  # a server may call its model anything
    if options.api_key_file:
        print(f"localspec: {KEY_VARIABLE} must hold the key of {options.api_key_file} there.", file=sys.stderr)
    return 0


def _ask(text: str, wanted: str | None, key: str) -> Server:
    """The server at an address, with one of its models.

    Raises:
        UsageError: no such address or model.
        LocalspecError: nothing answers there, or not as an OpenAI-style endpoint.
    """
    import httpx2 as httpx

    url = base_of(text, "--url", "http://127.0.0.1:8080").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, headers=headers, timeout=_SECONDS, **way_to(url)) as client:
        models = _get(client, "/v1/models").get("data")
        cards = [one for one in models if isinstance(one, dict) and isinstance(one.get("id"), str)] if models else []
        if not cards:
            raise LocalspecError(f"{url} lists no models.")
        names = {name: one for one in reversed(cards) for name in (one["id"], *(one.get("aliases") or ()))}
        if wanted is not None and wanted not in names:
            raise UsageError(f"{url} has no model {wanted!r}.", f"It has: {', '.join(one['id'] for one in cards)}.")
        card = cards[0] if wanted is None else names[wanted]
        return Server(url, wanted or card["id"], _context(client, card))


def _get(client: httpx2.Client, path: str, **options: Any) -> dict[str, Any]:
    import httpx2 as httpx

    try:
        response = client.get(path, **options)
        found = response.json() if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError) as error:
        raise LocalspecError(
            f"No server answers at {client.base_url}: {error or type(error).__name__}.", "Start one: localspec serve"
        ) from None
    if response.status_code in (401, 403):
        raise UsageError(f"{client.base_url} asks for an API key.", f"Set {KEY_VARIABLE}, or give --api-key-file FILE.")
    if not isinstance(found, dict):
        raise LocalspecError(f"{client.base_url} is no OpenAI-style endpoint: {path} says {response.status_code}.")
    return found


def _context(client: httpx2.Client, card: dict[str, Any]) -> int | None:
    """Tokens of a model's context: as listed by llama-server and localspec, or by vLLM, else as /props has it once the
    model is loaded."""
    meta = card.get("meta")
    found = meta.get("n_ctx") if isinstance(meta, dict) else card.get("max_model_len")
    if not isinstance(found, int):
        import httpx2 as httpx

        try:
            if card.get("status") == "unloaded":
                client.post("/v1/models/load", json={"model": card["id"]}, timeout=_LOAD_SECONDS)
            props = _get(client, "/props", params={"model": card["id"]}, timeout=_LOAD_SECONDS)
        except (LocalspecError, httpx.HTTPError):
            return None
        settings = props.get("default_generation_settings")
        found = settings.get("n_ctx") if isinstance(settings, dict) else None
    return found if isinstance(found, int) and found > 0 else None


def _command(setup: Setup, more: list[str], has_key: bool) -> str:
    """A line for a shell, with the key's variable in place of the key."""
    dropped = sorted(set(os.environ) - set(without_keys(os.environ)) - {KEY_VARIABLE, setup.key_variable})
    unset = [word for name in dropped if name not in setup.environment for word in ("-u", name)]
    named = [f"{name}={quote(value)}" for name, value in setup.environment.items()]
    if not has_key:
        named.append(f"{setup.key_variable}={NO_KEY}")
    elif setup.key_variable != KEY_VARIABLE:
        named.append(f'{setup.key_variable}="${KEY_VARIABLE}"')
    return " ".join(["env", *unset, *named, setup.program, *map(quote, (*setup.arguments, *more))])


def _start(setup: Setup, more: list[str], key: str) -> int:
    """Runs the client until it ends; its exit code."""
    path = shutil.which(setup.program)
    if path is None:
        raise LocalspecError(f"{setup.program} is not installed, or not on PATH.")
    environment = {**without_keys(os.environ), **setup.environment, setup.key_variable: key}
    sys.stdout.flush()
    with subprocess.Popen([path, *setup.arguments, *more], env=environment) as child:
        while True:
            try:
                code = child.wait()
            except KeyboardInterrupt:  # the terminal tells the client, too, which decides what it means
                continue
            return code if code >= 0 else 128 - code


# How long a server will read a coding agent's first prompt, told before the agent starts.

_WORDS = 300
"""Of the text that is read to measure the speed; a word is a token or more."""
_WARM_UP_WORDS = 30
"""Of the text before it: a pass or two."""
_READ_SECONDS = 120.0
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
        with httpx.Client(headers=headers, timeout=_READ_SECONDS, **way_to(url)) as asking:
            for words in (_WARM_UP_WORDS, _WORDS):
                prompt = " ".join(secrets.token_hex(2) for _ in range(words))
                body = {"model": model, "prompt": prompt, "max_tokens": 1}
                answer: Any = asking.post(f"{url}/v1/completions", json=body).json()
                rate = answer["timings"]["prompt_per_second"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
