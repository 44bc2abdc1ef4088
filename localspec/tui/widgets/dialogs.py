"""Boxes above what is there, notes in the corner, errands on threads that nothing waits for; the user's own programs:
the editor of the prompt, and what takes a text to the clipboard."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Generic, TypeVar

from textual import events
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message_pump import MessagePump
from textual.screen import ModalScreen, ScreenResultType
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from localspec import paths
from localspec.chat.plain_text import plain_text
from localspec.chat.text_file import read_text
from localspec.errors import LocalspecError, UsageError
from localspec.tui.widgets.registry import CLOSE

T = TypeVar("T")
_LOOK_SECONDS = 0.1  # between two looks whether a question is still asked


def say(node: MessagePump, text: str, problem: bool = False) -> None:
    """Says something in the corner; the text may quote what comes from outside."""
    app, said = node.app, plain_text(text)
    for note in [note for note in app._notifications if note.message == said]:  # has no public name
        app._unnotify(note, refresh=False)  # said again, it stands there once
    app.notify(said, severity="warning" if problem else "information", timeout=8 if problem else 4, markup=False)


@contextmanager
def errors_said(node: MessagePump, show: Callable[[str], object] | None = None) -> Iterator[None]:
    """An error of localspec's own ends what is done here, and is said in the corner, or by `show`."""
    try:
        yield
    except LocalspecError as error:
        if show is None:
            say(node, str(error), problem=True)
        else:
            show(str(error))


@contextmanager
def shown(show: Callable[[str], object]) -> Iterator[None]:
    """Hands warnings to a function, on whatever thread they come, instead of writing them to standard error."""

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(record.getMessage())

    logger, notes = logging.getLogger("localspec"), Notes(logging.WARNING)
    written, logger.propagate = logger.propagate, False
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.propagate = written


class LongText(VerticalScroll):
    """Tab leads to it, and its keys scroll it, once it is longer than its place."""

    def allow_focus(self) -> bool:
        return self.max_scroll_y > 0


class Dialog(ModalScreen[ScreenResultType]):
    """A box above what is there; Esc gives up."""

    AUTO_FOCUS = "OptionList, Input"
    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = LongText(Static(question, classes="question", markup=False))

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield self._question
            yield from self.body()

    def body(self) -> ComposeResult:
        yield from ()

    def action_close(self) -> None:
        self.dismiss(None)


class ItemList(OptionList, Generic[T]):
    """A list that knows what its lines stand for."""

    items: Sequence[T] = ()

    def show(self, items: Sequence[T], line: Callable[[T], Content]) -> None:
        """Shows other items; the mark stays at its place, as far as there is one."""
        marked, self.items = self.highlighted or 0, items
        self.set_options([Option(line(item)) for item in items])
        self.highlighted = min(marked, len(items) - 1) if items else None

    @property
    def item(self) -> T | None:
        """The marked one."""
        return None if self.highlighted is None else self.items[self.highlighted]


class ChoiceDialog(Dialog[T | None]):
    """A question; the result is the value of the answer chosen, None = given up. Digits go to that answer."""

    def __init__(
        self, question: str, answers: Sequence[tuple[T, str, str]], asks: Callable[[], bool] | None = None
    ) -> None:
        """`answers`: (value, label, what it does). With `asks` it comes by itself, so that Enter alone answers nothing;
        and it goes once it does not ask any more, as that says."""
        super().__init__(question)
        self._asks = asks
        self._answers = answers
        self._number = ""  # digits typed so far

    def body(self) -> ComposeResult:
        lines = (Content.assemble((label, "bold"), "\n", (doc, "$text-muted")) for _, label, doc in self._answers)
        options = OptionList(*map(Option, lines))
        yield options
        if (asks := self._asks) is not None:
            options.highlighted = None
            self.set_interval(_LOOK_SECONDS, lambda: None if asks() or not self.is_current else self.action_close())

    def on_key(self, event: events.Key) -> None:
        if not event.key.isdigit():
            self._number = ""
            return
        event.stop()
        self._number = next(
            (number for number in (self._number + event.key, event.key) if 0 < int(number) <= len(self._answers)), ""
        )
        if self._number:
            self.query_exactly_one(OptionList).highlighted = int(self._number) - 1

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._answers[event.option_index][0])


class Line(Dialog[str | None]):
    """One line of text; None = given up."""

    def __init__(self, question: str, value: str = "", placeholder: str = "") -> None:
        super().__init__(question)
        self._input = Input(value, placeholder=placeholder)

    def body(self) -> ComposeResult:
        yield self._input

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


async def errand(work: Callable[[], T], what: str = "") -> T:
    """The result of `work`, which runs on a thread that nothing waits for, not even the end of the program: that waits
    for `asyncio.to_thread`. `what`: words for it in the sentence on an unexpected error, such as "The search"; "" =
    that is raised as it is."""
    result = Future[T]()
    result.set_running_or_notify_cancel()  # what does not wait any more must not end it

    def run() -> None:
        try:
            result.set_result(work())
        except StopIteration as error:  # which asyncio refuses
            result.set_exception(RuntimeError(f"unexpected {error!r}"))
        except Exception as error:  # noqa: BLE001 - the worker's edge: the waiting side must hear of it
            result.set_exception(error)

    threading.Thread(target=run, name="localspec-errand", daemon=True).start()
    try:
        return await asyncio.wrap_future(result)
    except Exception as error:
        if what and not isinstance(error, LocalspecError):
            raise LocalspecError(f"{what} failed: {error!r}.") from error
        raise


