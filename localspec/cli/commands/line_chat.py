"""`localspec chat --plain`: a conversation line by line. Ctrl-C stops an answer, not the program; Ctrl-D ends it.

For screen readers, pipes and dumb terminals; the terminal chat proper is `localspec.tui`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from localspec.chat.plain_text import plain_text
from localspec.cli import output, standard_input
from localspec.cli.answer import answered
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.chat.turn import Message
    from localspec.engine.request import FinishReason
    from localspec.options import Options
    from localspec.runtime.any_engine import AnyEngine
    from localspec.runtime.generation import Generation

_HELP = """\
/help            this list
/clear           forget the conversation (also /new)
/system [TEXT]   set the system message, or remove it
/again           answer the last message again, with a new seed
/stats           figures of the last answer
/exit            leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next."""


class Speaker(Protocol):
    """Answers a conversation: an engine, or a server."""

    @property
    def title(self) -> str:
        """What it is, in half a sentence."""
        ...

    def notes(self) -> list[str]:
        """Lines to greet a user with."""
        ...

    def say(self, messages: Sequence[Message], wanted: Options, parts: list[str]) -> FinishReason | None:
        """Writes the answer and collects its text in `parts`; why it ended. Ctrl-C raises KeyboardInterrupt."""
        ...

    def print_stats(self) -> None:
        """Figures of the last answer.

        Raises:
            UsageError: there is none yet.
        """
        ...


class EngineSpeaker:
    """Models of this machine."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._last: Generation | None = None
        room = f"{engine.loaded.context.n_ctx:,} tokens of context"
        self.title = f"{engine.settings.target.name}, {room}"

    def notes(self) -> list[str]:
        from localspec.runtime.offered import HEADING, TINY, is_bundled, offered

        if not is_bundled(self._engine.settings.target):
            return []
        found = offered()
        width = max((len(name) for name, _ in found), default=0)
        rows = [f"{name:{width}}  {words}" for name, words in found]
        return [TINY, *([HEADING, *rows, "localspec pull NAME fetches one."] if found else [])]

    def say(self, messages: Sequence[Message], wanted: Options, parts: list[str]) -> FinishReason | None:
        self._last = answered(self._engine, messages, wanted)
        output.stream_answer(self._last, parts, self._engine.template.has_channels)
        return self._last.finish

    def print_stats(self) -> None:
        if self._last is None:
            raise UsageError("There is no answer yet.")
        output.print_stats(self._last, self._engine.loaded.configuration)


class Conversation:
    """The messages so far, and the loop that reads the next one."""

    def __init__(self, speaker: Speaker, options: argparse.Namespace, wanted: Options) -> None:
        self.speaker = speaker
        self.system: str | None = options.system
        self.turns: list[Message] = []
        self._wanted = wanted
        self._always_stats: bool = options.stats
        self._piped = standard_input.lines()

    def hold(self) -> None:
        """Reads and answers until the end of input."""
        interactive = sys.stdin.isatty()
        if interactive:
            import contextlib

            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - line editing and history in input()
            said = f"localspec chat with {self.speaker.title}. /help lists commands, Ctrl-D ends."
            print(plain_text("\n".join([said, *self.speaker.notes()])), file=sys.stderr)  # a server names its models
        while (line := self._read(interactive)) is not None:
            try:
                if line.startswith("/"):
                    if not self._command(line):
                        return
                elif line.strip():
                    self._say(line)
            except LocalspecError as error:  # the conversation goes on
                print(f"localspec: {plain_text(str(error))}", file=sys.stderr)

    def _read(self, interactive: bool) -> str | None:
        """One message; None at the end of input. Ctrl-C at the prompt drops the line."""
        lines: list[str] = []
        while True:
            try:
                line = input("… " if lines else "> ") if interactive else next(self._piped)
            except (EOFError, StopIteration):
                if interactive:
                    print(file=sys.stderr)
                return "\n".join(lines) if lines else None
            except UnicodeDecodeError:
                print("localspec: the line is not UTF-8 text; it is left out.", file=sys.stderr)
                continue
            except KeyboardInterrupt:
                print("\nCtrl-D or /exit leaves.", file=sys.stderr)
                lines = []
                continue
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    def _command(self, line: str) -> bool:
        """Runs a slash command; False = leave."""
        name, _, rest = line[1:].partition(" ")
        if name in ("exit", "quit"):
            return False
        if name in ("clear", "new"):
            self.turns.clear()
        elif name == "system":
            self.system = rest.strip() or None
        elif name == "again":
            self._again()
        elif name == "stats":
            self.speaker.print_stats()
        elif name == "help":
            print(_HELP, file=sys.stderr)
        else:
            raise UsageError(f"There is no command /{name}.", "/help lists them.")
        return True

    def _say(self, text: str) -> None:
        from localspec.chat.turn import Message

        self.turns.append(Message("user", text))
        try:
            self._answer()
        except LocalspecError:
            self.turns.pop()  # a message that cannot be answered is not part of the conversation
            raise

    def _again(self) -> None:
        if len(self.turns) < 2:
            raise UsageError("There is no answer to repeat yet.")
        old = self.turns.pop()
        try:
            self._answer(seed=None)
        except LocalspecError:
            self.turns.append(old)
            raise

    def _answer(self, **changes: object) -> None:
        from localspec.chat.turn import Message
        from localspec.engine.request import FinishReason

        system = [Message("system", self.system)] if self.system else []
        parts: list[str] = []
        finish = None
        try:
            finish = self.speaker.say([*system, *self.turns], self._wanted.having(changes), parts)
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)
        self.turns.append(Message("assistant", "".join(parts)))
        if finish is FinishReason.CONTEXT:
            print("The context is full; /clear starts again.", file=sys.stderr)
        if self._always_stats:
            self.speaker.print_stats()
