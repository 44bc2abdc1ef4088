"""Which files can draft for which, and the sentence that says so."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import PairError
from localspec.gguf import Header, read_header
from localspec.llama.library import lib
from localspec.models.facts.heads import draft_kind, keeps_state, nextn_layers
from localspec.models.facts.pairing import Difference, FileVocabulary, Match, check, differences, match, vocabulary
from tests.llama.tiny_gguf import TINY_METADATA, gguf_bytes, tiny_tensors, write
from tests.models.made_models import Made, write_model
from tests.models.vocabularies import EXTRACTS, VERDICTS, digest, extract, fetch, files, from_extract, table

TOKENS: list[str] = TINY_METADATA["tokenizer.ggml.tokens"]
TYPES: list[int] = TINY_METADATA["tokenizer.ggml.token_type"]
Write = Callable[..., Header]

Files = dict[str, Path]


@pytest.fixture(scope="module")
def real_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """llama.cpp's vocabulary files: of the folder LOCALSPEC_VOCABULARIES names, else from the sdist by pip."""
    named = os.environ.get("LOCALSPEC_VOCABULARIES")
    folder = Path(named) if named else tmp_path_factory.mktemp("vocabularies")
    if not named:
        try:
            fetch(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"pip cannot fetch the vocabulary files: {error}")
    found = files(folder)
    assert len(found) >= 19
    return found


@pytest.fixture
def tiny(tmp_path: Path) -> Write:
    """`tiny("name", key=value)` writes a model; `__` in a key is a dot, None removes it."""

    def write_tiny(name: str, tensors: Any = None, **changes: Any) -> Header:
        changed = {key.replace("__", "."): value for key, value in changes.items()}
        metadata = {key: value for key, value in {**TINY_METADATA, **changed}.items() if value is not None}
        shapes = tiny_tensors(len(metadata.get("tokenizer.ggml.tokens", TOKENS))) if tensors is None else tensors
        return read_header(write(tmp_path / f"{name}.gguf", gguf_bytes(metadata, shapes)))

    return write_tiny


def sized(count: int) -> dict[str, Any]:
    """Metadata of a vocabulary with so many tokens."""
    more = count - len(TOKENS)
    return {
        "tokenizer__ggml__tokens": [*TOKENS, *(f"[PAD{i}]" for i in range(more))][:count],
        "tokenizer__ggml__token_type": [*TYPES, *[1] * max(0, more)][:count],
        "tokenizer__ggml__scores": [0] * count,
    }


def test_the_bundled_pair_fits(tiny_target: Path, tiny_draft: Path) -> None:
    found = check(read_header(tiny_target), read_header(tiny_draft))
    assert found == Match(True, "draft", "tiny-draft-q8_0.gguf can draft for tiny-target-q8_0.gguf, as a draft model.")
    assert found.as_dict()["warnings"] == ()


def with_token(token: int, text: str) -> dict[str, Any]:
    return {"tokenizer__ggml__tokens": [*TOKENS[:token], text, *TOKENS[token + 1 :]]}


