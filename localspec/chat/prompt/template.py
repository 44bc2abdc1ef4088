"""Messages to prompt text, by the chat template inside the GGUF (Jinja, sandboxed: a model file is not trusted)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from localspec.chat.prompt.marks import marks_of
from localspec.chat.prompt.sealed import BREAK, json_text, opened
from localspec.chat.turn import Message
from localspec.errors import ModelError, UsageError, reason
from localspec.llama.special_tokens import SpecialToken
from localspec.types import Prompt

if TYPE_CHECKING:
    from jinja2 import nodes
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from localspec.llama.model import Model

_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What an expression in a template may raise besides Jinja's own errors."""


class ChatTemplate:
    """A compiled chat template."""

    def __init__(
        self, source: str | None, bos: str = "", eos: str = "", specials: Callable[[], tuple[SpecialToken, ...]] = tuple
    ) -> None:
        """
        Args:
            source: Jinja text of `tokenizer.chat_template`; None = the model has none.
            specials: gives the special tokens of its vocabulary, when a prompt is made.
        """
        self.exists = source is not None
        """Whether the model has a template, be it broken."""
        self.fault = ""
        """Why it cannot be used, in a sentence; "" = it can."""
        self.source = source or ""
        """The Jinja text; "" = there is none."""
        self._template = None
        self._bos, self._eos, self._specials = bos, eos, specials
        self.has_channels = "<|channel|>analysis<|message|>" in self.source
        """Whether answers are messages with headers, as gpt-oss writes them."""
        if source is None:
            return
        import jinja2

        try:
            self._template = environment().from_string(source.replace(BREAK, 2 * BREAK))
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            self.fault = f"The model's chat template is broken: {reason(error)}."

    @classmethod
    def of(cls, model: Model) -> ChatTemplate:
        bos, eos = model.text_of(model.bos), model.text_of(model.eos)
        return cls(model.chat_template, bos, eos, lambda: model.special_tokens)

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The text of `prompt`, which does not tell the template's marks from those in messages."""
        return self.prompt(messages, **variables).text

    def prompt(self, messages: Sequence[Message], *, beginning: str = "", **variables: Any) -> Prompt:
        """The prompt, ending where the assistant's answer begins, or goes on.

        Only what the template writes may be special tokens: a mark in messages and variables has a break in it.

        Args:
            beginning: of the answer.
            variables: more for the template.

        Raises:
            ModelError: the model has no template, or a broken one.
            UsageError: the template refuses these messages, or fails on them.
        """
        if self.fault:
            raise ModelError(self.fault, "`localspec run --raw` completes plain text without it.")
        if self._template is None:
            raise ModelError("The model has no chat template.", "Use `localspec run --raw` to complete plain text.")
        import jinja2

        if self.has_channels:
            from localspec.chat.reply.harmony import unheaded  # only gpt-oss needs it

            messages = [unheaded(message) for message in messages]
        marks, now = marks_of(self._specials(), self.source), datetime.now()
        # The date under the names that llama.cpp gives templates: those of Llama 3 and firefunction ask for them.
        today = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
        shown: list[dict[str, Any]] = []
        try:
            for message in messages:
                said = ("content", "reasoning_content", "thinking") if message.role == "assistant" else ()
                parts = message.as_dict().items()
                sealed = {key: marks.sealed_in(value, by_model=key in said) for key, value in parts if key != "role"}
                shown.append({"role": message.role, **sealed})
            given = {name: marks.sealed_in(value) for name, value in (today | variables).items()}
            text = self._template.render(
                messages=shown,
                bos_token=self._bos,
                eos_token=self._eos,
                **{"add_generation_prompt": True, "tools": None, **given},
            )
        except jinja2.TemplateError as error:
            raise UsageError(f"The model's chat template refuses these messages: {error}.") from None
        except _FAILURES as error:
            raise UsageError(f"The model's chat template fails on these messages: {error}.") from None
        return opened(text + marks.sealed(beginning, by_model=True))


@cache
def environment() -> ImmutableSandboxedEnvironment:
    """In which templates run; takes 30 ms, so only when a model is loaded."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}`: templates mark with it, for trainers, what the model says. In a prompt it is its content.

        As `transformers` has it, without what it counts.
        """

        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return made


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter `tojson` as models have seen its output in training; Jinja's own escapes for HTML and sorts."""
    if indent is not None:
        indent = max(0, min(indent, 16))  # a template is not trusted with memory
    if isinstance(value, Iterator):  # what Jinja's `map` and `select` return
        value = list(value)
    return json_text(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
