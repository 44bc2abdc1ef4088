"""`localspec chat --plain`: a conversation line by line. Ctrl-C stops an answer, not the program; Ctrl-D ends it.

For screen readers, pipes and dumb terminals; the terminal chat proper is `localspec.tui`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from localspec.cli import output
from localspec.errors import LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.chat.template import Message
    from localspec.runtime.engine import Engine
    from localspec.runtime.generation import Generation

_HELP = """\
/help            this list
/clear           forget the conversation
/system [TEXT]   set the system message, or remove it
/again           answer the last message again, with a new seed
/stats           figures of the last answer
/exit            leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next."""


class Conversation:
    """The messages so far, and the loop that reads the next one."""

    def __init__(self, engine: Engine, options: argparse.Namespace, arguments: dict[str, object]) -> None:
        self.engine = engine
        self.system: str | None = options.system
        self.turns: list[Message] = []
        self.last: Generation | None = None
        self._arguments = arguments
        self._always_stats: bool = options.stats

    def hold(self) -> None:
        """Reads and answers until the end of input."""
        interactive = sys.stdin.isatty()
        if interactive:
            import contextlib

            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - line editing and history in input()
            path = self.engine.settings.target
            room = f"{self.engine.loaded.context.n_ctx:,} tokens of context"
            print(f"localspec chat with {path.name}, {room}. /help lists commands, Ctrl-D ends.", file=sys.stderr)
        while (line := self._read(interactive)) is not None:
            try:
                if line.startswith("/"):
                    if not self._command(line):
                        return
                elif line.strip():
                    self._say(line)
            except LocalspecError as error:  # the conversation goes on
                print(f"localspec: {error}", file=sys.stderr)

    def _read(self, interactive: bool) -> str | None:
        """One message; None at the end of input. Ctrl-C at the prompt drops the line."""
        lines: list[str] = []
        while True:
            try:
                line = input(("… " if lines else "> ") if interactive else "")
            except EOFError:
                if interactive:
                    print(file=sys.stderr)
                return "\n".join(lines) if lines else None
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
        if name == "clear":
            self.turns.clear()
        elif name == "system":
            self.system = rest.strip() or None
        elif name == "again":
            self._again()
        elif name == "stats":
            self._print_stats()
        elif name == "help":
            print(_HELP, file=sys.stderr)
        else:
            raise UsageError(f"There is no command /{name}.", "/help lists them.")
        return True

    def _say(self, text: str) -> None:
        from localspec.chat.template import Message

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
        from localspec.chat.template import Message
        from localspec.engine.request import FinishReason

        system = [Message("system", self.system)] if self.system else []
        generation = self.engine.chat([*system, *self.turns], **(self._arguments | changes))
        parts: list[str] = []
        try:
            output.stream_answer(generation, parts)
        except KeyboardInterrupt:
            print("(stopped)", file=sys.stderr)
        self.last = generation
        self.turns.append(Message("assistant", "".join(parts)))
        if generation.finish is FinishReason.CONTEXT:
            print("The context is full; /clear starts again.", file=sys.stderr)
        if self._always_stats:
            self._print_stats()

    def _print_stats(self) -> None:
        if self.last is None:
            raise UsageError("There is no answer yet.")
        output.print_stats(self.last, self.engine.loaded.configuration)
