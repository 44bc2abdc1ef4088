"""Chats as tokens: the template of the pair, and how much each token counts in the loss."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizer import BOS, END, ROLES
from tokenizers import Tokenizer

TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- if message['role'] in ['system', 'user', 'assistant', 'tool'] -%}"
    "{{- '<|' + message['role'] + '|>' -}}"
    "{%- else -%}"
    "{{- '<|system|>' -}}"
    "{%- endif -%}"
    "{{- message['content'] -}}{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def prompt_ids(tokenizer: Tokenizer, messages: Sequence[dict[str, str]]) -> list[int]:
    """The tokens of a conversation up to the assistant's turn."""
    ids = [BOS]
    for message in messages:
        ids.append(ROLES.get(message["role"], ROLES["system"]))
        ids.extend(tokenizer.encode(message["content"]).ids)
        ids.append(END)
    ids.append(ROLES["assistant"])
    return ids


def weighted(tokenizer: Tokenizer, messages: Sequence[dict[str, str]], others: float) -> tuple[list[int], list[float]]:
    """The tokens of a whole chat and their weights: 1 for the assistant's, `others` for the rest."""
    ids = [BOS]
    weights = [0.0]
    texts = tokenizer.encode_batch([message["content"] for message in messages])
    for message, text in zip(messages, texts, strict=True):
        weight = 1.0 if message["role"] == "assistant" else others
        ids.append(ROLES[message["role"]])
        weights.append(0.0)
        ids.extend(text.ids)
        weights.extend([weight] * len(text.ids))
        ids.append(END)
        weights.append(1.0 if weight == 1.0 else 0.0)
    return ids, weights