@pytest.mark.parametrize(
    ("changes", "words", "difference"),
    [
        (
            {"tokenizer__ggml__model": "gpt2", "tokenizer__ggml__merges": ["a b"]},
            r"their tokenizers are of different kinds \(SPM, BPE\)",
            Difference("kind of tokenizer", "SPM", "BPE"),
        ),
        (
            {"tokenizer__ggml__add_bos_token": False},
            "add_bos is True in the target and False",
            Difference("add_bos", "True", "False"),
        ),
        ({"tokenizer__ggml__bos_token_id": 9}, "bos is 1 in the target and 9", Difference("bos", "1", "9")),
        (
            {"tokenizer__ggml__add_eos_token": True},
            "add_eos is False in the target and True",
            Difference("add_eos", "False", "True"),
        ),
        ({"tokenizer__ggml__eos_token_id": 7}, "eos is 2 in the target and 7", Difference("eos", "2", "7")),
        (sized(389), "the target has 260 tokens, the draft model 389", Difference("size", "260", "389")),
        (sized(131), "the target has 260 tokens, the draft model 131", Difference("size", "260", "131")),
        (
            with_token(100, "<other>"),
            "token 100 is '<0x61>' in the target and '<other>' in the draft",
            Difference("token text", "<0x61>", "<other>", 100),
        ),
        (with_token(5, "x"), "token 5 is", Difference("token text", "<0x02>", "x", 5)),
        (with_token(259, "x"), "token 259 is", Difference("token text", "\u2581", "x", 259)),
    ],
)
def test_the_first_difference_is_named(tiny: Write, changes: Any, words: str, difference: Difference) -> None:
    target, draft = tiny("target"), tiny("draft", **changes)
    with pytest.raises(PairError, match=words) as caught:
        check(target, draft)
    assert caught.value.message.startswith("draft.gguf cannot draft for target.gguf: ")
    assert match(target, draft).difference == difference
    assert not match(draft, target).fits


def test_what_comes_first_is_named_first(tiny: Write) -> None:
    draft = tiny("draft", tokenizer__ggml__eos_token_id=7, **with_token(5, "x"))
    found = [difference.fact for difference in differences(vocabulary(tiny("target")), vocabulary(draft))]
    assert found == ["eos", "token text"]


@pytest.mark.parametrize(("ours", "theirs", "masked"), [(260, 388, 128), (388, 260, 0), (260, 260, 0)])
def test_sizes_may_differ_by_padding(tiny: Write, ours: int, theirs: int, masked: int) -> None:
    found = check(tiny("target", **sized(ours)), tiny("draft", **sized(theirs)))
    assert found.masked == masked
    assert any("128 tokens are unknown" in warning for warning in found.warnings) == (ours != theirs)


def test_texts_that_are_no_utf8_are_compared_as_bytes() -> None:
    one, other = (
        FileVocabulary("BPE", "", None, None, False, False, [b""] * 5 + [text]) for text in (b"\xff\xfe", b"\xfe\xff")
    )
    (found,) = differences(one, other)
    assert found.token == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (with_token(0, "<other>"), "token 0 is '<unk>' in the target and '<other>'"),
        ({"tokenizer__ggml__pre": "other"}, r"pre-tokenizers differ \(none, other\); the draft never tokenises"),
        ({"tokenizer__ggml__merges": ["a b"]}, r"merges differ \(0, 1\)"),
        ({"tokenizer__ggml__token_type": [*TYPES[:100], 1, *TYPES[101:]]}, "token 100 '<0x61>' has type 6"),
    ],
)
def test_what_does_no_harm_is_a_warning(tiny: Write, changes: Any, words: str) -> None:
    found = check(tiny("target"), tiny("draft", **changes))
    assert len(found.warnings) == 1
    assert re.search(words, found.warnings[0])


TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (TEMPLATE, TEMPLATE, None),
        (TEMPLATE, "{# another note #}" + TEMPLATE.replace("%}", "%}\n"), None),
        (None, None, None),
        (TEMPLATE, None, "the draft has no chat template"),
        (None, TEMPLATE, "the target has no chat template"),
        (TEMPLATE, TEMPLATE + "{{ 1 }}", "differ in details"),
        (TEMPLATE, TEMPLATE.replace("im_start", "start"), "different marks (<|im_start|>, <|start|>)"),
        (TEMPLATE, "[INST]{{ messages }}[/INST]", "different marks"),
    ],
)
def test_chat_templates_are_compared(tiny: Write, ours: str | None, theirs: str | None, words: str | None) -> None:
    target, draft = (tiny(name, tokenizer__chat_template=text) for name, text in (("target", ours), ("draft", theirs)))
    found = check(target, draft).warnings
    assert [warning for warning in found if words and words in warning] == list(found)
    assert bool(found) == (words is not None)


