"""Whether and how hard the model shall think, by the names that servers have for it: variables of the chat template."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from localspec.server.chat.fields import Body


class ReasoningField(Body):
    """How to think, in an object."""

    effort: str | None = None
    enabled: bool | None = None
    exclude: Any = Field(default=None, description="Accepted and not used: thoughts are always shown.")
    max_tokens: Any = Field(default=None, description="Accepted and not used: the request's limit holds.")


class ThinkingField(Body):
    """Whether to think, in an object."""

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Any = Field(default=None, description="Accepted and not used: the request's limit holds.")


class ThinkingFields(Body):
    """Fields about thinking. Templates that do not know the variables do not use them."""

    reasoning_effort: str | None = Field(
        default=None, description="For chat templates that know it; none = no thoughts."
    )
    reasoning: bool | str | ReasoningField | None = Field(default=None, description="An effort, or whether to think.")
    thinking: bool | ThinkingField | None = Field(default=None, description="Whether to think.")
    enable_thinking: bool | None = Field(default=None, description="Whether to think.")

    def thought(self) -> dict[str, Any]:
        """`enable_thinking` and `reasoning_effort` for the chat template, where something is said of them."""
        reasoning, thinking = self.reasoning, self.thinking
        effort = self.reasoning_effort
        enabled = self.enable_thinking
        if enabled is None and thinking is not None:
            enabled = thinking if isinstance(thinking, bool) else thinking.type != "disabled"
        if isinstance(reasoning, ReasoningField):
            effort = effort or reasoning.effort
            enabled = reasoning.enabled if enabled is None else enabled
        elif isinstance(reasoning, bool):
            enabled = reasoning if enabled is None else enabled
        else:
            effort = effort or reasoning
        if effort is not None and enabled is None:
            enabled = effort != "none"
        found = {"enable_thinking": enabled, "reasoning_effort": None if effort == "none" else effort}
        return {name: value for name, value in found.items() if value is not None}
