"""One message: who, the thinking folded, the body, and a line of figures. Focus it for its keys."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import ActiveBinding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.message import Message as TextualMessage
from textual.style import Style
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Collapsible, Static, TabPane

from localspec.chat.archive.message import StoredMessage
from localspec.chat.plain_text import counted_lines, plain_text
from localspec.remote.answerer import AnswerPart
from localspec.tui.talk.session import Session
from localspec.tui.widgets.answer_text import AnswerText
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.registry import VIEWS, bind, load

MARKDOWN = "markdown"  # the view an answer has unless another is chosen
_WORD_SECONDS = 0.25  # a letter that comes sooner after another makes a word of both


class Figures(Static):
    """The line below an answer; a click on it looks at answers in another way, as the key does."""

    async def on_click(self) -> None:
        await self.run_action("screen.look")


class Bubble(Vertical, can_focus=True):
    """Shows a `StoredMessage`; what its keys do is the chat screen's business."""

    BINDINGS: ClassVar[list[BindingType]] = [
        bind("message.edit", "e", "screen.edit", "Edit", "Edit it: yours is sent again, an answer kept", show=True),
        bind("message.regenerate", "r", "screen.regenerate", "Again", "Answer once more, beside this one", show=True),
        bind("message.continue", "o", "screen.go_on", "Continue", "Let the answer go on where it ended"),
        bind("message.copy", "c", "screen.copy", "Copy", "Copy this message", show=True),
        bind("message.copy_code", "k", "screen.copy_code", "Code", "Copy its code; asks which block", show=True),
        bind("message.branch", "b", "screen.branch", "Branch", "A new chat with the messages up to this one"),
        bind("message.previous", "left", "screen.sibling(-1)", "Other", "Previous version of this message"),
        bind("message.next", "right", "screen.sibling(1)", "Other", "Next version of this message"),
        bind(
            "message.delete",
            "delete,shift+d",
            "screen.delete_message",
            "Delete",
            "Delete it and what follows",
            show=True,
        ),
        bind("message.thinking", "t", "toggle_thinking", "Thinking", "Show or fold the thinking"),
        bind("message.up", "up", "screen.walk(-1)", "Up", "Message above"),
        bind("message.down", "down", "screen.walk(1)", "Down", "Message below"),
        bind("message.write", "enter,i", "screen.write", "Write", "Back to the input"),
    ]

    class Folded(TextualMessage):
        """The thinking was shown or folded by hand."""

    def __init__(
        self, session: Session, message: StoredMessage, view: str = MARKDOWN, summary: str | None = None
    ) -> None:
        """`summary`: the model's view begins here, with this summary of what came before; None = it does not."""
        super().__init__(classes=message.role)
        self._summary = summary
        self.message = message
        self._view = view
        self._session, self._fold = session, session.preferences.fold_thinking
        self._thinking_text = plain_text(message.reasoning)
        self._body: Any = None
        self._typed: Timer | None = None  # runs while a letter waits for another
        self._key: ActiveBinding | None = None  # what the waiting letter would do, if none comes
        self._letter = ""

    def compose(self) -> ComposeResult:
        if self._summary is not None:
            yield Seam(self._summary)
        yield Static(self._head(), classes="head")
        if self.message.role == "user":
            named = (f"+ {plain_text(one.name)} ({counted_lines(one.content)})" for one in self.message.attachments)
            lines = [plain_text(self.message.content), *named]
            yield Static(Content("\n".join(line for line in lines if line)), classes="said")
            return
        if self._thinking_text.strip():
            yield self._make_thinking()
        yield self._make_body()
        self._foot = Figures(classes="foot")
        self._foot.tooltip = "Click: where each token came from"
        self._show_figures()
        yield self._foot

    @property
    def text(self) -> AnswerText | None:
        """The answer as Markdown; None = it is looked at in another way, or it is the user's."""
        return self._body if isinstance(self._body, AnswerText) else None

    def forget(self) -> None:
        """It is far from what is seen: Textual need not keep what it has drawn, which takes far more than the text."""
        for widget in (self, self._body):
            if widget is not None:
                widget._styles_cache.clear()  # refresh() would note a number for each line

    def on_unmount(self) -> None:
        self.forget()  # what Textual has drawn of a widget outlives it, in the cache of a method

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Asks for no second layout, as Textual would for each new height: nothing else depends on it."""
        return super()._size_updated(size, virtual_size, container_size, layout=False)

    async def extend(self, part: AnswerPart) -> None:
        if part.thinking:
            self._thinking_text += plain_text(part.thinking)
            await self._show_thinking()
        await self._body.extend(part)

    async def settle(self, message: StoredMessage) -> None:
        self.message = message
        self._thinking_text = plain_text(message.reasoning)
        if message.role == "assistant":
            await self._show_thinking()
            await self._body.settle(message)
        self.renew(message)

    def renew(self, message: StoredMessage) -> None:
        """Shows new facts around a body that stays: siblings, state, figures."""
        self.message = message
        self.query_one(".head", Static).update(self._head())
        if message.role == "assistant":
            self._show_figures()

    async def mark(self, summary: str | None) -> None:
        """Shows, or no longer, that the model's view begins here; `summary` as above."""
        if summary != self._summary:
            self._summary = summary
            await self.query(Seam).remove()
            if summary is not None:
                await self.mount(Seam(summary), before=0)

    async def look(self, view: str) -> None:
        """Shows the body in another way: `markdown`, or a row of `registry.VIEWS`."""
        if view == self._view or self.message.role == "user":
            return
        self._view = view
        await self._body.remove()
        await self.mount(self._make_body(), before=self._foot)

    # ---- letters

    async def on_key(self, event: events.Key) -> None:
        """A letter alone is one of the message's keys; letters in a row are a word, and words belong to the input."""
        key = self.screen.active_bindings.get(event.key)
        if event.character is None or not event.is_printable:
            await self._act()
            if key is not None and key.node is self:  # now: on its way to the app letters after it would be faster
                event.stop()
                event.prevent_default()
                await self.app.run_action(key.binding.action, self)
            return
        event.stop()
        event.prevent_default()
        if self.screen.focused is not self:  # on its way here when the input took over
            self._write(event.character)
        elif self._key is None and key is not None and key.node is self:
            self._key, self._letter = key, event.character
            self._typed = self.set_timer(_WORD_SECONDS, self._act)
        else:
            text = self._letter + event.character
            self._forget_letter()
            self._write(text)

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._forget_letter()
        self._write("").post_message(events.Paste(event.text))

    def on_blur(self) -> None:
        self._forget_letter()

    on_descendant_blur = on_blur

    async def _act(self) -> None:
        key = self._key
        self._forget_letter()
        if key is not None:
            await self.app.run_action(key.binding.action, self)

    def _forget_letter(self) -> None:
        if self._typed is not None:
            self._typed.stop()
        self._typed = self._key = None
        self._letter = ""

    def _write(self, text: str) -> Composer:
        """At once and not by a message: letters that come after must not be faster."""
        pane = next(node for node in self.ancestors if isinstance(node, TabPane))
        composer = pane.query_exactly_one(Composer)
        self.screen.set_focus(composer)
        composer.insert(text)
        return composer

    def _make_thinking(self) -> Collapsible:
        thoughts = Static(Content(self._thinking_text), classes="thoughts")
        return Collapsible(thoughts, title="Thinking", collapsed=self._fold, classes="thinking")

    async def _show_thinking(self) -> None:
        shown = self.query(".thoughts").results(Static)
        if (thoughts := next(iter(shown), None)) is not None:
            thoughts.update(Content(self._thinking_text))
        elif self._thinking_text.strip():
            await self.mount(self._make_thinking(), before=self._body)

    def action_toggle_thinking(self) -> None:
        for part in self.query(Collapsible):
            part.collapsed = not part.collapsed

    def _make_body(self) -> Widget:
        home = next((row.home for row in VIEWS if row.name == self._view), None)
        self._body = AnswerText(self.message) if home is None else load(home)(self._session, self.message)
        return cast("Widget", self._body)

    def _show_figures(self) -> None:
        said = figures(self.message)
        self._foot.update(Content(" · ".join(said)))
        self._foot.display = bool(said)

    def _head(self) -> Content:
        message = self.message
        name = "You" if message.role == "user" else plain_text(message.model) or "Answer"
        parts: list[Any] = [(name, "bold")]
        if len(message.siblings) > 1:
            parts += [
                "  ",
                ("◂", Style.from_meta({"@click": f"screen.sibling_of({message.id}, -1)"})),
                f" {message.sibling_number}/{len(message.siblings)} ",
                ("▸", Style.from_meta({"@click": f"screen.sibling_of({message.id}, 1)"})),
            ]
        return Content.assemble(*parts)


