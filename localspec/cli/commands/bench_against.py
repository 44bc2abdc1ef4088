"""`localspec bench run --against URL`: other programs' servers beside us, at the same prompts, taking turns."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.bench.contest.run import Contender
    from localspec.runtime.engine import Engine


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("another program beside us")
    group.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="[NAME=]URL",
        help="an OpenAI-style endpoint that serves the same model; repeatable",
    )
    group.add_argument("--against-model", default="", metavar="NAME", help="as it calls the model; default: its first")
    group.add_argument("--against-key", metavar="VARIABLE", help="environment variable that holds its key")
    group.add_argument(
        "--against-timeout", type=float, default=300.0, metavar="SECONDS", help="of silence, reading a prompt included"
    )


def against(options: argparse.Namespace, engine: Engine) -> list[Contender]:
    """The endpoints, each asked for one token to see that it answers; the caller closes them.

    Raises:
        UsageError: no URL, a name twice, or an empty variable.
        LocalspecError: one does not answer.
    """
    from localspec.bench.contest.served import Served
    from localspec.bench.results.cells import FIXED
    from localspec.remote.server import Server

    if not options.against_timeout > 0:
        raise UsageError(f"--against-timeout is {options.against_timeout:g}; it must be above 0.")
    model, found, names = engine.loaded.model, list[Served](), set[str]()
    try:
        for text in options.against:
            name, url = _split(text)
            server = Server(
                url,
                _key(options.against_key),
                name=name,
                silence=options.against_timeout,
                option="--against",
                key_hint="Name the variable that holds its key: --against-key.",
                hint="Is it running? Finished runs are kept; --against-timeout allows more silence.",
            )
            bos = model.text_of(model.bos) if model.add_bos else ""
            endpoint = Served(server, name=name, model=options.against_model, begin_of_text=bos)
            found.append(endpoint)
            if endpoint.name in names:
                raise UsageError(f"--against names {endpoint.name!r} twice.", "Call one of them NAME=URL.")
            if FIXED.fullmatch(endpoint.name):
                raise UsageError(f"--against calls a server {endpoint.name!r}, as a drafter of fixed length is called.")
            names.add(endpoint.name)
    except BaseException:
        for endpoint in found:
            endpoint.close()
        raise
    return list(found)


def _split(text: str) -> tuple[str, str]:
    """Name and URL; a name has no slash, which every URL has."""
    name, equals, url = text.partition("=")
    return (name.strip(), url) if equals and "/" not in name else ("", text)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise UsageError(f"--against-key names {variable}, which is not set.", f"Try: export {variable}=...")
    return key