# -- files that declare what they are --------------------------------------------------------------------------------


def head(tiny: Write, name: str, architecture: str, tensors: Any = None, **own: Any) -> Header:
    named = {f"{architecture}__{key}": value for key, value in own.items()}
    return tiny(name, tensors, general__architecture=architecture, **named)


def test_an_eagle3_head_is_taken_for_one(tiny: Write) -> None:
    target = tiny("target", llama__embedding_length=32, llama__block_count=1)
    fits = head(tiny, "head", "eagle3", target_hidden_size=32, target_layers=[0, 1, 1])
    found = check(target, fits)
    assert (found.method, found.fits) == ("eagle3", True)
    assert "as an EAGLE-3 head" in found.verdict
    other = match(target, head(tiny, "other", "eagle3", target_hidden_size=64, target_layers=[0, 1, 1]))
    assert other.difference == Difference("hidden size", "32", "64")
    deeper = match(target, head(tiny, "deeper", "eagle3", target_hidden_size=32, target_layers=[2, 9, 30]))
    assert "at least 30" in deeper.verdict
    silent = match(target, head(tiny, "silent", "eagle3"))
    assert "not stated" in silent.verdict
    bare = head(tiny, "bare", "eagle3", target_hidden_size=32)
    bare = replace(bare, metadata={k: v for k, v in bare.metadata.items() if not k.startswith("tokenizer")})
    assert "no tokenizer" in check(target, bare).warnings[0]
    foreign = tiny("foreign", general__architecture="eagle3", eagle3__target_hidden_size=32, **with_token(5, "x"))
    with pytest.raises(PairError, match="token 5"):
        check(target, foreign)


def test_prediction_layers_inside_and_beside_a_model(tiny: Write) -> None:
    layer = [("blk.1.nextn.eh_proj.weight", (64, 32)), ("blk.1.attn_q.weight", (32, 32))]
    whole = tiny("whole", [*tiny_tensors(), *layer], llama__nextn_predict_layers=1)
    alone = tiny("alone", [tiny_tensors()[0], *layer], llama__nextn_predict_layers=1)
    none = tiny("none", llama__nextn_predict_layers=1)
    assert [nextn_layers(header) for header in (whole, alone, none)] == [1, 1, 0]
    assert [draft_kind(header).method for header in (whole, alone, none)] == ["draft", "mtp", "draft"]
    assert check(tiny("target"), alone).method == "mtp"
    assert match(tiny("wide", llama__embedding_length=64), alone).difference == Difference("hidden size", "64", "32")
    assert "cannot be a target: it is a multi-token" in match(alone, tiny("draft")).verdict


@pytest.mark.parametrize(
    ("changes", "tensors", "method", "drafts"),
    [
        ({"general__name": "PARD-Qwen3-0.6B"}, None, "pard", True),
        ({"general__name": "Leopard 7B"}, None, "draft", True),
        ({"general__architecture": "dflash"}, None, "dflash", True),
        ({"general__architecture": "dflash"}, [("markov_w1.weight", (4, 4))], "dspark", True),
        ({"general__architecture": "dflash"}, [("selector_hidden.weight", (4, 4))], "dflash2", True),
        ({"general__architecture": "dspark"}, None, "forked", True),
        ({"general__architecture": "dflash", "dflash__attention__causal": False}, None, "dflash", True),
        ({"general__architecture": "gemma4-assistant"}, None, "assistant", True),
        ({"general__name": "x"}, [("medusa.0.weight", (4, 4))], "medusa", True),
        ({"general__architecture": "clip"}, None, "projector", False),
        ({"general__type": "adapter"}, None, "adapter", False),
        ({"general__architecture": "bert"}, None, "embedding", False),
        ({"general__architecture": "nomic-bert-moe"}, None, "embedding", False),
        ({"llama__attention__causal": False}, None, "embedding", False),
        ({"general__architecture": None}, None, "unknown", False),
    ],
)
def test_a_file_says_what_it_is(tiny: Write, changes: Any, tensors: Any, method: str, drafts: bool) -> None:
    header = tiny("file", tensors, **changes)
    found = draft_kind(header)
    assert (found.method, found.drafts) == (method, drafts)
    if not drafts:
        assert (
            match(tiny("target"), header).verdict == f"file.gguf cannot draft for target.gguf: it is {found.sentence}."
        )
        assert not match(header, tiny("target")).fits


