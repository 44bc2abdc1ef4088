"""A small model with random weights, gpt-oss's marks and its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write

TEMPLATE = Path(__file__).parent.parent / "data" / "templates" / "openai-gpt-oss-120b.jinja"
MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>")


def write_model(path: Path) -> Path:
    """Writes the model: bytes and gpt-oss's marks are its tokens."""
    plain: list[str] = TINY_METADATA["tokenizer.ggml.tokens"]
    types: list[int] = TINY_METADATA["tokenizer.ggml.token_type"]
    tokens = [*plain, *MARKS]
    metadata: dict[str, Any] = {
        **TINY_METADATA,
        "general.name": "harmony",
        "llama.context_length": 8192,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [*types, *[3] * len(MARKS)],
        "tokenizer.ggml.scores": [0] * len(tokens),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.eos_token_id": tokens.index("<|return|>"),
        "tokenizer.chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }
    return write(path, gguf_bytes(metadata, tiny_tensors(len(tokens))))
