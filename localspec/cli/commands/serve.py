"""`localspec serve`: the local OpenAI-style endpoint, and units with which systemd or launchd start it."""

from __future__ import annotations

import argparse
import json
import os
import plistlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.cli.output import load_progress
from localspec.cli.parser import MOST_PORT, MOST_SECONDS, add_engine_settings, add_whole, real, whole
from localspec.cli.shared import add_model_options, add_process, engine_settings, fitting, take_target
from localspec.errors import UsageError
from localspec.paths import typed
from localspec.processes import announce
from localspec.server.http.settings import MIB, ServerSettings

if TYPE_CHECKING:
    from localspec.runtime.pool import Pool
    from localspec.server.front import Processes

KEY_VARIABLE = "LOCALSPEC_API_KEY"  # variable that holds the key of our endpoint, for `serve` and for those who ask it
KINDS = ("systemd", "launchd")  # units that start the endpoint with the session of the user
_LABEL = "localspec.serve"
_LOG = "Library/Logs/localspec.log"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="installed pair or model; default: the chosen one")
    text = "address to listen on, or unix:PATH; any but a loopback one needs a key"
    parser.add_argument("--host", default="127.0.0.1", help=text)
    port = whole(0, MOST_PORT)
    parser.add_argument("--port", type=port, default=8080, metavar="N", help="default: 8080; 0 = any free one")
    text = "requests at once per model; default: 4, or 1 where several would draft nothing (recurrent layers, trees)"
    add_engine_settings(parser, "slots", text=text)
    parser.add_argument("--ssl-cert", type=typed, metavar="FILE", help="certificate (PEM): HTTPS in place of HTTP")
    parser.add_argument("--ssl-key", type=typed, metavar="FILE", help="its key, if that is not in the same file")
    parser.add_argument("--print-unit", choices=KINDS, help="print a unit that starts this with the session, and exit")
    parser.add_argument("--json", action="store_true", help="log lines as JSON")
    parser.add_argument("--quiet", action="store_true", help="no line for each request")
    group = parser.add_argument_group("who may come in")
    text = f"file of keys, one a line; or one in the variable {KEY_VARIABLE}"
    group.add_argument("--api-key-file", metavar="FILE", help=text)
    several: dict[str, Any] = {"action": "append", "default": []}
    text = "accept this Host header, too; * = any"
    group.add_argument("--allow-host", dest="allowed_hosts", type=str.lower, **several, metavar="NAME", help=text)
    text = "let in pages of this origin; localhost; * = all"
    group.add_argument("--cors", dest="cors_origins", **several, metavar="ORIGIN", help=text)
    group.add_argument("--any-model", action="store_true", help="a name of no model means the default one; else 404")
    group.add_argument("--allow-pull", action="store_true", help="let clients install models of the hub")
    group = parser.add_argument_group("limits")
    text = "refuse requests with unknown fields, which are else ignored"
    group.add_argument("--strict-fields", action="store_true", help=text)
    add_whole(group, "--max-queue", "answers that may wait", 64, 0)
    group.add_argument("--max-body", type=whole(1), default=16, metavar="MIB", help="largest request; default: 16 MiB")
    seconds, text = real(0, MOST_SECONDS), "seconds for running answers at the end; default: 10"
    group.add_argument("--drain", dest="drain_seconds", type=seconds, default=10.0, metavar="S", help=text)
    text = "unload a model that was not used for S seconds"
    group.add_argument("--idle-unload", type=seconds, metavar="S", help=text)
    text = "disk for long prompts that come again; 0: none are kept; default: 4, or an eighth of the free disk"
    name = "--prompt-cache-size"
    group.add_argument(name, type=real(0, 1e6), dest="prompt_cache_gb", metavar="GB", help=text)
    add_process(group)
    parser.add_argument(
        "--alias", dest="aliases", **several, metavar="NAME", help="one more name for the default model"
    )
    add_model_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.runtime.kept.caches import default_budget
    from localspec.runtime.pool import Pool
    from localspec.server.front import Processes

    take_target(options, options.name, "NAME")
    names = {field.name for field in fields(ServerSettings)} & set(vars(options))
    given = {name: getattr(options, name) for name in names}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    given |= {"api_keys": api_keys(options.api_key_file), "max_body_bytes": options.max_body * MIB}
    settings = ServerSettings(**given)
    settings.check_certificate()
    if options.print_unit is not None:
        print(_unit(options), end="")
        return 0
    engine = fitting(options, {"prompt_cache_gb": default_budget() / 1e9} | engine_settings(options))
    target, draft = engine.pop("target", None), engine.pop("draft", None)
    heads = engine.pop("heads", ())
    processes = Processes(settings) if options.process else None
    make = None if processes is None else processes.make
    pool = Pool(target, draft, heads=heads, settings=engine, idle_unload=options.idle_unload, make=make)
    slots = pool.slots()  # reads the file's header, which may be damaged
    try:
        if processes is not None:
            processes.begin(pool)  # while the rest is imported, which takes a second
        _serve(pool, slots, settings, options, processes)
    finally:
        if processes is not None:
            processes.give_up()
    return 0


