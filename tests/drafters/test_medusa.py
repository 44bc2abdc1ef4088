"""Medusa heads: the published layout, what each head reads, trees, and files for other targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from localspec.chat.turn import Message
from localspec.drafters.heads import head as heads
from localspec.drafters.heads.final_state import MedusaContext, load_medusa, read_medusa
from localspec.engine.interfaces import History
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.llama.cache.context import Context
from localspec.runtime.engine import Engine
from localspec.types import Feed, Noise, Rule, SamplingParams, Tokens
from tests.drafters.made_heads import Arrays, medusa, medusa_says, write
from tests.drafters.shipped_heads import SHIPPED
from tests.fakes import draft_request

FILE = "medusa_lm_head.safetensors"
CONFIG = {"base_model_name_or_path": "some/model", "medusa_num_heads": 2, "medusa_num_layers": 1}


def read(target: Context, text: str) -> Tokens:
    """Tokens of which the target has evaluated all but the last."""
    tokens = target.model.tokenize(text, special=False, add_bos=True)
    target.decode([Feed(0, tokens[:-1], len(tokens) - 4)])
    return tokens


def close_to(found: npt.NDArray[Any], expected: npt.NDArray[Any]) -> bool:
    return float(np.abs(found - expected).max()) < 0.03 * float(np.abs(expected).max())


# -- what the heads say ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "prefix"), [(1, ""), (2, "medusa_head.")])
def test_row_d_is_that_of_head_d_on_the_last_evaluated_token(
    layers: int, prefix: str, tmp_path: Path, header: Header, target: Context
) -> None:
    arrays = medusa(heads=3, layers=layers)
    path = write(tmp_path / "head", FILE, {prefix + name: array for name, array in arrays.items()}, CONFIG)
    load_medusa(path, header)
    heads = read_medusa(path)
    assert len(heads) == 3, "published config.json files name fewer heads than the weights have"
    context = MedusaContext(heads, target)
    tokens = read(target, "Tom has seven green boats and three")
    assert target.states is not None
    state = target.states.read(0, -1, len(tokens) - 2, len(tokens) - 1)[0]
    paths = [tokens, np.append(tokens, 7), np.append(tokens, [7, 8]), np.append(tokens, [9, 9, 9])]
    rows = context.decode([Feed(0, one.astype(np.int32), len(tokens)) for one in paths])
    for number in range(3):
        assert close_to(rows[number][0], medusa_says(arrays, number, layers, state))
    assert np.isneginf(rows[3][0]).all(), "further ahead than there are heads"


def test_without_the_state_there_is_nothing_to_say(tmp_path: Path, header: Header, target: Context) -> None:
    drafter = load_medusa(write(tmp_path / "head", FILE, medusa(), None), header).attach(target, 1)
    tokens = read(target, "A chat that the target has read to its end")
    request = draft_request(0, History(tokens), 4, 4, SamplingParams(temperature=0.0), Noise(1))
    assert len(drafter.draft([request])[0]) == 2
    other = tokens.copy()
    other[:] = 9
    assert len(drafter.draft([replace(request, history=History(other))])[0]) == 0
    target.prefill(0, other, len(other))
    assert len(drafter.draft([replace(request, history=History(other))])[0]) == 0, "a prompt's states are not kept"
    assert drafter.missing(0, History(other)) == 1


def test_a_tree_is_made_of_the_heads_best_guesses(tmp_path: Path, header: Header, target: Context) -> None:
    arrays = medusa()
    drafter = load_medusa(write(tmp_path / "head", FILE, arrays, CONFIG), header).attach(target, 3)
    tokens = read(target, "Name three fruits and two")
    assert target.states is not None
    state = target.states.read(0, -1, len(tokens) - 2, len(tokens) - 1)[0]
    best = [set(np.argsort(-medusa_says(arrays, number, 1, state))[:6].tolist()) for number in range(2)]
    request = draft_request(0, History(tokens), 8, 4, SamplingParams(temperature=0.0), Noise(1))
    (draft,) = drafter.draft([request])
    depths = [0 if parent < 0 else 1 for parent in draft.parents.tolist()]
    assert len(draft) == 8
    assert depths.count(0) == 3, "as many as branches"
    assert all(token in best[depth] for token, depth in zip(draft.tokens.tolist(), depths, strict=True))
    assert draft.confidence is not None
    for needs_probs in (False, True):
        rule = Rule.REJECTION if needs_probs else Rule.COUPLED
        asked = replace(request.asked, rule=rule)
        (chain,) = drafter.draft([replace(request, chain=True, max_nodes=1, asked=asked)])
        assert chain.tokens.tolist() == draft.tokens[:1].tolist()
        assert (chain.probs is not None) == needs_probs


# -- the shipped file ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tiny_target: Path) -> Iterator[Engine]:
    with Engine.load(
        tiny_target, heads=[SHIPPED["medusa"], SHIPPED["mlp"]], exact="strict", kernels="plain", context=512,
        threads=1, branches=3, drafter="auto", max_draft_tokens=6, corpus="off",
    ) as loaded:  # fmt: skip
        yield loaded


def test_edits_and_regenerated_answers_are_plain_decodings(engine: Engine) -> None:
    """Two heads that read the same states, by turns, in one chat that is edited and asked again."""
    asked = ["Count from one to ten.", "Count from one to nine.", "Count from one to ten.", "Name a fruit."]
    found: dict[str, list[str]] = {}
    drafted = 0
    for turns in (("none",) * 4, ("medusa", "mlp", "auto", "medusa"), ("mlp", "medusa", "medusa", "mlp")):
        for seed, (prompt, by) in enumerate(zip(asked, turns, strict=True)):
            one = engine.chat(
                [Message("user", prompt)],
                sampling=SamplingParams(temperature=0.7),
                seed=seed,
                max_tokens=32,
                drafter=by,
            )
            found.setdefault(" ".join(turns), []).append(one.text())
            assert one.stats.exact
            drafted += one.stats.drafted
    plain, *others = found.values()
    assert all(other == plain for other in others)
    assert drafted > 0


@pytest.mark.parametrize("rule", [Rule.REJECTION, Rule.BLOCK])
def test_other_rules_get_the_probabilities_that_they_need(engine: Engine, rule: Rule) -> None:
    engine.configure(branches=1 if rule is Rule.BLOCK else 3)
    for by in ("medusa", "mlp"):
        said = [
            engine.chat([Message("user", "Name a fruit.")], seed=5, max_tokens=24, drafter=by, rule=rule)
            for _ in range(2)
        ]
        assert said[0].text() == said[1].text()
        assert min(one.stats.drafted for one in said) > 0


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["medusa", "mlp"])
def test_a_target_that_cannot_forget_is_refused(method: str, header: Header) -> None:
    recurrent = replace(header, metadata={**header.metadata, "llama.ssm.state_size": 16})
    with pytest.raises(PairError, match=r"keeps a recurrent state \(llama\)"):
        heads.find(SHIPPED[method], recurrent)


def test_heads_for_another_target_are_refused_with_the_difference(tmp_path: Path, header: Header) -> None:
    for number, (changes, text) in enumerate(
        (
            ({"hidden": 512}, "hidden size: 256 in the target, 512 in the head"),
            ({"vocabulary": 5000}, "vocabulary: 4096 in the target, 5000 in the head"),
        )
    ):
        path = write(tmp_path / str(number), FILE, medusa(heads=1, **changes), CONFIG)
        with pytest.raises(PairError, match=f"cannot draft for tiny-target.*{text}"):
            heads.find(path, header)


def test_a_vocabulary_that_is_padded_otherwise_is_no_other(tmp_path: Path, header: Header, target: Context) -> None:
    for size in (4000, 4224):
        path = write(tmp_path / str(size), FILE, medusa(vocabulary=size), None)
        drafter = load_medusa(path, header).attach(target, 1)
        tokens = read(target, "Some words of a text")
        request = draft_request(0, History(tokens), 4, 4, SamplingParams(temperature=1.5, top_k=0), Noise(1))
        (draft,) = drafter.draft([request])
        assert len(draft) == 2
        assert (draft.tokens < 4096).all()


def test_missing_and_damaged_tensors_are_named(tmp_path: Path, header: Header) -> None:
    whole = medusa(heads=2, vocabulary=4096)
    wrong: dict[str, tuple[Arrays, str]] = {
        "bias": ({n: a for n, a in whole.items() if n != "1.0.linear.bias"}, r"lacks the tensor 1\.0\.linear\.bias"),
        "out": ({n: a for n, a in whole.items() if n != "1.1.weight"}, r"lacks the tensor 1\.1\.weight"),
        "block": ({n: a for n, a in whole.items() if n != "0.0.linear.weight"}, r"lacks the tensor 0\.0\.linear"),
        "first": ({n: a for n, a in whole.items() if not n.startswith("0.")}, r"Medusa heads \[1\]; .* from 0"),
        "shape": (whole | {"0.0.linear.weight": whole["0.0.linear.weight"][:9]}, r"is \[9, 256\]; \[256, 256\] is"),
        "flat": (whole | {"0.1.weight": whole["0.1.weight"].ravel()}, "hidden size: 256 in the target, 0 in the head"),
        "none": ({"x": whole["0.1.weight"]}, r"Medusa heads \[\]"),
    }
    for name, (arrays, text) in wrong.items():
        with pytest.raises((ModelFileError, PairError), match=text):
            load_medusa(write(tmp_path / name, FILE, arrays, CONFIG), header)
    path = write(tmp_path / "cut", FILE, whole, CONFIG) / FILE
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="truncated"):
        heads.find(path, header)


def test_a_pickle_as_published_is_read(tmp_path: Path, header: Header, target: Context) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "medusa_lm_head.pt"
    torch.save({name: torch.from_numpy(array) for name, array in medusa().items()}, path)
    write(tmp_path, "model-00001-of-00001.safetensors", {"model.norm.weight": medusa()["0.0.linear.bias"]}, CONFIG)
    head = heads.find(tmp_path, header)
    assert head.name == "medusa"
    assert len(read_medusa(tmp_path)) == 2
    tokens = read(target, "Some words of a text")
    (draft,) = head.attach(target, 1).draft(
        [draft_request(0, History(tokens), 4, 4, SamplingParams(temperature=0.0), Noise(1))]
    )
    assert len(draft) == 2
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="cannot be read"):
        heads.find(path, header)
