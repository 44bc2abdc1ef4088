"""`localspec serve`: the local OpenAI-style endpoint, and units with which systemd or launchd start it; `localspec
connect`: a coding agent's command, set up for a running `localspec serve`; `--run` starts it.

Nothing is written into the client's own configuration, and the key goes into its environment alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import plistlib
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from localspec import paths
from localspec.chat.text_file import read_text
from localspec.cli.output import load_progress, print_plain
from localspec.cli.parser import MOST_PORT, MOST_SECONDS, add_engine_settings, add_whole, real, whole
from localspec.cli.shared import add_model_options, add_process, engine_settings, fitting, take_target
from localspec.errors import LocalspecError, UsageError
from localspec.paths import typed
from localspec.processes import announce
from localspec.server.http.settings import MIB, ServerSettings

if TYPE_CHECKING:
    import httpx2

    from localspec.runtime.pool import Pool
    from localspec.server.front import Processes

KEY_VARIABLE = "LOCALSPEC_API_KEY"  # variable that holds the key of our endpoint, for `serve` and for those who ask it
KINDS = ("systemd", "launchd")  # units that start the endpoint with the session of the user
_LABEL = "localspec.serve"


def add_options_serve(parser: argparse.ArgumentParser) -> None:
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


def run_serve(options: argparse.Namespace) -> int:
    from localspec.runtime.kept.caches import default_budget
    from localspec.runtime.pool import Pool
    from localspec.server.front import Processes

    take_target(options, options.name, "NAME")
    given = {one.name: getattr(options, one.name) for one in fields(ServerSettings) if one.name in options}
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
    with contextlib.ExitStack() as stack:
        if processes is not None:
            stack.callback(processes.give_up)
            processes.begin(pool)  # while the rest is imported, which takes a second
        _serve(pool, slots, settings, options, processes)
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
            "Description=localspec " + " ".join(map(quote, arguments)).replace("%", "%%").replace("\n", " "),
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
    log = str(paths.home() / "Library/Logs/localspec.log")
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


NO_KEY = "none"  # what a client gets as a key where the server asks for none: most refuse to start without any
_MILLISECONDS = 3_600_000
"""An hour: how long a client waits for an answer. A long prompt takes minutes on a CPU, more than clients wait for by
themselves (Claude Code 10 minutes, Codex and opencode 5)."""
_SECRET = re.compile(r"_(API_?KEY|API_TOKEN|AUTH_TOKEN|OAUTH_TOKEN)$", re.IGNORECASE)
"""Names of variables that hold keys of providers."""
_REDIRECTING = frozenset((
    "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_MODEL", "AWS_BEARER_TOKEN_BEDROCK",
    "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_VERTEX", "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
))  # fmt: skip
"""Further variables with which these programs would ask another provider, or tell ours about it."""


@dataclass(frozen=True, slots=True)
class ClientSetup:
    program: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # variables it needs, besides the key
    key_variable: str = KEY_VARIABLE  # where it reads the key
    first_prompt: int | None = None
    """Tokens of its first prompt, system message and tools, as once recorded; None = not known."""


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys of providers, and without what would lead a client to one."""
    return {name: value for name, value in environment.items() if not _SECRET.search(name) and name not in _REDIRECTING}


CLIENTS = ("claude", "codex", "opencode", "aider", "goose", "qwen")


