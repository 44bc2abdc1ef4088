"""PARD: a draft in one pass, the text of plain decoding, and files as they are published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.chat.turn import Message
from localspec.drafters.heads.blocks import MOST_LEVELS, ParallelContext, load_pard, mask_token
from localspec.drafters.heads.head import BlockDrafter
from localspec.engine.interfaces import DraftRequest, History
from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header, read_header
from localspec.llama.cache.context import Context
from localspec.llama.library.settings import ContextSettings
from localspec.llama.model import Model
from localspec.runtime.engine import Engine
from localspec.types import Noise, SamplingParams
from tests.drafters.masked_context import MaskedContext
from tests.fakes import HashModel, draft_request
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write

FILE = Path(__file__).parent.parent / "data" / "heads" / "tiny-pard-q4_0.gguf"
MASK = 7
SAMPLING = SamplingParams(temperature=0.9)


def drafter(context: MaskedContext, branches: int = 1, end_tokens: frozenset[int] = frozenset()) -> BlockDrafter:
    return BlockDrafter(ParallelContext(context, MASK), end_tokens, branches, "pard")


def masked(n_ctx: int = 256) -> MaskedContext:
    return MaskedContext(HashModel(MASK + 1), MASK, n_ctx)


def ask(history: History, nodes: int = 4, slot: int = 0) -> DraftRequest:
    return draft_request(slot, history, nodes, nodes, SAMPLING, Noise(3), needs_probs=True)


# -- passes ----------------------------------------------------------------------------------------------------------


def test_a_draft_takes_one_pass_of_the_last_token_and_a_mask_for_every_further_guess() -> None:
    context, history = masked(), History([1, 2, 3])
    one = drafter(context)
    (draft,) = one.draft([ask(history)])
    assert len(draft) == 4
    assert draft.origin == "pard"
    assert context.fed == [{0: (3, 3)}]
    history.append([*draft.tokens[:2].tolist(), 5])
    one.draft([ask(history, 6)])
    assert context.fed[1:] == [{0: (3, 5)}], "what was accepted is read instead of the masks, in the same pass"


def test_the_rows_are_those_behind_the_masks() -> None:
    history, model = History([1, 2, 3]), HashModel(MASK + 1)
    (draft,) = drafter(masked()).draft(
        [draft_request(0, history, 4, 4, SamplingParams(temperature=0.0), Noise(3), True)]
    )
    path = [1, 2, 3]
    for token in draft.tokens.tolist():
        assert token == int(model(np.array(path, dtype=np.int32))[:MASK].argmax())
        path.append(MASK)


def test_a_new_draft_never_takes_rows_of_the_one_before() -> None:
    """Also where its history is the old one and the old one's first guess."""
    context, history = masked(), History([1, 2, 3])
    one = drafter(context)
    (draft,) = one.draft([ask(history, 3)])
    history.append(draft.tokens[:1])
    (after,) = one.draft([ask(history, 3)])
    assert len(context.fed) == 2
    assert after.tokens.tolist() == drafter(masked()).draft([ask(history, 3)])[0].tokens.tolist()


def test_all_slots_share_a_pass_and_each_gets_the_masks_it_asks_for() -> None:
    context = masked()
    histories = [History([1]), History([2, 2]), History([3])]
    drafts = drafter(context).draft([ask(one, 1 + 2 * slot, slot) for slot, one in enumerate(histories)])
    assert [len(draft) for draft in drafts] == [1, 3, 5]
    assert context.fed == [{0: (1, 0), 1: (2, 2), 2: (1, 4)}]


def test_a_draft_longer_than_masks_are_known_for_takes_another_pass() -> None:
    context = masked()
    (draft,) = drafter(context).draft([ask(History([1, 2]), MOST_LEVELS + 3)])
    assert len(draft) == MOST_LEVELS + 3
    assert context.fed == [{0: (2, MOST_LEVELS - 1)}, {0: (MOST_LEVELS, 2)}]


@pytest.mark.parametrize(("length", "masks"), [(13, 2), (15, 0)])
def test_masks_stay_inside_the_context(length: int, masks: int) -> None:
    context = masked(n_ctx=16)
    (draft,) = drafter(context).draft([ask(History([1] * length), 8)])
    assert len(draft) == masks + 1
    assert context.fed == [{0: (length, masks)}]


