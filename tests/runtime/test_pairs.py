"""Pairs as they are loaded: refused before anything is, and never guessing what the target does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from localspec.errors import PairError
from localspec.runtime.engine import Engine
from localspec.types import SamplingParams
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write


def model(path: Path, count: int) -> Path:
    """A tiny model with so many tokens, those behind 260 being padding."""
    more = count - 260
    metadata = {
        **TINY_METADATA,
        "tokenizer.ggml.tokens": [*TINY_METADATA["tokenizer.ggml.tokens"], *(f"[PAD{i}]" for i in range(more))],
        "tokenizer.ggml.token_type": [*TINY_METADATA["tokenizer.ggml.token_type"], *[1] * more],
        "tokenizer.ggml.scores": [0] * count,
    }
    return write(path, gguf_bytes(metadata, tiny_tensors(count)))


def test_a_draft_with_more_tokens_never_guesses_them(tmp_path: Path) -> None:
    """A third of what the draft model would say is beyond the target's vocabulary."""
    target, draft = model(tmp_path / "target.gguf", 260), model(tmp_path / "draft.gguf", 388)
    settings: dict[str, Any] = {"drafter": "draft", "exact": "off", "context": 256, "threads": 1, "wide": False}
    with Engine.load(target, draft, **settings) as engine:
        sampling = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)
        generation = engine.generate("abc", sampling=sampling, seed=3, max_tokens=60)
        generation.text()
        assert generation.stats.drafted > 20
        assert max(generation.tokens) < 260
        context = engine.loaded.draft_context
        assert context is not None
        assert context.n_vocab == 260
        assert engine.loaded.draft_model is not None
        assert engine.loaded.draft_model.n_vocab == 388


def test_a_wrong_pair_is_refused_before_it_is_loaded(tmp_path: Path, tiny_target: Path) -> None:
    other = model(tmp_path / "other.gguf", 260)
    with pytest.raises(PairError, match=r"other\.gguf cannot draft for tiny-target-q8_0\.gguf: their tokenizers"):
        Engine.load(tiny_target, other, progress=lambda what, share: pytest.fail(f"{what}: something was loaded"))
