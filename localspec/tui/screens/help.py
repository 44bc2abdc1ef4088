"""Pages that explain: help (F1), with every key and command, and the doctor, who says why it is slow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.chat.plain_text import pictured
from localspec.checks.doctor import Finding
from localspec.errors import LocalspecError
from localspec.remote.answerer import Answerer
from localspec.tui.screens.chat import ChatScreen, Page
from localspec.tui.widgets.dialogs import say
from localspec.tui.widgets.programs import copy
from localspec.tui.widgets.registry import SCREENS, bind, commands, keys_file, known, load, shown

_AROUND = 6  # columns left and right of the text: the margin and the scroll bar
_GROUPS = {
    "chat": "In the chat",
    "write": "While you write",
    "message": "On a message (Ctrl+Up goes to one)",
    "open": "Screens",
    "app": "Everywhere",
}


class HelpScreen(Page):
    """Keys come from the bindings themselves, as remapped; nothing here can be out of date."""

    CSS_PATH = "help.tcss"
    TITLE = "Help"
    AUTO_FOCUS = "#help"

    def body(self) -> ComposeResult:
        for row in SCREENS:
            load(row.home)
        with VerticalScroll(id="help"):
            yield Static(markup=False)

    def on_resize(self) -> None:
        width = self.size.width - _AROUND
        text = Content.assemble(*self._keys(width), *_slash(width), *self._names())
        self.query_one("#help > Static", Static).update(text)

    def _keys(self, width: int) -> list[str | tuple[str, str]]:
        lines: list[str | tuple[str, str]] = []
        for group, rows in _grouped():
            lines.append((f"{_GROUPS.get(group, group.capitalize())}\n", "bold"))
            lines += [
                _row(f"{shown(self.app, one):<16}", one.tooltip or one.description, width) for one in rows.values()
            ]
            lines.append("\n")
        return lines

    def _names(self) -> list[str | tuple[str, str]]:
        """How to give a binding other keys, and what each is called there."""
        return [
            ("Other keys\n", "bold"),
            f"  {keys_file()} gives a binding other keys, by its name below:\n",
            '  [keys]\n  "chat.stop" = "escape,ctrl+g"\n\n',
            *[
                (f"  {name:<24} {shown(self.app, binding)}\n", "$text-muted")
                for _, rows in _grouped()
                for name, binding in rows.items()
            ],
        ]


def _grouped() -> list[tuple[str, dict[str, Binding]]]:
    """(first word of their names, {name: binding}) of all keys: the groups above first, each in its declared order."""
    found = known()
    groups = [*_GROUPS, *sorted({name.partition(".")[0] for name in found} - set(_GROUPS))]
    return [(group, {name: found[name] for name in found if name.startswith(group + ".")}) for group in groups]


def _row(name: str, doc: str, width: int) -> str:
    """A line of two columns; where the second is too narrow for its words, they go on beneath it."""
    indent = min(len(name) + 3, width // 3)
    return "\n".join(wrap(f"  {name} {doc}", width, subsequent_indent=" " * indent, break_long_words=False)) + "\n"


def _slash(width: int) -> list[str | tuple[str, str]]:
    lines: list[str | tuple[str, str]] = [("Commands\n", "bold")]
    lines += [_row(f"{'/' + row.name + ' ' + row.usage:<18}", row.doc, width) for row in commands()]
    attach = _row(f"{'@path':<18}", "attach a text file; a long paste becomes an attachment by itself", width)
    return [*lines, attach, "\n"]


_LAST_WORDS = 3  # lines that are shown of what a process wrote before it died
_LAST_ANSWERS = 50


class DoctorScreen(Page):
    """Findings, those with advice first; Enter or c copies the command."""

    CSS_PATH = "doctor.tcss"
    TITLE = "Doctor"
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("doctor.copy", "c", "copy", "Copy command", "Copy the command of this finding", show=True),
        bind(
            "doctor.report", "R", "report", "Copy all", "Copy the whole report, for a question or an issue", show=True
        ),
        bind("doctor.again", "r", "again", "Look again", "Examine everything again", show=True),
    ]

    def __init__(self, chats: ChatScreen) -> None:
        super().__init__(chats)
        self.findings: list[Finding] = []

    def body(self) -> ComposeResult:
        yield Static("", id="verdict", markup=False)
        yield OptionList(id="findings")

    def on_mount(self) -> None:
        self.query_one("#findings").focus()
        self.action_again()

    def action_again(self) -> None:
        self.query_one("#verdict", Static).update("Examining ...")
        pane, use = self.chats.pane, self.chats.context_use
        chat = None if pane is None else pane.chat_id
        self._examine(self.session.answerer, self.session.archive.stats, chat, 0 if use is None else use[0])

    @work(thread=True, exclusive=True, group="doctor")
    def _examine(self, answerer: Answerer, stats_of: Any, chat: int | None, use: int) -> None:
        findings: list[Finding] = []
        try:
            for finding in examine(answerer, stats_of(chat)[-_LAST_ANSWERS:] if chat is not None else [], use):
                findings.append(finding)  # noqa: PERF402 - what came before an error is kept
        except LocalspecError as error:
            findings.append(Finding("doctor", f"could not look further: {error.message}", error.hint))
        self.app.call_from_thread(self._show, ordered(findings))

    def _show(self, findings: list[Finding]) -> None:
        self.findings = findings
        options = self.query_one("#findings", OptionList)
        options.clear_options()
        options.add_options([Option(content_of(finding), id=str(i)) for i, finding in enumerate(findings)])
        if findings:
            options.highlighted = 0
        self.query_one("#verdict", Static).update(verdict(findings))

    def action_copy(self) -> None:
        index = self.query_one("#findings", OptionList).highlighted
        if index is None or index >= len(self.findings):
            return
        finding = self.findings[index]
        if finding.command:
            copy(self.app, finding.command, "Command")
        else:
            say(self, "There is no command for this one." if finding.advice else "All is well here.")

    on_option_list_option_selected = action_copy

    def action_report(self) -> None:
        copy(self.app, "\n".join(content_of(finding).plain for finding in self.findings), "Report")


def examine(answerer: Answerer, answers: Sequence[Mapping[str, Any]], context_use: int) -> Iterator[Finding]:
    """Everything there is to say: the last answers of the chat in front, which has `context_use` tokens, the models in
    use, the machine, the installation."""
    from localspec.checks.doctor import examine_machine, examine_machine_state
    from localspec.checks.speed import examine_answers

    yield from examine_answers(answers)
    found = answerer.look(context_use)
    if found is None:
        yield Finding("models", "none is loaded in this process, so there is little to see")
        yield from examine_machine_state()
        return
    yield from (Finding(**one) for one in found.use)
    yield from examine_machine_state(sum(path.stat().st_size for path in found.files))
    yield from (Finding(**one) for one in found.parts)
    if found.last_log:
        words = " | ".join(found.last_log[-_LAST_WORDS:])
        yield Finding("last process", f"died, and the models were loaded again; it had written: {words}")
    yield from examine_machine(found.wide)


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: not finding.advice)


def verdict(findings: Sequence[Finding]) -> Content:
    bad = [finding for finding in findings if finding.advice]
    if not bad:
        return Content(f"✓ {len(findings)} things looked at, nothing to mend.")
    names = ", ".join(finding.name for finding in bad)
    things = "thing" if len(bad) == 1 else "things"
    return Content(pictured(f"! {len(bad)} {things} to look at: {names}"))


def content_of(finding: Finding) -> Content:
    mark, style = ("!", "$warning bold") if finding.advice else ("✓", "$success")
    parts: list[Any] = [(mark, style), " ", (pictured(finding.name), "bold"), "  ", pictured(finding.value)]
    if finding.advice:
        parts += ["\n    ", pictured(finding.advice)]
    if finding.command:
        parts += ["\n    ", (pictured(finding.command), "$accent")]
    return Content.assemble(*parts)