def figures(message: StoredMessage) -> list[str]:
    said = {"stopped": ["stopped"], "error": ["failed"]}.get(message.state, [])
    if message.note:
        said.append(plain_text(message.note))
    stats = message.stats
    if message.state != "streaming" and stats.get("generated_tokens"):
        said.append(f"{stats['generated_tokens']} tokens")
        if stats.get("tokens_per_second"):
            said.append(f"{stats['tokens_per_second']:.0f} tokens/s")
        if stats.get("mean_accepted_length", 1) > 1:
            said.append(f"mean accepted length {stats['mean_accepted_length']:.1f}")
    return said


class Seam(Vertical):
    """Above a message: the model sees a summary of what came before, or nothing of it."""

    DEFAULT_CSS = """
    Seam { height: auto; color: $text-warning; margin-bottom: 1; }
    Seam Collapsible, Seam CollapsibleTitle { width: 1fr; height: auto; padding: 0; }
    Seam Contents { padding: 0 0 0 2; }
    Seam .summary { height: auto; color: $text-muted; }
    """

    def __init__(self, summary: str) -> None:
        """`summary`: what the model is told instead; "" = nothing."""
        super().__init__()
        self._summary = plain_text(summary)

    def compose(self) -> ComposeResult:
        if self._summary:
            text = Static(Content(self._summary), classes="summary")
            yield Collapsible(text, title="The model sees a summary of what stands above")
        else:
            yield Static(Content("The model does not see what stands above."))