def setup_of(client: str, url: str, model: str, context: int | None) -> ClientSetup:
    """How one of `CLIENTS` is set up for a server; see `_ask`."""
    api = f"{url}/v1"
    if client == "claude":
        models = ("ANTHROPIC_MODEL", *(f"ANTHROPIC_DEFAULT_{size}_MODEL" for size in ("HAIKU", "SONNET", "OPUS")))
        environment = {"ANTHROPIC_BASE_URL": url, **dict.fromkeys(models, model)}
        # Else the system message begins with a line that differs by session, and no prompt is found cached.
        environment["CLAUDE_CODE_ATTRIBUTION_HEADER"] = "0"
        environment["API_TIMEOUT_MS"] = environment["CLAUDE_STREAM_IDLE_TIMEOUT_MS"] = str(_MILLISECONDS)
        environment["ANTHROPIC_SMALL_FAST_MODEL"] = model  # the name of older versions
        return ClientSetup("claude", (), environment, "ANTHROPIC_AUTH_TOKEN", 18_846)
    if client == "codex":
        provider = {"name": "localspec", "base_url": api, "env_key": KEY_VARIABLE, "wire_api": "responses"}
        words = [f"model_providers.localspec.{key}={json.dumps(value)}" for key, value in provider.items()]
        words += [f"model_providers.localspec.stream_idle_timeout_ms={_MILLISECONDS}"]
        words += [] if context is None else [f"model_context_window={context}"]
        words = [word for setting in (*words, 'model_provider="localspec"') for word in ("-c", setting)]
        return ClientSetup("codex", (*words, "-m", model), first_prompt=6_662)
    if client == "opencode":
        limits = {} if context is None else {"limit": {"context": context, "output": context // 4}}
        waits = dict.fromkeys(("timeout", "headerTimeout", "chunkTimeout"), _MILLISECONDS)
        local = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "localspec",
            "options": {"baseURL": api, "apiKey": f"{{env:{KEY_VARIABLE}}}"} | waits,
            "models": {model: {"name": model, **limits}},
        }
        chosen = dict.fromkeys(("model", "small_model"), f"localspec/{model}")
        content = json.dumps({"provider": {"localspec": local}} | chosen)
        return ClientSetup("opencode", (), {"OPENCODE_CONFIG_CONTENT": content}, first_prompt=7_622)
    if client == "aider":
        words = [word for option in ("--model", "--weak-model") for word in (option, f"openai/{model}")]
        words += ["--timeout", str(_MILLISECONDS // 1000)]
        tokens = 697 + 1024  # its map of a repository has 1,024 at most
        return ClientSetup("aider", tuple(words), {"OPENAI_API_BASE": api}, "OPENAI_API_KEY", tokens)
    if client == "goose":
        environment = {"GOOSE_PROVIDER": "openai", "GOOSE_MODEL": model, "OPENAI_HOST": url}
        environment |= {} if context is None else {"GOOSE_CONTEXT_LIMIT": str(context)}
        return ClientSetup("goose", ("session",), environment, "OPENAI_API_KEY")
    environment = {"OPENAI_BASE_URL": api, "OPENAI_MODEL": model}
    environment |= {} if context is None else {"QWEN_CODE_MAX_OUTPUT_TOKENS": str(context // 4)}  # else 8,000
    return ClientSetup("qwen", ("--auth-type", "openai"), environment, "OPENAI_API_KEY", 14_467)


ENOUGH_CONTEXT = 32_768
"""Tokens below which coding agents soon run out: their system messages and tools alone take some 10,000."""
_URL = "http://127.0.0.1:8080"
_SECONDS, _LOAD_SECONDS = 5.0, 120.0  # how long a server may take to list its models, and to load one


def add_options_connect(parser: argparse.ArgumentParser) -> None:
    text = f"one of {', '.join(CLIENTS)}; what stands after -- goes to it"
    parser.add_argument("client", choices=[*CLIENTS], metavar="CLIENT", help=text)
    parser.add_argument("--run", action="store_true", help="start the client instead of printing its command")
    parser.add_argument("--url", default=_URL, help=f"where the server is; default: {_URL}")
    parser.add_argument("--model", metavar="NAME", help="which of its models; default: the first")
    text = f"file with the server's key; or the variable {KEY_VARIABLE}"
    parser.add_argument("--api-key-file", metavar="FILE", help=text)


def run_connect(options: argparse.Namespace) -> int:
    key = next(iter(api_keys(options.api_key_file)), "")
    url, model, context = _ask(options.url, options.model, key)
    if context is None:
        print("localspec: warning: the server does not say how long its context is.", file=sys.stderr)
    elif context < ENOUGH_CONTEXT:
        print(
            f"localspec: warning: the server's context holds {context:,} tokens, and coding agents need "
            f"{ENOUGH_CONTEXT:,} or more. Start it with --context {ENOUGH_CONTEXT}.",
            file=sys.stderr,
        )
    setup = setup_of(options.client, url, model, context)
    if options.run:
        slow = setup.first_prompt and warning(url, model, key, options.client, setup.first_prompt)
        if slow:
            print(slow, file=sys.stderr)
        path = shutil.which(setup.program)
        if path is None:
            raise LocalspecError(f"{setup.program} is not installed, or not on PATH.")
        environment = {**without_keys(os.environ), **setup.environment, setup.key_variable: key or NO_KEY}
        sys.stdout.flush()
        with subprocess.Popen([path, *setup.arguments, *options.after_dashes], env=environment) as child:
            while True:
                try:
                    code = child.wait()
                except KeyboardInterrupt:  # the terminal tells the client, too, which decides what it means
                    continue
                return code if code >= 0 else 128 - code
    print_plain(_command(setup, options.after_dashes, bool(key)))  # a server may call its model anything
    if options.api_key_file:
        print(f"localspec: {KEY_VARIABLE} must hold the key of {options.api_key_file} there.", file=sys.stderr)
    return 0


def _ask(text: str, wanted: str | None, key: str) -> tuple[str, str, int | None]:
    """The server at an address, as `http://host:port` without /v1, one of its models, and the tokens of its context,
    None = the server does not say."""
    import httpx2 as httpx

    from localspec.remote.server import base_of, way_to

    url = base_of(text, "--url", _URL).removesuffix("/v1")
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
        # Tokens of its context: as listed by llama-server and localspec, or by vLLM, else as /props has it once loaded.
        meta = card.get("meta")
        context = meta.get("n_ctx") if isinstance(meta, dict) else card.get("max_model_len")
        if not isinstance(context, int):
            with contextlib.suppress(LocalspecError, httpx.HTTPError):
                if card.get("status") == "unloaded":
                    client.post("/v1/models/load", json={"model": card["id"]}, timeout=_LOAD_SECONDS)
                props = _get(client, "/props", params={"model": card["id"]}, timeout=_LOAD_SECONDS)
                settings = props.get("default_generation_settings")
                context = settings.get("n_ctx") if isinstance(settings, dict) else None
        known = context if isinstance(context, int) and context > 0 else None
        return url, wanted or card["id"], known


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


def _command(setup: ClientSetup, more: list[str], has_key: bool) -> str:
    """A line for a shell, with the key's variable in place of the key."""
    dropped = sorted(set(os.environ) - set(without_keys(os.environ)) - {KEY_VARIABLE, setup.key_variable})
    unset = [word for name in dropped if name not in setup.environment for word in ("-u", name)]
    named = [f"{name}={quote(value)}" for name, value in setup.environment.items()]
    if not has_key:
        named.append(f"{setup.key_variable}={NO_KEY}")
    elif setup.key_variable != KEY_VARIABLE:
        named.append(f'{setup.key_variable}="${KEY_VARIABLE}"')
    return " ".join(["env", *unset, *named, setup.program, *map(quote, (*setup.arguments, *more))])


# How long a server will read a coding agent's first prompt, said before the agent starts.

_WORDS = 300  # of the text that is read to measure the speed; a word is a token or more
_WARM_UP_WORDS = 30  # of the text before it: a pass or two
_READ_SECONDS = 120.0  # how long each may take, loading the model included
_WORTH_SAYING = 10.0  # seconds of waiting below which nothing is said


def warning(url: str, model: str, key: str, client: str, tokens: int) -> str:
    """A sentence for a client whose first prompt, of so many tokens, takes long here; "" = no, or not known."""
    import httpx2 as httpx

    from localspec.remote.server import way_to

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx.Client(headers=headers, timeout=_READ_SECONDS, **way_to(url)) as asking:
            # The first text is not measured: it waits until the model is loaded and its file is read from disk.
            for words in (_WARM_UP_WORDS, _WORDS):
                prompt = " ".join(secrets.token_hex(2) for _ in range(words))  # which no cache holds
                body = {"model": model, "prompt": prompt, "max_tokens": 1}
                answer: Any = asking.post(f"{url}/v1/completions", json=body).json()
                rate = answer["timings"]["prompt_per_second"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(rate, int | float) or rate <= 0 or tokens / rate < _WORTH_SAYING:
        return ""
    seconds = tokens / rate
    wait = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
    return (
        f"localspec: the first prompt of {client} has some {round(tokens, -3):,} tokens; at {rate:.0f} tokens/s this "
        f"machine reads them in about {wait}. Later prompts begin alike, and what is alike is read once."
    )