def test_siblings_come_from_the_same_pass() -> None:
    context = masked()
    (draft,) = drafter(context, branches=2).draft([ask(History([1]), 6)])
    assert draft.parents.tolist() == [-1, -1, 0, 0, 2, 2]
    assert context.fed == [{0: (1, 2)}]


# -- the shipped file through the engine -----------------------------------------------------------------------------

PROMPTS = (
    "Repeat this text: the baker sold nine maps of Oslo to Maria at noon.",
    "Tom has 3 apples and buys 4 more. How many does he have?",
)


def texts(engine: Engine, by: str, temperature: float, prompts: tuple[str, ...] = PROMPTS) -> list[tuple[str, int]]:
    """The answers and how many tokens were drafted."""
    found = []
    for seed, prompt in enumerate(prompts):
        sampling = SamplingParams(temperature=temperature)
        one = engine.chat([Message("user", prompt)], sampling=sampling, seed=seed, max_tokens=48, drafter=by)
        found.append((one.text(), one.stats.drafted))
        assert one.stats.exact
    return found


@pytest.fixture(scope="module")
def engine(tiny_target: Path) -> Iterator[Engine]:
    """With the settings of `test_heads_contract`, so that one survey serves both."""
    with Engine.load(
        tiny_target, heads=[FILE], exact="strict", kernels="plain", threads=1, context=512, branches=2, drafter="auto",
        max_draft_tokens=5, corpus="off",
    ) as loaded:  # fmt: skip
        yield loaded


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("branches", [1, 2])
def test_the_text_is_plain_decodings(engine: Engine, temperature: float, branches: int) -> None:
    engine.configure(branches=branches)
    plain, found = texts(engine, "none", temperature), texts(engine, "pard", temperature)
    assert [text for text, _ in found] == [text for text, _ in plain]
    assert all(drafted for _, drafted in found)
    assert not any(drafted for _, drafted in plain)


def test_the_shipped_file_is_right_now_and_then_in_one_pass_a_draft(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.configure(branches=1)
    passes: list[int] = []
    decode = Context.decode

    def counted(context: Context, feeds: Any) -> Any:
        if context is not engine.loaded.context:
            passes.append(len(feeds[0].draft_tokens))
        return decode(context, feeds)

    monkeypatch.setattr(Context, "decode", counted)
    one = engine.chat([Message("user", PROMPTS[0])], seed=1, max_tokens=48, drafter="pard")
    one.text()
    assert one.stats.accepted > 0
    assert one.stats.draft_passes <= len(passes) <= one.stats.passes
    assert 1 <= max(passes) <= 5, "masks behind the last token"


def test_switching_editing_and_regenerating_change_no_text(engine: Engine) -> None:
    engine.configure(branches=1)
    prompts = (*PROMPTS, PROMPTS[0], PROMPTS[1].replace("4", "5"), PROMPTS[1])
    plain = [text for text, _ in texts(engine, "none", 0.7, prompts)]
    for drafters in (("pard", "lookup", "auto", "pard", "auto"), ("auto", "pard", "none", "auto", "pard")):
        found = []
        for seed, (prompt, by) in enumerate(zip(prompts, drafters, strict=True)):
            message = [Message("user", prompt)]
            sampling = SamplingParams(temperature=0.7)
            found.append(engine.chat(message, sampling=sampling, seed=seed, max_tokens=48, drafter=by).text())
        assert found == plain


def test_several_slots_get_the_texts_of_one(tiny_target: Path) -> None:
    with Engine.load(
        tiny_target, heads=[FILE], exact="strict", kernels="plain", threads=1, context=512, slots=2, drafter="pard",
        max_draft_tokens=3, corpus="off",
    ) as several:  # fmt: skip
        message = [[Message("user", prompt)] for prompt in PROMPTS]
        alone = [several.chat(one, seed=4, max_tokens=32, drafter="none").text() for one in message]
        running = [several.chat(one, seed=4, max_tokens=32) for one in message]
        assert [one.text() for one in running] == alone
        assert all(one.stats.drafted for one in running)


# -- files -----------------------------------------------------------------------------------------------------------


def test_what_is_no_pard_model_is_refused(tiny_draft: Path, tiny_target: Path) -> None:
    with pytest.raises(PairError, match=r"tiny-draft-q8_0\.gguf is a draft model, not a PARD draft model"):
        load_pard(tiny_draft, read_header(tiny_target))


def test_one_for_another_vocabulary_is_refused_with_the_difference(tmp_path: Path) -> None:
    other = read_header(write(tmp_path / "other.gguf", gguf_bytes()))
    with pytest.raises(PairError, match="tokenizers are of different kinds"):
        load_pard(FILE, other)


def test_a_damaged_file_is_refused(tmp_path: Path, tiny_target: Path) -> None:
    short = write(tmp_path / "short.gguf", FILE.read_bytes()[:-1000])
    with pytest.raises(ModelFileError, match="truncated"):
        load_pard(short, read_header(tiny_target))


def made(path: Path, **changes: Any) -> Header:
    return read_header(write(path, gguf_bytes({**TINY_METADATA, "general.name": "PARD tiny", **changes})))


def test_the_mask_token_is_what_the_file_or_the_config_beside_it_says(tmp_path: Path) -> None:
    assert mask_token(read_header(FILE)) == 16
    assert mask_token(made(tmp_path / "a.gguf", **{"tokenizer.ggml.mask_token_id": 9})) == 9
    silent = made(tmp_path / "b.gguf")
    with pytest.raises(ModelFileError, match=r"b\.gguf does not say which token is its mask\..*--special-token-by-id"):
        mask_token(silent)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "pard_token": 12}))
    assert mask_token(silent) == 12
    config.write_text(json.dumps({"pard_token": 260}))
    with pytest.raises(ModelFileError, match="mask token 260 is not in its vocabulary of 260 tokens"):
        mask_token(silent)


