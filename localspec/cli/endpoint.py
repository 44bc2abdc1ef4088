"""`--endpoint`, or a name of models.toml: an OpenAI-style server answers in place of a model of this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.cli import output
from localspec.cli.options import add_model_options
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.engine.stats import RequestStats
    from localspec.options import Options
    from localspec.remote.asking import Reply


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, which of its models, and its key."""
    parser.add_argument("--endpoint", metavar="URL", help="let an OpenAI-style server answer: vLLM, llama-server, ...")
    parser.add_argument(
        "--model", metavar="NAME", help="a model of --endpoint, or a server's by its name in models.toml"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help="with --endpoint: its key; default: OPENAI_API_KEY")
    parser.set_defaults(listed=None)


def take_listed(options: argparse.Namespace) -> None:
    """Turns the name of a server's model in models.toml, given as target or `--model`, into `--endpoint` and `--model`.

    Given as target, another of the server's models may be named with `--model`.
    """
    name = options.target or options.model
    if options.endpoint or not name:
        return
    from localspec.models.installed.catalog import Catalog

    entry = Catalog.load().endpoints.get(name)
    if entry is None:
        return
    chosen = options.model if options.target else None
    options.listed, options.target = entry, None
    options.endpoint, options.model = entry.endpoint, chosen or entry.model or None


def check_endpoint_options(options: argparse.Namespace, *local: str) -> None:
    """Refuses what does not go with `--endpoint`, and what needs it.

    Args:
        local: further options that need a model of this machine, by their name in the parsed options.

    Raises:
        UsageError: says which option.
    """
    if not options.endpoint:
        for name in ("model", "api_key_file"):
            if getattr(options, name) is not None:
                hint = "--target names a model of this machine." if name == "model" else ""
                raise UsageError(f"--{name.replace('_', '-')} needs --endpoint.", hint)
        return
    parser = argparse.ArgumentParser(add_help=False)
    add_model_options(parser)
    given = [
        action.option_strings[-1]
        for action in parser._actions
        if (value := getattr(options, action.dest)) != action.default and action.const in (None, value)
    ]
    given += [
        f"--{name.replace('_', '-')}"
        for name in local
        if not (getattr(options, name) is None or getattr(options, name) is False)
    ]
    if given:
        other = "leave out --endpoint" if options.listed is None else f"name another model than {options.listed.name!r}"
        raise UsageError(f"{given[0]} needs a model of this machine.", f"Leave it out, or {other}.")


def key_of(options: argparse.Namespace) -> str | None:
    """The server's key; None = none is given. A server of models.toml gets the key that its entry names, or none."""
    if options.api_key_file:
        return read_text(options.api_key_file).strip()
    if options.listed is not None:
        from localspec.remote.server import key_for

        return key_for(options.listed)
    return os.environ.get("OPENAI_API_KEY")


def print_known(stats: RequestStats, seed: int | None, title: str) -> None:
    """What is known of an answer of a server, on standard error; `title` says whose it is."""
    figures = known(stats)
    rate = f", {figures['tokens_per_second']:.1f} tokens/s" if "tokens_per_second" in figures else ""
    prompt = [f"prompt {figures['prompt_tokens']} tokens"] if "prompt_tokens" in figures else []
    first = [f"TTFT {figures['ttft_seconds'] * 1e3:.1f} ms"] if "ttft_seconds" in figures else []
    lines = [f"{figures.get('generated_tokens', 0)} tokens{rate}", ", ".join([*prompt, *first])]
    lines.append(", ".join([*([] if seed is None else [f"seed {seed}"]), title]))
    print(plain_text("\n".join(line for line in lines if line)), file=sys.stderr)


def known(stats: RequestStats) -> dict[str, Any]:
    """The figures of an answer that a server's client can know."""
    names = ("prompt_tokens", "generated_tokens", "ttft_seconds", "tokens_per_second")
    figures = stats.as_dict()
    return {name: figures[name] for name in names if figures.get(name)}


def run_prompt(options: argparse.Namespace, text: str, wanted: Options) -> int:
    """`localspec run` with a server: the answer, or with `--json` one object, on standard output."""
    from localspec.chat.turn import Message
    from localspec.remote.answerer import Question
    from localspec.remote.asking import Asking, Reply
    from localspec.remote.server import Server

    asking = Asking(Server(options.endpoint, key_of(options)))
    model = options.model or asking.models()[0]
    messages = [*([Message("system", options.system)] if options.system else []), Message("user", text)]
    reply = Reply(asking, Question(messages, wanted.sampling, wanted.seed, wanted.max_tokens, wanted.stop), model)
    base = asking.server.base
    if options.json:
        said = _whole(reply) | {"model": model, "endpoint": base}
        print(json.dumps(said | {"stats": known(reply.stats)}, ensure_ascii=False))
        return 0
    try:
        with output.answer_lines([]) as write:
            reply.read(lambda text, _: write(text))
    finally:
        if options.stats and known(reply.stats):
            print_known(reply.stats, reply.seed, f"{model} at {base}")
    return 0


def _whole(reply: Reply) -> dict[str, Any]:
    """Waits for the end; what was said, as plain data."""
    texts, thoughts = list[str](), list[str]()

    def take(text: str, thinking: str) -> None:
        texts.append(text)
        thoughts.append(thinking)

    reply.read(take)
    return {
        "text": "".join(texts),
        **({"reasoning": "".join(thoughts)} if any(thoughts) else {}),
        "finish_reason": reply.finish.value,
        "seed": reply.seed,
    }