def _serve(
    pool: Pool, slots: int, settings: ServerSettings, options: argparse.Namespace, processes: Processes | None
) -> None:
    from localspec.server.http import listen, meter

    listening = listen.bind(settings.host, settings.port)
    with meter.written_to(sys.stderr, as_json=options.json, quiet=options.quiet):
        url = listen.url_of(listening, "http" if settings.ssl_cert is None else "https")
        announce("serve", name=pool.default, at=listen.place_of(listening))
        if options.json:
            data = {"event": "listening", "model": pool.default, "url": url, "slots": slots}
            print(json.dumps(data | {"api_key": bool(settings.api_keys)}), flush=True)
        else:
            key = "needs an API key" if settings.api_keys else "no API key"
            count = f"{slots} slot{'s' if slots > 1 else ''}"
            print(f"localspec serves {pool.default} at {url} ({count}, {key}). Ctrl-C ends it.", flush=True)
            if options.slots is None and slots == 1:
                print(
                    "One request at a time: several slots would draft nothing here. --slots N serves more.", flush=True
                )
        with load_progress() as progress:
            listen.serve(pool, settings, listening, progress, processes)


def _unit(options: argparse.Namespace) -> str:
    """This command as a service, with the variables that say where localspec keeps things; never a key, as others can
    read a unit.
    """
    if os.environ.get(KEY_VARIABLE):
        raise UsageError(f"A unit holds no key, and {KEY_VARIABLE} is set.", "Unset it, and give --api-key-file.")
    words, kind = list(options.given), options.print_unit
    for place, word in enumerate(words):
        if word.startswith("--print"):  # KIND stands in the same word, after =, or is the next
            del words[place : place + (1 if "=" in word else 2)]
            break
    known = ("LOCALSPEC_DATA", "LOCALSPEC_CONFIG", "LOCALSPEC_CACHE", "LOCALSPEC_MODEL")
    environment = {name: os.environ[name] for name in known if os.environ.get(name)}
    return unit(kind, words, environment, Path.cwd())


def api_keys(path: str | None) -> tuple[str, ...]:
    """Keys of a file, one a line, and of the environment. Never taken from the command line: others can read that."""
    keys = []
    if path is not None:
        keys = [line.strip() for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")]
        if not keys:
            raise UsageError(f"{path} holds no API key.", "Put one on a line.")
    given = os.environ.get(KEY_VARIABLE, "").strip()
    return (*keys, given) if given else tuple(keys)


def _quoted(text: str, doubled: str = "") -> str:
    """One word of a unit; characters that mean something there are doubled or escaped."""
    for one in ("%", *doubled):
        text = text.replace(one, 2 * one)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def unit(kind: str, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> str:
    """A unit, of one of `KINDS`, that starts localspec with these arguments in a folder; nothing in it is secret."""
    command = [sys.executable, "-m", "localspec", *arguments]
    if kind == "systemd":
        lines = [
            "# Save it as ~/.config/systemd/user/localspec.service, then: systemctl --user enable --now localspec",
            "[Unit]",
            "Description=localspec " + " ".join(map(shlex.quote, arguments)).replace("%", "%%").replace("\n", " "),
            "",
            "[Service]",
            "ExecStart=" + " ".join(_quoted(part, "$") for part in command),
            "WorkingDirectory=" + str(folder).replace("%", "%%"),
            *("Environment=" + _quoted(f"{name}={value}") for name, value in environment.items()),
            "Restart=on-failure",
            "RestartSec=5",
            "",
            "[Install]",
            "WantedBy=default.target",
        ]
        return "\n".join(lines) + "\n"
    log = str(paths.home() / _LOG)
    listed = {
        "Label": _LABEL,
        "ProgramArguments": command,
        "WorkingDirectory": str(folder),
        "EnvironmentVariables": dict(environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    head, line, rest = plistlib.dumps(listed, sort_keys=False).decode().partition("\n")
    where = f"~/Library/LaunchAgents/{_LABEL}.plist"
    return f"{head}{line}<!-- Save it as {where}, then: launchctl load -w {where} -->\n{rest}"
