"""Random-weight block heads on targets of today's shapes: they load, draft, and the text stays plain's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.heads import blocks as heads
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, SamplingParams
from tests.drafters import dflash_files as files
from tests.llama import architectures

LAYERS = (1, 2, 3)


def head(folder: Path, target: Path, kind: str, **facts: Any) -> Path:
    metadata = files.facts(kind, inputs=LAYERS) | facts
    return files.write(folder / "head.gguf", target, metadata, files.weights(kind))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("llama", "dspark"),
        ("qwen3", "dflash"),
        ("qwen35", "dflash2"),
        ("gemma4", "dspark"),
        ("lfm2", "dspark"),
        ("qwen3moe", "dflash2"),
    ],
)
def test_the_text_is_plains(architecture: str, kind: str, tmp_path: Path) -> None:
    sizes = {"attention__head_count_kv": [2, 0, 2, 0]} if architecture == "lfm2" else {}
    target = architectures.write(architecture, tmp_path, layers=4, **sizes)
    path = head(tmp_path, target, kind)
    with Engine.load(
        target, heads=[path], threads=1, exact="strict", context=256, max_draft_tokens=4, corpus="off"
    ) as engine:
        for temperature in (0.0, 1.0):
            how: dict[str, Any] = {"sampling": SamplingParams(temperature=temperature), "seed": 3, "max_tokens": 16}
            plain, drafted = (
                engine.generate("Count to ten", drafter=drafter, ignore_end=True, **how) for drafter in ("none", kind)
            )
            assert drafted.text() == plain.text()
            assert drafted.stats.drafted > 8


def test_keys_turned_by_sections_give_the_same_rows(tmp_path: Path) -> None:
    """As in heads for targets that see images: text is placed by one number, written three times."""
    target = architectures.write("qwen35", tmp_path, layers=4)
    history = np.arange(300, 340, dtype=np.int32)
    found: list[Float32Array] = []
    with Model.load(target) as model:
        for facts in ({}, {"rope.dimension_sections": [32, 0, 0, 0]}):
            path = head(tmp_path, target, "dflash", **facts)
            loaded = heads.load_dflash(path, model.header)
            context = Context(model, ContextSettings(n_ctx=256, threads=1, rollback=4), tap=loaded.tap)
            context.prefill(0, history, len(history))
            drafter = loaded.attach(context, 1)
            blocks = drafter._context
            assert isinstance(blocks, heads.BlockContext)
            blocks.begin()
            paths = [history, np.append(history, [5]).astype(np.int32)]
            for said in [blocks.decode([Feed(0, tokens, len(tokens))])[0] for tokens in paths]:
                found.append(said[0].copy())  # noqa: PERF401
            drafter.close()
            loaded.close()
            context.close()
    np.testing.assert_allclose(found[0], found[2], atol=1e-4)
    np.testing.assert_allclose(found[1], found[3], atol=1e-4)
    assert np.abs(found[0] - found[1]).max() > 0.1