def test_recurrent_layers_are_pointed_out(tiny: Write) -> None:
    target = tiny("hybrid", llama__ssm__conv_kernel=4)
    assert keeps_state(target)
    assert "the target has recurrent layers" in check(target, tiny("draft")).warnings[0]
    assert not keeps_state(tiny("plain"))


# -- real tokenizers ------------------------------------------------------------------------------------------------


def unescaped() -> list[str]:
    lines = VERDICTS.read_text(encoding="utf-8").splitlines()
    return [line.encode("ascii").decode("unicode_escape") for line in lines]


def test_every_cross_pair_of_real_tokenizers() -> None:
    extracts = json.loads(EXTRACTS.read_text(encoding="utf-8"))
    assert len(extracts) >= 19
    expected = unescaped()
    assert len(expected) == len(extracts) ** 2
    assert table({name: from_extract(facts) for name, facts in extracts.items()}) == expected
    fitting = {tuple(line.split("\t")[:2]) for line in expected if line.endswith("\tfits")}
    assert {pair for pair in fitting if pair[0] < pair[1]} == {("gpt-neox", "mpt"), ("qwen2", "qwen35")}


@pytest.mark.trial
def test_the_extracts_are_those_of_the_files(real_files: Files) -> None:
    found = {name: vocabulary(read_header(path)) for name, path in real_files.items()}
    kept = json.loads(EXTRACTS.read_text(encoding="utf-8"))
    assert json.loads(json.dumps(extract(found))) == kept
    assert table(found) == unescaped()
    assert {name: digest(one) for name, one in found.items()} == {name: facts["sha256"] for name, facts in kept.items()}


class LlamaVocabulary:
    """llama.cpp's own word on a vocabulary file."""

    def __init__(self, path: Path) -> None:
        api = self.api = lib.api()
        params = api.llama_model_default_params()
        params.vocab_only = True
        self.handle = api.llama_model_load_from_file(str(path).encode(), params)
        assert self.handle, lib.log.since(0)[-3:]
        vocab = self.vocab = api.llama_model_get_vocab(self.handle)
        self.kind, self.size = api.llama_vocab_type(vocab), api.llama_vocab_n_tokens(vocab)
        self.add_bos, self.add_eos = api.llama_vocab_get_add_bos(vocab), api.llama_vocab_get_add_eos(vocab)
        self.bos, self.eos = api.llama_vocab_bos(vocab), api.llama_vocab_eos(vocab)
        self.texts = [ctypes.string_at(api.llama_vocab_get_text(vocab, token)) for token in range(self.size)]

    def close(self) -> None:
        self.api.llama_model_free(self.handle)


@pytest.fixture(scope="module")
def as_llama_reads(real_files: Files) -> dict[str, LlamaVocabulary]:
    found = {name: LlamaVocabulary(path) for name, path in real_files.items()}
    for one in found.values():
        one.close()
    return found


@pytest.mark.trial
def test_specials_are_those_llama_reads(real_files: Files, as_llama_reads: dict[str, LlamaVocabulary]) -> None:
    kinds = {"SPM": 1, "BPE": 2, "WPM": 3, "UGM": 4}
    for name, theirs in as_llama_reads.items():
        ours = vocabulary(read_header(real_files[name]))
        assert (kinds[ours.kind], ours.size) == (theirs.kind, theirs.size), name
        assert (ours.add_bos, ours.add_eos) == (theirs.add_bos, theirs.add_eos), name
        specials = (-1 if ours.bos is None else ours.bos, -1 if ours.eos is None else ours.eos)
        assert specials == (theirs.bos, theirs.eos), name
        assert list(ours.tokens) == theirs.texts, name


