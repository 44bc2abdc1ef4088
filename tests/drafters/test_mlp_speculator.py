"""MLP speculators: the published layout, tied and not, and files for other targets. Texts: `test_medusa`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from localspec.drafters.heads import head as heads
from localspec.drafters.heads.final_state import MlpContext, SpeculatorShape, load_mlp, read_mlp
from localspec.engine.interfaces import History
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.types import Feed, Noise, SamplingParams
from tests.drafters.made_heads import speculator, speculator_says, write
from tests.fakes import draft_request

FILE = "model.safetensors"


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_the_state_so_far_and_the_last_token(
    tied: bool, tmp_path: Path, header: Header, target: Context
) -> None:
    arrays, config = speculator(3, tied)
    folder = write(tmp_path / "head", FILE, arrays, config)
    head, shape = heads.find(folder, header), SpeculatorShape.of(folder)
    assert head.name == "mlp"
    context = MlpContext(shape, read_mlp(folder, shape), target)
    tokens = target.model.tokenize("Tom has seven green boats and three", special=False, add_bos=True)
    target.decode([Feed(0, tokens[:-1], len(tokens) - 4)])
    assert target.states is not None
    state = target.states.read(0, -1, len(tokens) - 2, len(tokens) - 1)[0]
    last = int(tokens[-1])
    for path in ([last], [last, 7, 9], [last, 8], [last, 7], [last, 7, 9]):
        (row,) = context.decode([Feed(0, np.append(tokens[:-1], path).astype(np.int32), len(tokens))])
        expected = speculator_says(arrays, config, state, path)
        assert np.abs(row[0] - expected).max() < 0.04 * np.abs(expected).max()
    (row,) = context.decode([Feed(0, np.append(tokens, [7, 8, 9]).astype(np.int32), len(tokens))])
    assert np.isneginf(row[0]).all(), "further ahead than it was trained for"
    (draft,) = head.attach(target, 2).draft(
        [draft_request(0, History(tokens), 7, 7, SamplingParams(temperature=0.0), Noise(1))]
    )
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        before = [] if parent < 0 else paths[parent]
        paths.append([*before, token])
        assert token in np.argsort(-speculator_says(arrays, config, state, [last, *before]))[:6]
    assert draft.parents.tolist().count(-1) == 2, "as many as branches"
    assert 6 <= len(paths) <= 7, "both go on in two ways"


def test_heads_for_another_target_are_refused_with_the_difference(tmp_path: Path, header: Header) -> None:
    arrays, config = speculator(2, tied=True)
    for key, value, text in (
        ("emb_dim", 4096, "hidden size: 256 in the target, 4096 in the head"),
        ("vocab_size", 32000, "vocabulary: 4096 in the target, 32000 in the head"),
    ):
        path = write(tmp_path / key, FILE, arrays, config | {key: value})
        with pytest.raises(PairError, match=f"{key} cannot draft for tiny-target.*{text}"):
            heads.find(path, header)


def test_what_is_missing_or_wrong_is_named(tmp_path: Path, header: Header) -> None:
    arrays, config = speculator(2, tied=True)
    for number, (key, value) in enumerate(
        (("n_predict", 0), ("n_predict", "3"), ("inner_dim", -1), ("emb_dim", None), ("vocab_size", True))
    ):
        with pytest.raises(ModelFileError, match=rf"{key} is {value!r} in config\.json of .*; a number is needed"):
            load_mlp(write(tmp_path / f"c{number}", FILE, arrays, config | {key: value}), header)
    for name in arrays:
        path = write(tmp_path / name, FILE, {other: array for other, array in arrays.items() if other != name}, config)
        with pytest.raises(ModelFileError, match=rf"lacks the tensor {name}\."):
            load_mlp(path, header)
    with pytest.raises(ModelFileError, match=r"proj\.1\.weight is \[32, 32\]; \[48, 48\] is needed|is \[4096, 32\]"):
        load_mlp(write(tmp_path / "inner", FILE, arrays, config | {"inner_dim": 48}), header)
    with pytest.raises(ModelFileError, match=r"lacks the tensor speculator\.emb\.1\.weight"):
        load_mlp(write(tmp_path / "untied", FILE, arrays, config | {"tie_weights": False}), header)
    alone = write(tmp_path / "alone", FILE, arrays, None)
    with pytest.raises(ModelFileError, match=r"emb_dim is None in config\.json"):
        heads.find(alone / FILE, header)
    (alone / "config.json").write_text(json.dumps(config))
    assert heads.find(alone / FILE, header).name == "mlp"
