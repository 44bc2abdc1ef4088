"""`localspec chat --plain`: a conversation line by line. Ctrl-C stops an answer, not the program; Ctrl-D ends it.

For screen readers, pipes and dumb terminals; the terminal chat proper is `localspec.tui`.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from queue import SimpleQueue

from localspec.chat.export import call_line, signature
from localspec.chat.plain_text import plain_text
from localspec.chat.reply.harmony import Retelling
from localspec.chat.turn import MadeCall, Message, rounds
from localspec.cli import output, streams
from localspec.cli.shared import print_known
from localspec.engine.slot import FinishReason
from localspec.errors import LocalspecError, UsageError
from localspec.options import Options
from localspec.remote.answerer import (
    AnswerEnded,
    Answerer,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Question,
    Told,
)
from localspec.remote.server import base_of
from localspec.tools.answers import CallDue, CallMade, Noticed, answer_with
from localspec.tools.toolbox import Consent, FolderFile, Toolbox

_HELP = """\
/help            this list
/clear           forget the conversation (also /new)
/system [TEXT]   set the system message, or remove it
/again           answer the last message again, with a new seed
/stats           figures of the last answer
/exit            leave (also Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next."""


class _Inbox(SimpleQueue[Told]):
    """What an answerer tells, until it is read."""

    def post_message(self, message: Told) -> bool:
        self.put(message)
        return True


def loaded(answerer: Answerer) -> Facts:
    """Waits until it can answer, with progress on a terminal's standard error."""
    inbox = _Inbox()
    with output.load_progress() as progress:
        answerer.start(inbox)
        while not isinstance(news := inbox.get(), ModelReady):
            if isinstance(news, LoadFailed):
                raise news.error
            if isinstance(news, Loading) and progress is not None:
                progress(news.what, news.share)
    return news.facts


_CONSENTS: dict[str, Consent] = {"yes": "once", "chat": "chat", "always": "always", "no": "no"}


def _typed(question: str, *words: str) -> str:
    """The word that the user answers with, whole or its first letter, on the terminal; Ctrl-D is the last. What was
    typed before the question is no answer to it."""
    with suppress(ImportError, OSError):
        import termios

        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    while True:
        print(question, end="", file=sys.stderr, flush=True)
        try:
            said = input().strip().lower()
        except EOFError:
            return words[-1]
        if found := [word for word in words if said in (word, word[0])]:
            return found[0]


def agreed(folder: FolderFile) -> bool:
    """Whether the user allows the servers of the folder's file."""
    if not sys.stdin.isatty():
        say(f"localspec: The servers of {folder.path} are left out: there is no terminal to ask at.")
        return False
    say(folder.question)
    return _typed("Use them? [y]es, [n]ot now: ", "yes", "not now") == "yes"


def say(text: str) -> None:
    """A line on standard error, after what is on standard output."""
    sys.stdout.flush()
    print(plain_text(text), file=sys.stderr)


class Conversation:
    """The messages so far, and the loop that reads the next one."""

    def __init__(
        self, answerer: Answerer, facts: Facts, options: argparse.Namespace, wanted: Options, toolbox: Toolbox | None
    ) -> None:
        """`facts`: of the answerer, which is `loaded`. `toolbox`: what answers may call; None = nothing."""
        self._answerer, self.facts, self._toolbox = answerer, facts, toolbox
        if facts.target is None:
            self._title = f"{facts.name} at {base_of(options.endpoint)}"
        else:
            self._title = f"{facts.target.name}, {facts.context:,} tokens of context"
        self.system: str | None = options.system
        self.turns: list[Message] = []
        self._wanted = wanted
        self._always_stats: bool = options.stats
        self._piped = streams.lines()
        self.last: AnswerEnded | None = None
        """The end of the last answer."""
        self.calls: list[MadeCall] = []
        self.said, self.stopped = "", False
        """Of the last answer: its calls, all that it says, and whether Ctrl-C ended it."""

    def ask(self, text: str) -> None:
        """One message and its answer, which is written as it comes."""
        self.turns.append(Message("user", text))
        self._answer()

    def hold(self) -> None:
        """Reads and answers until the end of input."""
        interactive = sys.stdin.isatty()
        if interactive:
            with suppress(ImportError):
                import readline  # noqa: F401 - line editing and history in input()
            said = f"localspec chat with {self._title}. /help lists commands, Ctrl-D ends."
            lines = [said]
            if self.facts.bundled:
                from localspec.runtime.offered import HEADING, TINY, offered

                lines.append(TINY)
                if found := offered():
                    lines += [HEADING, *output.aligned(found), "localspec pull NAME fetches one."]
            print(plain_text("\n".join(lines)), file=sys.stderr)  # a server names its models
        while (line := self._read(interactive)) is not None:
            try:
                if line.startswith("/"):
                    if not self._command(line):
                        return
                elif line.strip():
                    try:
                        self.ask(line)
                    except LocalspecError:
                        self.turns.pop()  # a message that cannot be answered is not part of the conversation
                        raise
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
            if len(self.turns) < 2:
                raise UsageError("There is no answer to repeat yet.")
            old = self.turns
            end = max(at for at, turn in enumerate(old) if turn.role == "user")
            self.turns = old[: end + 1]
            try:
                self._answer(seed=None)
            except LocalspecError:
                self.turns = old
                raise
        elif name == "stats":
            self._print_stats()
        elif name == "help":
            print(_HELP, file=sys.stderr)
        else:
            raise UsageError(f"There is no command /{name}.", "/help lists them.")
        return True

    def _answer(self, **changes: object) -> None:
        """Writes the answer and keeps it as a turn; Ctrl-C ends it, and what has come stays."""
        wanted, parts, finish = self._wanted.having(changes), list[str](), None
        messages = [*([Message("system", self.system)] if self.system else []), *self.turns]
        asked = Question(
            messages, wanted.sampling, wanted.seed, wanted.max_tokens, wanted.stop, raw=self._toolbox is None
        )
        inbox, retelling = _Inbox(), Retelling(self.facts.channels and self._toolbox is None)
        self.calls, self.stopped = [], False
        try:
            if self._toolbox is None:
                answer = self._answerer.answer(asked, inbox)
            else:
                answer = answer_with(self._toolbox, self._answerer, asked, inbox)
            with output.answer_lines() as write:

                def read(stopped: bool = False) -> AnswerEnded:
                    while not isinstance(news := inbox.get(), AnswerEnded):
                        if isinstance(news, AnswerPart):
                            parts.append(news.text)
                            write(retelling.push(news.text))
                        elif isinstance(news, CallMade) or not stopped:
                            self._take_call(news)
                    self.last = news
                    return news

                try:
                    end = read()
                except KeyboardInterrupt:
                    answer.cancel()
                    read(stopped=True)
                    raise
                finally:
                    write(retelling.finish())
            if end.error is not None:
                raise end.error
            finish = end.finish
        except KeyboardInterrupt:
            self.stopped = True
            print("(stopped)", file=sys.stderr)
        self.said = "".join(parts)
        called, rest, _ = rounds(self.said, "", self.calls)
        self.turns += [*called, Message("assistant", rest)]
        if finish is FinishReason.CONTEXT:
            print("The context is full; /clear starts again.", file=sys.stderr)
        if self._always_stats:
            self._print_stats()

    def _take_call(self, news: Told) -> None:
        """Says what becomes of a call, and asks for the user's consent where that is wanted."""
        if isinstance(news, CallMade):
            self.calls.append(news.made)
            say(f"({call_line(news.made)})")
        elif isinstance(news, Noticed):
            say(f"localspec: {news.text}")
        elif isinstance(news, CallDue) and news.asks:
            say(f"{signature(news.call)}, a tool of the server {news.server}")
            if sys.stdin.isatty():
                word = _typed("Call it? [y]es, in this [c]hat, [a]lways, [n]o: ", *_CONSENTS)
                news.answer.consent(_CONSENTS[word])
            else:
                say("localspec: It is refused: there is no terminal to ask at. --yes allows all calls.")
                news.answer.consent("no")

    def _print_stats(self) -> None:
        if self.last is None:
            raise UsageError("There is no answer yet.")
        figures = self.last.stats, self.last.answer.seed
        if self.facts.remote:
            print_known(*figures, self._title)
        else:
            output.print_stats(*figures, self.facts.configuration)
