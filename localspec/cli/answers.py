"""Who answers a command, and how it is asked: an engine by the chat template, or as text where that is wanted or the
model has no template; or, by `--endpoint` or a name of models.toml, an OpenAI-style server.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.cli import output
from localspec.cli.options import add_model_options
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.engine.stats import RequestStats
    from localspec.options import Options
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation


def start_answer(
    engine: Engine, options: argparse.Namespace, prompt: str | Sequence[Message], wanted: Options
) -> Generation:
    """Asks the engine: messages and text by the chat template, raw text as it is. Without a chat template text goes on,
    for a limited number of tokens.
    """
    from localspec.chat.prompt.prompt import MOST_TOKENS, continued
    from localspec.chat.turn import Message

    if not isinstance(prompt, str):
        return engine.chat(prompt, wanted)
    if options.raw:
        return engine.generate(prompt, wanted)
    messages = [*([Message("system", options.system)] if options.system else []), Message("user", prompt)]
    if engine.template.exists:
        return engine.chat(messages, wanted)
    return engine.generate(continued(messages), wanted, max_tokens=wanted.max_tokens or MOST_TOKENS)


def say_of_model(target: Path, completes: bool, options: argparse.Namespace) -> None:
    """A line on standard error after a model was loaded whose file leaves open how text is split; and one after a model
    without a chat template, unless raw text is wanted.
    """
    from localspec.chat.prompt.prompt import continued, note
    from localspec.chat.turn import Message
    from localspec.gguf.split import read_parts
    from localspec.models.facts.pairing import doubt_of

    if doubt := doubt_of(read_parts(target)[0]):
        print(f"localspec: {doubt}", file=sys.stderr)
    if not completes or getattr(options, "raw", False):
        return
    continued([Message("system", options.system)] if options.system else [])
    print(f"localspec: {plain_text(note(target.name))}", file=sys.stderr)


def add_endpoint_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, which of its models, and its key."""
    parser.add_argument("--endpoint", metavar="URL", help="let an OpenAI-style server answer: vLLM, llama-server, ...")
    told = "a model of --endpoint, or a server's by its name in models.toml"
    parser.add_argument("--model", metavar="NAME", help=told)
    parser.add_argument("--api-key-file", metavar="FILE", help="with --endpoint: its key; default: OPENAI_API_KEY")
    parser.set_defaults(listed=None)


def name_target(options: argparse.Namespace, name: str) -> None:
    if options.endpoint:
        raise UsageError(f"{name!r} names a model of this machine.", "With --endpoint, name it with --model.")
    if options.target:
        raise UsageError("Give NAME or --target, not both.")
    options.target = name


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
    """Refuses what does not go with `--endpoint`, and what needs it. `local` are further options that need a model of
    this machine, by their name in the parsed options.
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
    named = [name for name in local if getattr(options, name) is not None and getattr(options, name) is not False]
    given += [f"--{name.replace('_', '-')}" for name in named]
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
    from localspec.remote.asking import Reply, Requests
    from localspec.remote.server import Server

    requests = Requests(Server(options.endpoint, key_of(options)))
    model = options.model or requests.models()[0]
    messages = [*([Message("system", options.system)] if options.system else []), Message("user", text)]
    reply = Reply(requests, Question(messages, wanted.sampling, wanted.seed, wanted.max_tokens, wanted.stop), model)
    base = requests.server.base
    if options.json:
        pieces = list[tuple[str, str]]()
        reply.read(lambda *piece: pieces.append(piece))
        text, thoughts = ("".join(one) for one in zip(*pieces, strict=True)) if pieces else ("", "")
        said: dict[str, Any] = {
            "text": text,
            **({"reasoning": thoughts} if thoughts else {}),
            "finish_reason": reply.finish.value,
        }
        said |= {"seed": reply.seed, "model": model, "endpoint": base, "stats": known(reply.stats)}
        print(json.dumps(said, ensure_ascii=False))
        return 0
    try:
        with output.answer_lines() as write:
            reply.read(lambda text, _: write(text))
    finally:
        if options.stats and known(reply.stats):
            print_known(reply.stats, reply.seed, f"{model} at {base}")
    return 0