@pytest.mark.trial
def test_stricter_than_llama_but_never_laxer(as_llama_reads: dict[str, LlamaVocabulary]) -> None:
    """The rule of llama.cpp's common/speculative.cpp, from llama.cpp's own answers."""

    def theirs(target: LlamaVocabulary, draft: LlamaVocabulary) -> bool:
        for adds, token in (("add_bos", "bos"), ("add_eos", "eos")):
            if getattr(target, adds) != getattr(draft, adds):
                return False
            if getattr(target, adds) and getattr(target, token) != getattr(draft, token):
                return False
        same = all(one == other for one, other in zip(target.texts[5:], draft.texts[5:], strict=False))
        return target.kind == draft.kind and abs(target.size - draft.size) <= 128 and same

    rows = {tuple(line.split("\t")[:2]): line.split("\t")[2] for line in unescaped()}
    for pair in product(as_llama_reads, repeat=2):
        says = theirs(as_llama_reads[pair[0]], as_llama_reads[pair[1]])
        if says:
            assert rows[pair] in ("fits", "bos", "eos"), pair
        else:
            assert rows[pair] != "fits", pair


@pytest.mark.parametrize("source", ["extract", pytest.param("file", marks=pytest.mark.trial)])
def test_qwen_sizes_128_apart_fit(source: str, request: pytest.FixtureRequest) -> None:
    """Qwen2.5 0.5B has 151,936 tokens and 7B 152,064: the same ones and more padding."""
    if source == "file":
        small = vocabulary(read_header(request.getfixturevalue("real_files")["qwen2"]))
    else:
        small = from_extract(json.loads(EXTRACTS.read_text(encoding="utf-8"))["qwen2"])
    assert small.size == 151_936
    large = replace(small, tokens=[*small.tokens, *(b"[PAD%d]" % token for token in range(151_936, 152_064))])
    assert list(differences(large, small)) == list(differences(small, large)) == []
    assert [found.fact for found in differences(replace(large, tokens=[*large.tokens, b"x"]), small)] == ["size"]


def test_pairs_people_ask_about(tmp_path: Path) -> None:
    """Files with the sizes of Qwen2.5 7B and 0.5B, and with Gemma 2's one token that differs between 27B and 2B (as
    reported: neither file can be had here; of their 256,000 tokens the first are enough)."""
    sizes = {"qwen2.5-7b": 152_064, "qwen2.5-0.5b": 151_936, "gemma-2-27b": 4_096, "gemma-2-2b": 4_096}
    headers = {}
    for name, count in sizes.items():
        path = tmp_path / f"{name}.gguf"
        if name == "gemma-2-2b":
            shutil.copyfile(tmp_path / "gemma-2-27b.gguf", path)
            with path.open("r+b") as file:
                file.seek(file.read(1 << 16).index(b"<0x88>"))  # token 139
                file.write(b"other!")
        else:
            write_model(path, Made(embedding=32, layers=1, vocabulary=count))
        headers[name] = read_header(path)
    qwen = check(headers["qwen2.5-7b"], headers["qwen2.5-0.5b"])
    assert qwen.warnings == (
        "the target's last 128 tokens are unknown to the draft: a text that holds one is not drafted",
    )
    assert check(headers["qwen2.5-0.5b"], headers["qwen2.5-7b"]).masked == 128
    with pytest.raises(PairError) as caught:
        check(headers["gemma-2-27b"], headers["gemma-2-2b"])
    assert caught.value.message == (
        "gemma-2-2b.gguf cannot draft for gemma-2-27b.gguf: token 139 is '<0x88>' in the target and 'other!' in the "
        "draft model; --cross-tokenizer lets it draft over the tokens that both have."
    )
