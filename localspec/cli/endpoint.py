"""`--endpoint`, or a name of models.toml: an OpenAI-style server answers in place of a model of this machine."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.cli import output
from localspec.cli.options import add_model_options
from localspec.errors import UsageError

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.engine.request import FinishReason
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

    Raises:
        UsageError: the catalogue cannot be read.
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
    """The server's key; None = none is given. A server of models.toml gets the key that its entry names, or none.

    Raises:
        UsageError: the key cannot be read.
    """
    if options.api_key_file:
        return read_text(options.api_key_file).strip()
    if options.listed is not None:
        from localspec.remote.server import key_for

        return key_for(options.listed)
    return os.environ.get("OPENAI_API_KEY")


class ServerSpeaker:
    """Asks the server, one answer at a time. Ctrl-C closes the connection, and the server stops."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Asks the server for its models unless one is named.

        Raises:
            LocalspecError: there is no such server, or it has no models.
        """
        from localspec.remote.asking import Asking
        from localspec.remote.server import Server

        self._asking = Asking(Server(options.endpoint, key_of(options)))
        self.base = self._asking.server.base
        """The server's address, with /v1 at its end."""
        self.last: Reply | None = None
        self.model: str = options.model or self._asking.models()[0]

    @property
    def title(self) -> str:
        return f"{self.model} at {self.base}"

    def notes(self) -> list[str]:
        return []

    def say(self, messages: Sequence[Message], wanted: Options, parts: list[str]) -> FinishReason | None:
        with output.answer_lines(parts) as write:
            return self.ask(messages, wanted, lambda text, _: write(text)).finish

    def ask(self, messages: Sequence[Message], wanted: Options, take: Callable[[str, str], None]) -> Reply:
        """Asks, and hands (text, thinking) to `take` as they come.

        Raises:
            LocalspecError: the server is away, refuses, or fails in the middle.
        """
        from localspec.remote.asking import Reply
        from localspec.remote.prompt import Prompt

        prompt = Prompt(messages, wanted.sampling, wanted.seed, wanted.max_tokens, wanted.stop)
        self.last = Reply(self._asking, prompt, self.model)
        self.last.read(take)
        return self.last

    def print_stats(self) -> None:
        """What is known of the last answer, on standard error."""
        if self.last is None:
            raise UsageError("There is no answer yet.")
        known = self.known()
        rate = f", {known['tokens_per_second']:.1f} tokens/s" if "tokens_per_second" in known else ""
        prompt = [f"prompt {known['prompt_tokens']} tokens"] if "prompt_tokens" in known else []
        first = [f"TTFT {known['ttft_seconds'] * 1e3:.1f} ms"] if "ttft_seconds" in known else []
        seed = [] if self.last.seed is None else [f"seed {self.last.seed}"]
        lines = [f"{known.get('generated_tokens', 0)} tokens{rate}", ", ".join([*prompt, *first])]
        lines.append(", ".join([*seed, self.title]))
        print(plain_text("\n".join(line for line in lines if line)), file=sys.stderr)

    def known(self) -> dict[str, Any]:
        """The figures of the last answer that a server's client can know."""
        names = ("prompt_tokens", "generated_tokens", "ttft_seconds", "tokens_per_second")
        figures = self.last.stats.as_dict() if self.last is not None else {}
        return {name: figures[name] for name in names if figures.get(name)}


def run_prompt(options: argparse.Namespace, text: str, wanted: Options) -> int:
    """`localspec run` with a server: the answer, or with `--json` one object, on standard output."""
    from localspec.chat.turn import Message

    speaker = ServerSpeaker(options)
    system = [Message("system", options.system)] if options.system else []
    messages = [*system, Message("user", text)]
    if options.json:
        print(json.dumps(_whole(speaker, messages, wanted), ensure_ascii=False))
        return 0
    try:
        speaker.say(messages, wanted, [])
    finally:
        if options.stats and speaker.known():
            speaker.print_stats()
    return 0


def _whole(speaker: ServerSpeaker, messages: Sequence[Message], wanted: Options) -> dict[str, Any]:
    """Waits for the end; everything that is known of the answer as plain data."""
    texts, thoughts = list[str](), list[str]()

    def take(text: str, thinking: str) -> None:
        texts.append(text)
        thoughts.append(thinking)

    reply = speaker.ask(messages, wanted, take)
    return {
        "text": "".join(texts),
        **({"reasoning": "".join(thoughts)} if any(thoughts) else {}),
        "finish_reason": reply.finish.value,
        "seed": wanted.seed,
        "model": speaker.model,
        "endpoint": speaker.base,
        "stats": speaker.known(),
    }
