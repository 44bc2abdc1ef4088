"""Messages to prompt text, by the chat template inside the GGUF (Jinja, sandboxed: a model file is not trusted)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localspec.errors import ModelError, UsageError

ROLES = ("system", "user", "assistant", "tool")
_FAILURES = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What an expression in a template may raise besides Jinja's own errors."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """One of `ROLES`."""
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise UsageError(f"A message has role {self.role!r}; it must be one of {', '.join(ROLES)}.")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str | None, bos: str = "", eos: str = "") -> None:
        """
        Args:
            source: Jinja text of `tokenizer.chat_template`; None = the model has none.
            bos, eos: texts of the model's begin- and end-of-sequence tokens.

        Raises:
            ModelError: the template cannot be compiled.
        """
        self._template = None
        self._bos, self._eos = bos, eos
        if source is None:
            return
        import jinja2  # 30 ms, only when a model is loaded
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            raise ModelError(
                f"The model's chat template is broken: {error}.", "Use a file with a working one."
            ) from None

    @property
    def exists(self) -> bool:
        """Whether the model has a template."""
        return self._template is not None

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt, ending where the assistant's answer begins.

        Raises:
            ModelError: the model has no template.
            UsageError: the template refuses these messages, or fails on them.
        """
        if self._template is None:
            raise ModelError("The model has no chat template.", "Use `localspec run --raw` to complete plain text.")
        import jinja2

        try:
            return self._template.render(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=True,
                bos_token=self._bos,
                eos_token=self._eos,
                **variables,
            )
        except jinja2.TemplateError as error:
            raise UsageError(f"The model's chat template refuses these messages: {error}.") from None
        except _FAILURES as error:
            raise UsageError(f"The model's chat template fails on these messages: {error}.") from None


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)
