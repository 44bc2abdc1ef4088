"""How commands ask an engine: by the chat template, or as text where that is wanted or the model has no template."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat.plain_text import plain_text

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.options import Options
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation


def start_answer(
    engine: Engine, options: argparse.Namespace, prompt: str | Sequence[Message], wanted: Options
) -> Generation:
    """Asks the engine: messages and text by the chat template, raw text as it is."""
    from localspec.chat.turn import Message

    if not isinstance(prompt, str):
        return engine.chat(prompt, wanted)
    if options.raw:
        return engine.generate(prompt, wanted)
    system = [Message("system", options.system)] if options.system else []
    return answered(engine, [*system, Message("user", prompt)], wanted)


def answered(engine: Engine, messages: Sequence[Message], wanted: Options) -> Generation:
    """A chat's answer; without a chat template the text goes on, for a limited number of tokens."""
    from localspec.chat.prompt.prompt import MOST_TOKENS, continued

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
