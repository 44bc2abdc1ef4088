"""MTP layers of a real model (trained for the bundled pair): the text never changes, and the guesses are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.drafters.heads import mtp
from localspec.drafters.heads.mtp import MtpContext
from localspec.engine.interfaces import Request
from localspec.errors import LocalspecError, ModelError, ModelFileError, PairError
from localspec.gguf import read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings, Tap
from localspec.llama.model import Model
from localspec.models.facts.heads import nextn_layers
from localspec.runtime.engine import Engine
from localspec.types import Feed, Float32Array, Rule, SamplingParams, Tokens
from tests.drafters.mtp_files import LAYER, SHIPPED, chained, companion, copy
from tests.drafters.mtp_forward import MtpForward

SETTINGS = ContextSettings(n_ctx=256, threads=1, grid=64, type_v="bf16")
NEXTN = Tap(nextn=True)
COMPRESSED = {"attention.key_length_mla": 64, "attention.value_length_mla": 64}
CHATS = (
    "<|bos|><|user|>Copy this text exactly:\nThe old mill by the river was closed in winter.<|end|><|assistant|>",
    "<|bos|><|user|>Sort these words: pear, apple, fig, grape<|end|><|assistant|>",
)


# -- through the engine ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(
        SHIPPED, exact="strict", kernels="plain", threads=1, context=512, branches=2, draft_cap=6, corpus="off"
    ) as made:
        yield made


def answer(engine: Engine, prompt: Tokens, temperature: float, seed: int = 3) -> tuple[list[int], int, int]:
    """(tokens, drafted, accepted) with the drafter that the engine is set to."""
    sampling = SamplingParams(temperature=temperature)
    generation = engine.submit(Request(prompt, sampling=sampling, seed=seed, max_tokens=40, ignore_end=True))
    generation.text()
    assert generation.stats.exact
    return generation.tokens, generation.stats.drafted, generation.stats.accepted


def plain(engine: Engine, prompt: Tokens, temperature: float, seed: int = 3) -> list[int]:
    engine.configure(drafter="none", max_draft_tokens=0)
    return answer(engine, prompt, temperature, seed)[0]


def test_the_text_is_plain_decodings_and_guesses_are_right(engine: Engine) -> None:
    assert "mtp" in engine.drafters
    drafted = accepted = 0
    for branches in (1, 2):
        for temperature in (0.0, 0.7, 1.0):
            for chat in CHATS:
                prompt = engine.prompt_tokens(chat)
                wanted = plain(engine, prompt, temperature)
                engine.configure(drafter="mtp", max_draft_tokens=2 * branches, branches=branches)
                tokens, guesses, right = answer(engine, prompt, temperature)
                assert tokens == wanted
                assert guesses > 0
                drafted, accepted = drafted + guesses, accepted + right
    assert accepted > drafted / 10, "a layer that was not trained for this model is right once in 4,000 times"


def test_it_follows_edits_regenerating_and_other_drafters_in_between(engine: Engine) -> None:
    first = engine.prompt_tokens(CHATS[0])
    said = plain(engine, first, 0.7)
    turns = [
        (first, 0.7, 3),
        (first, 0.7, 4),  # regenerated
        (np.concatenate([first, said, engine.prompt_tokens(CHATS[1])[1:]]).astype(np.int32), 1.0, 5),
        (np.concatenate([first, said[:9], engine.prompt_tokens(CHATS[1])[1:]]).astype(np.int32), 0.0, 6),  # edited
        (first, 0.7, 3),
    ]
    wanted = [plain(engine, *turn) for turn in turns]
    found, drafted = [], 0
    for index, turn in enumerate(turns):
        engine.configure(drafter=("mtp", "mtp", "lookup", "mtp", "auto")[index], max_draft_tokens=3, branches=1)
        tokens, guesses, _ = answer(engine, *turn)
        found.append(tokens)
        drafted += guesses
    assert found == wanted
    assert drafted > 0


def test_other_rules_may_be_used(engine: Engine) -> None:
    engine.configure(drafter="mtp", max_draft_tokens=3, branches=1)
    for rule in (Rule.REJECTION, Rule.BLOCK):
        generation = engine.submit(Request(engine.prompt_tokens(CHATS[0]), rule=rule, seed=1, max_tokens=20))
        generation.text()
        assert generation.stats.drafted > 0


# -- its cache -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with Model.load(SHIPPED, kernels="plain", nextn=True) as made:
        yield made


@pytest.fixture(scope="module")
def text(model: Model) -> Tokens:
    return model.tokenize(CHATS[0] + "The old mill by the river was closed in winter.", special=True, add_bos=False)


def row(context: MtpContext, tokens: Tokens, slot: int = 0) -> Float32Array:
    rows = context.decode([Feed(slot, tokens, len(tokens))])[0]  # they own the memory
    found: Float32Array = rows[0].copy()
    return found


def guesses(target: Context, context: MtpContext, history: Tokens, wrong: Tokens) -> list[Float32Array]:
    """Rows behind a history the target has read, and behind each of three guessed tokens."""
    target.prefill(0, history, len(history))
    return [row(context, np.concatenate([history, wrong[:depth]])) for depth in range(4)]


def test_they_are_what_the_layer_says(model: Model, text: Tokens) -> None:
    truth, wrong = MtpForward(SHIPPED).guesses(text[:24], text[5:8]), text[5:8]
    target = Context(model, SETTINGS, tap=NEXTN)
    for found, wanted in zip(guesses(target, MtpContext(model, target), text[:24], wrong), truth, strict=True):
        assert np.corrcoef(found, wanted)[0, 1] > 0.999
        np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())
    target.close()


def test_what_was_read_before_does_not_matter(model: Model, text: Tokens) -> None:
    """One cache goes through a chat with wrong guesses and an edit; a fresh one is made for every history."""
    target = Context(model, SETTINGS, tap=NEXTN)
    kept = MtpContext(model, target)
    wrong = text[5:8]
    for history in (text[:20], text[:21], text[:24], np.concatenate([text[:15], text[2:5]]), text[:30]):
        fresh = MtpContext(model, target)
        for one, other in zip(
            guesses(target, kept, history, wrong), guesses(target, fresh, history, wrong), strict=True
        ):
            assert np.isfinite(one).all()
            np.testing.assert_allclose(one, other, atol=0.05)
        assert kept.reusable(0, history, len(history)) == len(history) - 1
        fresh.close()
    target.close()


def test_guessed_states_give_way_to_true_ones(model: Model, text: Tokens) -> None:
    target = Context(model, SETTINGS, tap=NEXTN)
    context = MtpContext(model, target)
    target.prefill(0, text[:20], 20)
    guessed = row(context, text[:22])  # right guesses, but of states that the target has not computed
    target.prefill(0, text[:22], 20)
    true = row(context, text[:22])
    assert np.abs(true - guessed).max() > 0.01
    np.testing.assert_allclose(row(context, text[:22]), true, atol=0.05)
    target.close()


def test_without_states_it_guesses_nothing_until_there_are_some(model: Model, text: Tokens) -> None:
    target = Context(model, SETTINGS, tap=NEXTN)
    target.prefill(0, text[:20], 20)
    saved = bytes(target.save(0))
    other = Context(model, SETTINGS, tap=NEXTN)
    late = MtpContext(model, other)
    assert other.restore(0, saved, text[:19], 20)
    assert np.isneginf(row(late, text[:20])).all()
    assert late.reusable(0, text[:20], 20) == 19, "there is nothing to read"
    other.prefill(0, text[:25], 20)
    assert np.isfinite(row(late, text[:25])).all()
    assert late.prefill_chunk(0, text[:25], 20) == 24
    for one in (target, other):
        one.close()


def test_two_slots_guess_as_each_alone(model: Model, text: Tokens) -> None:
    histories = [text[:20], text[3:30]]
    alone = []
    for history in histories:
        target = Context(model, SETTINGS, tap=NEXTN)
        alone.append(guesses(target, MtpContext(model, target), history, text[5:8]))
        target.close()
    target = Context(model, ContextSettings(n_ctx=256, threads=1, grid=64, type_v="bf16", n_slots=2), tap=NEXTN)
    context = MtpContext(model, target)
    for slot, history in enumerate(histories):
        target.prefill(slot, history, len(history))
    for depth in range(4):
        feeds = [Feed(slot, np.concatenate([one, text[5 : 5 + depth]]), 1) for slot, one in enumerate(histories)]
        for slot, rows in enumerate(context.decode(feeds)):
            np.testing.assert_allclose(rows[0], alone[slot][depth], atol=0.05)
    target.close()


def test_of_several_layers_each_guesses_at_its_depth(text: Tokens, tmp_path: Path) -> None:
    path, wrong = chained(tmp_path / "chained.gguf", 3), text[5:8]
    truth = MtpForward(path)
    with Model.load(path, kernels="plain", nextn=True) as three:
        target = Context(three, SETTINGS, tap=NEXTN)
        context = MtpContext(three, target)
        assert context.heads == 3
        guesses(target, context, text[:20], wrong)
        found, wanted = guesses(target, context, text[:24], wrong), truth.guesses(text[:24], wrong[:2])
        for one, other in zip(found[:3], wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=0.05 * np.abs(other).max())
        assert np.isneginf(found[3]).all(), "no layer reaches so deep"
        target.close()


def test_layers_in_another_part_of_the_targets_file_are_its_own(
    text: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(tmp_path / "target.gguf", part=40)
    header = read_header(path)
    assert not any(".nextn." in tensor.name for tensor in header.tensors)
    assert nextn_layers(header) == 1
    head = mtp.load(path, header)
    with Model.load(path, kernels="plain", nextn=True) as whole:
        assert whole.has_nextn
        monkeypatch.setattr(Model, "load", lambda *_, **__: pytest.fail("they are loaded already"))
        target = Context(whole, SETTINGS, tap=head.tap)
        target.prefill(0, text[:20], 20)
        drafter = head.attach(target, 1)
        assert isinstance(drafter._context, MtpContext)
        assert np.isfinite(row(drafter._context, text[:20])).all()
        head.close()
        target.close()


def test_a_companion_guesses_as_the_layers_in_the_targets_own_file(
    model: Model, text: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load = [], Model.load

    def counted(path: Path, **settings: Any) -> Model:
        loaded.append(path)
        return load(path, **settings)

    monkeypatch.setattr(Model, "load", counted)
    header = read_header(SHIPPED)
    heads = [mtp.load(SHIPPED, header), mtp.load(companion(tmp_path / "mtp-tiny.gguf"), header)]
    rows = []
    for head in heads:
        target = Context(model, SETTINGS, tap=head.tap)
        target.prefill(0, text[:20], 20)
        first, drafter = head.attach(target, 2), head.attach(target, 1)
        first.close()
        assert drafter.name == "mtp"
        assert isinstance(drafter._context, MtpContext)
        rows.append(row(drafter._context, text[:20]))
        head.close()
        head.close()
        target.close()
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-3)
    assert loaded == [heads[1].path], "once, however often settings change"


# -- wrong files -----------------------------------------------------------------------------------------------------


def refusal(path: Path, target: Path = SHIPPED, kind: type[LocalspecError] = PairError) -> str:
    with pytest.raises(kind) as raised:
        mtp.load(path, read_header(target))
    return str(raised.value)


def test_a_head_of_another_model_is_refused_with_the_fact_that_differs(tmp_path: Path, tiny_target: Path) -> None:
    path = tmp_path / "mtp-other.gguf"
    assert "has no multi-token-prediction layers" in refusal(tiny_target)
    assert "architecture: hy_v3 in the target, glm4moe in the head" in refusal(companion(path, architecture="glm4moe"))
    narrow = companion(path, facts={"embedding_length": 64})
    assert "hidden size: 128 in the target, 64 in the head" in refusal(narrow)
    texts = read_header(SHIPPED).tokens
    few = companion(path, facts={"tokenizer.ggml.tokens": texts[:4000]})
    assert "vocabulary: 4096 tokens in the target, 4000 tokens in the head" in refusal(few)
    swapped = [*texts[:100], texts[101], texts[100], *texts[102:]]
    assert "token 100 is" in refusal(companion(path, facts={"tokenizer.ggml.tokens": swapped}))


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"attention.key_length": 32}, "size of a key: 64 in the target, 32 in the head"),
        ({"attention.value_length": 32}, "size of a value: 64 in the target, 32 in the head"),
        ({"rope.dimension_count": 32}, "turned numbers of a key: 64 in the target, 32 in the head"),
        ({"attention.head_count_kv": 3}, "4 heads cannot share 3 keys and values"),
    ],
)
def test_a_head_that_attends_otherwise_is_refused(tmp_path: Path, changes: dict[str, int], fact: str) -> None:
    assert fact in refusal(companion(tmp_path / "mtp-other.gguf", facts=changes), kind=ModelError)


@pytest.mark.parametrize("name", ["nextn.eh_proj", "nextn.hnorm", "attn_norm", "ffn_up", "ffn_gate", "ffn_down"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensor = f"blk.{LAYER}.{name}.weight"
    path = companion(tmp_path / "mtp-part.gguf", without=tensor)
    assert f"lacks the tensor {tensor}" in refusal(path, kind=ModelFileError)


@pytest.mark.parametrize(
    ("architecture", "more", "missing"),
    [
        ("hy_v3", ["ffn_gate_inp"], "ffn_down_exps"),
        ("hy_v3", ["ffn_gate_inp", "ffn_down_exps", "ffn_up_exps"], "ffn_gate_exps"),
        ("hy_v3", ["ffn_gate_inp", "ffn_down_exps", "ffn_gate_up_exps", "ffn_up_shexp"], "ffn_gate_shexp"),
        ("step35", ["ffn_gate_inp", "ffn_down_exps", "ffn_gate_up_exps"], "ffn_gate_exps"),
        ("glm4moe", [], "ffn_gate_inp"),
        ("nemotron_h_moe", ["ffn_gate_inp", "ffn_down_exps"], "ffn_up_exps"),
        ("mimo2", [], "attn_qkv"),
        ("hy_v3", ["ffn_gate_inp", "ffn_down_exps", "ffn_gate_up_exps"], ""),
        ("step35", ["nextn.shared_head_head"], ""),
        ("mimo2", ["attn_qkv"], ""),
    ],
)
def test_what_a_layer_needs_is_its_architectures(
    tmp_path: Path, architecture: str, more: list[str], missing: str
) -> None:
    def added(name: str) -> list[str]:
        return [name, *(f"blk.{LAYER}.{one}.weight" for one in more if name == f"blk.{LAYER}.attn_norm.weight")]

    path = copy(tmp_path / "other.gguf", added, architecture=architecture)
    if missing:
        assert f"lacks the tensor blk.{LAYER}.{missing}.weight" in refusal(path, path, ModelFileError)
    else:
        assert mtp.load(path, read_header(path)).path == path


@pytest.mark.parametrize(
    ("architecture", "facts", "words"),
    [
        ("hy_v3", {"attention.value_length": 32}, "keys have 64 numbers, of which 64 are turned, and values 32"),
        ("hy_v3", {"rope.dimension_count": 32}, "keys have 64 numbers, of which 32 are turned, and values 64"),
        ("glm4moe", {"leading_dense_block_count": LAYER + 1}, "they have no experts"),
        ("deepseek2", {}, r"is not compressed (attention.key_length_mla)"),
        ("deepseek2", COMPRESSED, r"is not compressed (attention.q_lora_rank)"),
        ("deepseek2", COMPRESSED | {"attention.q_lora_rank": 8, "attention.temperature_scale": 1}, "a temperature"),
    ],
)
def test_what_would_end_the_process_though_all_is_there_is_refused(
    tmp_path: Path, architecture: str, facts: dict[str, int], words: str
) -> None:
    path = copy(tmp_path / "other.gguf", facts=facts, architecture=architecture)
    assert words in refusal(path, path)


def test_without_an_output_matrix_there_is_no_guess(tmp_path: Path) -> None:
    path = copy(tmp_path / "other.gguf", architecture="step35")
    assert "lacks the tensor output.weight" in refusal(path, path, ModelFileError)


def test_what_llama_cpp_cannot_run_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    path = copy(tmp_path / "other.gguf", architecture="exaone4")
    assert "cannot draft with 1 multi-token-prediction layers of the architecture exaone4" in refusal(path, path)
    path = copy(tmp_path / "two.gguf", facts={"nextn_predict_layers": 2}, architecture="glm4moe")
    assert "cannot draft with 2 multi-token-prediction layers" in refusal(path, path)
    path = copy(tmp_path / "recurrent.gguf", facts={"ssm.state_size": 16})
    assert "keeps a recurrent state (hy_v3)" in refusal(path, path)
