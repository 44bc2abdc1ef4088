"""The trained DSpark and DFlash heads: they are right as often as they were, and only on what they were trained on."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from localspec.drafters.block_rows import IndependentRows, MarkovRows
from localspec.llama.states import States
from localspec.runtime.engine import Engine
from localspec.runtime.heads import kind_of
from localspec.types import SamplingParams
from tests.drafters.shipped_heads import SHIPPED

PROMPTS = [
    "<|user|>Copy this: On May 12 the quick fox met Ada Lopez near Paris, and they ate 3 apples.<|end|><|assistant|>",
    "<|user|>John has 12 apples and buys 3 more each day. How many has he after 5 days?<|end|><|assistant|>",
    "<|user|>Write a function that adds two numbers.<|end|><|assistant|>",
    "<|user|>Sort these words: pear, apple, fig, grape<|end|><|assistant|>",
]


def accepted(target: Path, head: Path) -> float:
    """Guesses accepted in a pass that carried a draft, of chains of 5 at temperature 0."""
    method, found = kind_of(head).method, []
    with Engine.load(target, heads=[head], threads=1, drafter=method, max_draft_tokens=5, corpus="off") as engine:
        for prompt in PROMPTS:
            answer = engine.generate(prompt, sampling=SamplingParams(temperature=0.0), max_tokens=48, ignore_end=True)
            answer.text()
            found.append((answer.stats.accepted, answer.stats.draft_passes))
    hits, passes = (sum(numbers) for numbers in zip(*found, strict=True))
    assert passes > 20
    return hits / passes


@pytest.mark.parametrize(("method", "rows", "least"), [("dspark", MarkovRows, 1.2), ("dflash", IndependentRows, 0.8)])
def test_a_head_is_right_on_its_own_features_alone(
    method: str,
    rows: type[MarkovRows] | type[IndependentRows],
    least: float,
    tiny_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What goes into the layer before is much like it, and costs a third; rows of the next position are no use."""
    right = accepted(tiny_target, SHIPPED[method])
    assert right > least
    data = SHIPPED[method].read_bytes()
    layers = [struct.pack("<IIQ3i", 9, 5, 3, *numbers) for numbers in ((1, 3, 5), (0, 2, 4))]
    assert data.count(layers[0]) == 1
    (tmp_path / "shifted.gguf").write_bytes(data.replace(*layers))
    assert accepted(tiny_target, tmp_path / "shifted.gguf") < right * 2 / 3, "features of the layers before"
    row, read = rows.row, States.read
    with monkeypatch.context() as patch:
        patch.setattr(rows, "row", lambda self, block, level, previous: row(self, block, level + 1, previous))
        assert accepted(tiny_target, SHIPPED[method]) < right / 2, "rows of the positions after"
    monkeypatch.setattr(States, "read", lambda *given: 0 * read(*given))
    assert accepted(tiny_target, SHIPPED[method]) < right / 2, "no features"