VARIABLES = ("VISUAL", "EDITOR")  # which editor it is: the first that is set. It may have options, as in `code --wait`.


def edited(app: App[Any], text: str) -> str:
    """The text as the editor left it. Answers go on meanwhile; what comes of them is drawn afterwards. Raises
    UsageError: there is no editor, it failed, or this terminal cannot be left."""
    given = next((value for name in VARIABLES if (value := os.environ.get(name, "").strip())), "")
    if not given:
        raise UsageError("No editor is set.", "Set EDITOR, as in: export EDITOR=nano")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise UsageError(f"The editor {given!r} cannot be understood: {error}.") from None
    with TemporaryDirectory(prefix="localspec-") as folder:  # an editor may leave copies beside its file
        path, fault = Path(folder) / "prompt.md", ""
        path.write_text(text, encoding="utf-8")
        try:
            with app.suspend(), _interrupts_are_its_own():
                try:  # inside: Textual does not come back after an error
                    if code := subprocess.run([*command, str(path)], check=False).returncode:
                        fault = f"ended with code {code}"
                except OSError as error:
                    fault = f"cannot be started: {error.strerror}"
        except SuspendNotSupported:
            raise UsageError("An editor cannot have the screen here.") from None
        if fault:
            raise UsageError(f"The editor {command[0]!r} {fault}.", "The text is as it was.")
        return plain_text(read_text(path)).removesuffix("\n")


@contextmanager
def _interrupts_are_its_own() -> Iterator[None]:
    """Ctrl+C in an editor that leaves the terminal's signals on goes to both programs, and means the editor."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_LONGEST_SEQUENCE = 74_994
"""Base64 characters that terminals are known to take in one OSC 52 sequence; beyond, many drop all of it."""
_TIMEOUT_SECONDS = 2.0
_TMUX = ["tmux", "load-buffer", "-w", "-"]
"""Fills tmux's buffer and, if `set-clipboard` allows, the terminal's clipboard; needs no `allow-passthrough`."""


def copy(app: App[Any], text: str, what: str) -> None:
    """Copies to the clipboard, by the best way there is, and says which; takes a while."""

    def write(sequence: str) -> bool:
        driver = app._driver
        if driver is None or app.is_headless:
            return False
        app.call_from_thread(driver.write, sequence)
        return True

    async def work() -> None:
        with errors_said(app):
            say(app, f"{what} copied {await asyncio.to_thread(copied, text, write)}.")

    app.run_worker(work, group="clipboard")  # type: ignore[arg-type]


def copied(text: str, write: Callable[[str], bool]) -> str:
    """Copies a text by a local tool, else tmux, else the terminal itself (OSC 52), else to a file; returns how, as in
    "with wl-copy". A terminal does not answer whether it took a sequence, so that is said. May take seconds. `write`
    writes an escape sequence to the terminal; False = there is none. Raises LocalspecError if no way worked."""
    for tool in tools():
        if _run(tool, text):
            return f"with {tool[0]}"
    if "TMUX" in os.environ:
        if _run(_TMUX, text):
            return "to tmux, which hands it to your terminal if that allows it"
    elif (sequence := terminal_sequence(text)) is not None and write(sequence):
        return "through the terminal, if that allows it"
    path = paths.data_dir() / "copied.txt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise LocalspecError(f"Nothing could be copied: no tool, no terminal, and {path}: {error.strerror}.") from None
    return f"to {path}"


def tools() -> Iterator[list[str]]:
    """Commands that take a text on standard input and belong to the screen this person looks at."""
    if "SSH_CONNECTION" in os.environ:
        return  # the clipboard of the machine far away would be of no use
    candidates: list[tuple[bool, list[str]]] = [
        (sys.platform == "darwin", ["pbcopy"]),
        (sys.platform == "win32" or "WSL_DISTRO_NAME" in os.environ, ["clip.exe"]),
        ("WAYLAND_DISPLAY" in os.environ, ["wl-copy"]),
        ("DISPLAY" in os.environ, ["xclip", "-selection", "clipboard"]),
        ("DISPLAY" in os.environ, ["xsel", "--clipboard", "--input"]),
        ("TERMUX_VERSION" in os.environ, ["termux-clipboard-set"]),
    ]
    for usable, command in candidates:
        if usable and shutil.which(command[0]):
            yield command


def terminal_sequence(text: str) -> str | None:
    """OSC 52 for the terminal, wrapped where screen stands between; None = too long for terminals."""
    data = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")
    if len(data) > _LONGEST_SEQUENCE:
        return None
    sequence = f"\x1b]52;c;{data}\x07"
    if os.environ.get("TERM", "").startswith("screen"):
        return f"\x1bP{sequence}\x1b\\"
    return sequence


def _run(command: list[str], text: str) -> bool:
    encoding = "utf-16-le" if command[0] == "clip.exe" else "utf-8"
    try:
        # Output goes nowhere: xclip stays in the background and would hold a pipe open.
        done = subprocess.run(
            command,
            input=text.encode(encoding, "surrogatepass"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
