"""What an OpenAI-style server is asked: messages and settings as the body of a request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from localspec.chat.reply.thinking import joined
from localspec.chat.turn import Message
from localspec.settings import settings_of
from localspec.types import SamplingParams

_BANNED = -100.0
"""The bias that bans a token, as OpenAI says; JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One answer to ask for."""

    messages: Sequence[Message]
    """The conversation, system message included; ends with the user's turn."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    """With the same number the same question gets the same answer; empty = a fresh one each time."""
    max_tokens: int | None = None
    """An answer ends after so many tokens; empty = when the model ends it, or the context is full."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it, with commas between them."""
    prefix: str = ""
    """What the answer already says: it is continued, and only what is new comes back."""
    reasoning: str = ""
    """What it has thought already; the thinking goes on if it says nothing yet."""
    thinking: bool | None = None
    """Whether the model thinks before it answers, where its chat template can switch that; default = as it likes."""

    def body(self, model: str) -> dict[str, Any]:
        """The request's JSON. Sampling settings at localspec's own defaults are left to the server."""
        messages = [{"role": message.role, "content": message.content} for message in self.messages]
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_fields(self.sampling, changed=True),
        }
        body |= {name: getattr(self, name) for name in ("seed", "max_tokens") if getattr(self, name) is not None}
        if self.stop:
            body["stop"] = list(self.stop)
        if self.thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self.thinking}
        begun = joined(self.reasoning, self.prefix)
        if begun:  # vLLM's words; llama-server continues a last assistant message by itself
            body["messages"] = [*messages, {"role": "assistant", "content": begun}]
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body


def sampling_fields(sampling: SamplingParams, *, more: bool = True, changed: bool = False) -> dict[str, Any]:
    """Sampling settings as fields of a request.

    Args:
        more: those beyond OpenAI's, too.
        changed: only those that are not at localspec's own default.
    """
    fields: dict[str, Any] = {}
    for row in settings_of(SamplingParams):
        value = getattr(sampling, row.name)
        if (more or row.declared.openai) and not (changed and value == row.default):
            fields[row.api_name] = value
    if sampling.logit_bias:
        biases = sampling.logit_bias
        fields["logit_bias"] = {str(token): _BANNED if bias == -math.inf else bias for token, bias in biases}
    return fields
