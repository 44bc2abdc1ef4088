"""Trial: wide kernels give the same bits at widths to 32 and lengths to 4,000, with 1 or 2 threads, for every type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from localspec.llama.cache.context import Context
from localspec.llama.exact import wide
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.types import Feed, Tokens
from tests.llama.conftest import chain, same_bits
from tests.quantised import quantize

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(not wide.available(), reason=f"no localspec_wide: {wide.status().reason}"),
]

TYPES = (
    "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ2_0",
    "IQ3_S", "F16", "BF16",
)  # fmt: skip
LENGTHS = (100, 255, 256, 513, 1500, 2500, 4000)
WIDTHS = range(2, 33)


@pytest.fixture(params=TYPES)
def wide_model(request: pytest.FixtureRequest, tiny_target: Path, tmp_path: Path) -> Iterator[Model]:
    """The bundled target in one type; every matrix of it runs on wide kernels."""
    with Model.load(quantize(tiny_target, tmp_path / "model.gguf", request.param), kernels="wide") as model:
        yield model


def _text(model: Model) -> Tokens:
    return np.random.default_rng(3).integers(64, model.n_vocab - 64, 4100).astype(np.int32)


@pytest.mark.parametrize("cache", ["f16", "q8_0"])
def test_bits_at_every_width_and_length(wide_model: Model, cache: Literal["f16", "q8_0"]) -> None:
    text = _text(wide_model)
    first: dict[int, list[bytes]] = {}
    for threads, slots in ((1, 1), (2, 1), (2, 2)):
        settings = ContextSettings(n_ctx=4096, threads=threads, n_slots=slots, type_k=cache, type_v=cache)
        context = Context(wide_model, settings)
        slot = slots - 1
        for length in LENGTHS:
            context.prefill(slot, text[:length], length)
            alone = [
                context.decode([Feed(slot, text[: length + i], length)])[0][0].tobytes() for i in range(max(WIDTHS))
            ]
            assert alone == first.setdefault(length, alone), (threads, slots, length)
            for width in WIDTHS:
                draft = text[length : length + width - 1]
                (rows,) = context.decode([Feed(slot, text[:length], length, draft, chain(width - 1))])
                differ = [i for i in range(width) if rows[i].tobytes() != alone[i]]
                assert differ == [], (threads, slots, length, width)
        context.close()


def test_bits_of_two_slots_in_one_pass(wide_model: Model) -> None:
    text = _text(wide_model)
    settings = ContextSettings(n_ctx=4096, threads=2, n_slots=2)
    together, alone = Context(wide_model, settings), Context(wide_model, ContextSettings(n_ctx=4096, threads=2))
    for length, other in ((100, 3900), (513, 40), (2500, 1700)):
        starts = {0: text[:length], 1: text[4000 - other : 4000]}
        for slot, tokens in starts.items():
            together.prefill(slot, tokens, len(tokens))
        for width in (1, 2, 5, 8, 16):
            draft = text[4000 : 4000 + width - 1]
            feeds = [Feed(slot, tokens, len(tokens), draft, chain(width - 1)) for slot, tokens in starts.items()]
            found = [np.array([rows[i] for i in range(width)]) for rows in together.decode(feeds)]
            for tokens, rows in zip(starts.values(), found, strict=True):
                alone.forget(0)
                for i in range(width):
                    history = np.concatenate([tokens, draft[:i]])
                    (one,) = alone.decode([Feed(0, history, len(tokens))])
                    assert same_bits(one[0], rows[i]), (length, other, width, i)
    together.close()
    alone.close()
