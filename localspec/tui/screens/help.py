"""Pages that explain: help (F1), with every key and command, and the doctor, who says why it is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localspec.chat.plain_text import pictured
from localspec.checks.doctor import Remark
from localspec.errors import LocalspecError
from localspec.remote.answerer import Answerer
from localspec.tui.screens.chat import Page
from localspec.tui.widgets.dialogs import ItemList, copy, say
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

    def body(self) -> ComposeResult:
        for row in SCREENS:
            load(row.home)
        with VerticalScroll(id="help"):
            yield Static(markup=False)

    def on_resize(self) -> None:
        width = self.size.width - _AROUND
        found = known()
        groups = [*_GROUPS, *sorted({name.partition(".")[0] for name in found} - set(_GROUPS))]
        named = {group: {name: found[name] for name in found if name.startswith(group + ".")} for group in groups}
        parts: list[str | tuple[str, str]] = []
        for group, rows in named.items():
            parts.append((f"{_GROUPS.get(group, group.capitalize())}\n", "bold"))
            parts += [
                _row(f"{shown(self.app, one):<16}", one.tooltip or one.description, width) for one in rows.values()
            ]
            parts.append("\n")
        parts.append(("Commands\n", "bold"))
        parts += [_row(f"{'/' + row.name + ' ' + row.usage:<18}", row.doc, width) for row in commands()]
        parts.append(_row(f"{'@path':<18}", "attach a text file; a long paste becomes an attachment by itself", width))
        parts += ["\n", ("Other keys\n", "bold")]
        parts.append(f"  {keys_file()} gives a binding other keys, by its name below:\n")
        parts.append('  [keys]\n  "chat.stop" = "escape,ctrl+g"\n\n')
        for rows in named.values():
            parts += [(f"  {name:<24} {shown(self.app, binding)}\n", "$text-muted") for name, binding in rows.items()]
        self.query_one("#help > Static", Static).update(Content.assemble(*parts))


def _row(name: str, doc: str, width: int) -> str:
    """A line of two columns; where the second is too narrow for its words, they go on beneath it."""
    indent = min(len(name) + 3, width // 3)
    return "\n".join(wrap(f"  {name} {doc}", width, subsequent_indent=" " * indent, break_long_words=False)) + "\n"


_LAST_LINES = 3  # lines that are shown of what a process wrote before it died
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

    def body(self) -> ComposeResult:
        yield Static("", id="verdict", markup=False)
        yield ItemList[Remark](id="findings")

    @work(exclusive=True, group="doctor")
    async def action_again(self) -> None:
        self.query_one("#verdict", Static).update("Examining ...")
        pane, use, answerer, findings = self.chats.pane, self.chats.context_use, self.session.answerer, list[Remark]()
        chat = None if pane is None else pane.chat_id

        def look() -> None:
            answers = self.session.archive.stats(chat)[-_LAST_ANSWERS:] if chat is not None else []
            findings.extend(examine(answerer, answers, 0 if use is None else use[0]))

        try:
            await asyncio.to_thread(look)
        except LocalspecError as error:
            findings.append(Remark("doctor", f"could not look further: {error.message}", error.hint))
        self._show(ordered(findings))

    on_mount = action_again

    @property
    def findings(self) -> Sequence[Remark]:
        return self.query_one("#findings", ItemList).items

    def _show(self, findings: list[Remark]) -> None:
        shown = self.query_one("#findings", ItemList)
        shown.show(findings, content_of)
        shown.highlighted = 0 if findings else None
        self.query_one("#verdict", Static).update(verdict(findings))

    def action_copy(self) -> None:
        finding: Remark | None = self.query_one("#findings", ItemList).item
        if finding is not None and finding.command:
            copy(self.app, finding.command, "Command")
        elif finding is not None:
            say(self, "There is no command for this one." if finding.advice else "All is well here.")

    on_option_list_option_selected = action_copy

    def action_report(self) -> None:
        copy(self.app, "\n".join(content_of(finding).plain for finding in self.findings), "Report")


def examine(answerer: Answerer, answers: Sequence[Mapping[str, Any]], context_use: int) -> Iterator[Remark]:
    """Everything there is to say: the last answers of the chat in front, which has `context_use` tokens, the models in
    use, the machine, the installation."""
    from localspec.checks.doctor import examine_answers, examine_machine, examine_machine_state

    yield from examine_answers(answers)
    found = answerer.look(context_use)
    if found is None:
        yield Remark("models", "none is loaded in this process, so there is little to see")
        yield from examine_machine_state()
        return
    yield from (Remark(**one) for one in found.use)
    yield from examine_machine_state(sum(path.stat().st_size for path in found.files))
    yield from (Remark(**one) for one in found.parts)
    if found.last_log:
        words = " | ".join(found.last_log[-_LAST_LINES:])
        yield Remark("last process", f"died, and the models were loaded again; it had written: {words}")
    yield from examine_machine(found.wide)


def ordered(findings: Iterable[Remark]) -> list[Remark]:
    return sorted(findings, key=lambda finding: not finding.advice)


def verdict(findings: Sequence[Remark]) -> Content:
    bad = [finding.name for finding in findings if finding.advice]
    if not bad:
        return Content(f"✓ {len(findings)} things looked at, nothing to mend.")
    return Content(pictured(f"! {len(bad)} {'thing' if len(bad) == 1 else 'things'} to look at: {', '.join(bad)}"))


def content_of(finding: Remark) -> Content:
    mark, style = ("!", "$warning bold") if finding.advice else ("✓", "$success")
    parts: list[Any] = [(mark, style), " ", (pictured(finding.name), "bold"), "  ", pictured(finding.value)]
    if finding.advice:
        parts += ["\n    ", pictured(finding.advice)]
    if finding.command:
        parts += ["\n    ", (pictured(finding.command), "$accent")]
    return Content.assemble(*parts)
