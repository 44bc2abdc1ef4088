"""Small models with random weights whose vocabulary is bytes and the marks of a family, and with its chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write

HARMONY = Path(__file__).parent.parent / "data" / "templates" / "openai-gpt-oss-120b.jinja"
MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")
CONTROL, USER_DEFINED = 3, 4


def write_marked(path: Path, template: str, marks: Sequence[str], kind: int, end: str = "</s>") -> Path:
    """Writes a model in which each of the marks is a token of a kind; `end` ends an answer."""
    plain: list[str] = TINY_METADATA["tokenizer.ggml.tokens"]
    types: list[int] = TINY_METADATA["tokenizer.ggml.token_type"]
    tokens = [*plain, *marks]
    metadata: dict[str, Any] = {
        **TINY_METADATA,
        "llama.context_length": 8192,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*types, *[kind] * len(marks)],
        "tokenizer.ggml.scores": [0] * len(tokens),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.eos_token_id": tokens.index(end),
        "tokenizer.chat_template": template,
    }
    return write(path, gguf_bytes(metadata, tiny_tensors(len(tokens))))


def write_harmony(path: Path) -> Path:
    """Writes a model of gpt-oss's kind."""
    return write_marked(path, HARMONY.read_text(encoding="utf-8"), MARKS, CONTROL, "<|return|>")