def published(architecture: str, count: int) -> dict[str, Any]:
    """Metadata of a family's file as converters write it: ids beyond the tokenizer are padding."""
    used = {"llama": 128011, "qwen2": 151665, "qwen3": 151669}[architecture]
    reserve = "<|reserved_special_token_{}|>" if architecture == "llama" else "[PAD{}]"
    shift = 128008 if architecture == "llama" else 0
    plain = [*TINY_METADATA["tokenizer.ggml.tokens"], *(f"t{i}" for i in range(260, used))]
    spare = [reserve.format(token - shift) for token in range(used, count)]
    renamed = {
        key.replace("llama.", f"{architecture}.", 1) if key.startswith("llama.") else key: content
        for key, content in TINY_METADATA.items()
    }
    return {
        **renamed,
        "general.architecture": architecture,
        "general.name": f"PARD {architecture}",
        "tokenizer.ggml.tokens": [*plain, *spare],
        "tokenizer.ggml.token_type": [
            *TINY_METADATA["tokenizer.ggml.token_type"],
            *[1] * (used - 260),
            *[5] * len(spare),
        ],
        "tokenizer.ggml.scores": [0.0] * count,
    }


@pytest.mark.parametrize(
    ("architecture", "count", "mask"), [("llama", 128256, 128020), ("qwen2", 151936, 151665), ("qwen3", 151936, 151670)]
)
def test_published_families_use_the_token_they_were_trained_with(
    architecture: str, count: int, mask: int, tmp_path: Path
) -> None:
    assert mask_token(read_header(write(tmp_path / "a.gguf", gguf_bytes(published(architecture, count), [])))) == mask


def test_a_file_of_the_published_layout_drafts_in_one_pass(tmp_path: Path) -> None:
    """Qwen3's tensors, with small matrices and a small vocabulary, and the config.json that was published with it."""
    metadata = {key.replace("llama.", "qwen3.", 1): content for key, content in TINY_METADATA.items()}
    metadata |= {"general.architecture": "qwen3", "general.name": "PARD Qwen3 0.6B"}
    norms = [(f"blk.0.attn_{name}_norm.weight", (16,)) for name in ("q", "k")]
    path = write(tmp_path / "PARD-Qwen3-0.6B-F32.gguf", gguf_bytes(metadata, [*tiny_tensors(), *norms]))
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "pard_token": 9, "vocab_size": 260}
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = load_pard(path, read_header(path))
    assert mask_token(read_header(path)) == 9
    with Model.load(path) as model:
        target = Context(model, ContextSettings(n_ctx=64, threads=1))
        one = head.attach(target, 1)
        (draft,) = one.draft([ask(History([1, 5, 6]), 5)])
        assert len(draft) == 5
        assert head.attach(target, 1).missing(0, History([1, 5, 6, 7])) == 1, "a second drafter shares the cache"
        one.close()
        head.close()
        head.close()
        target.close()
