"""A part of a vocabulary writes texts as the whole one does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from localspec.drafters.cut import VocabPart, choose
from localspec.errors import ModelError
from localspec.gguf import Header, read_header
from localspec.llama.model import Model
from localspec.models.facts.pairing import TRAINED_FOR, match

TEXTS = (
    "Maria bought 12 lanterns in Lisbon and gave 5 of them to her brother.",
    "def add(a, b):\n    return a + b\n",
    '{"name": "Zoë", "age": 41}',
    "  two spaces, a tab\tand 漢字",
)


def test_its_merges_write_what_the_target_writes(header: Header, part: VocabPart, cut: Path, tiny_target: Path) -> None:
    """Each text in tokens of the target that are in the part, and in tokens of llama.cpp's own reading of the file."""
    with Model.load(tiny_target) as target, Model.load(cut) as draft:
        assert draft.n_vocab == len(part.ids) < target.n_vocab
        same = 0
        for text in TEXTS:
            for word in text.split(" "):
                ours = target.tokenize(word, special=False, add_bos=False)
                theirs = draft.tokenize(word, special=False, add_bos=False)
                assert draft.detokenize(theirs) == target.detokenize(ours) == word
                if (part.places[ours] >= 0).all():
                    assert part.ids[theirs].tolist() == ours.tolist()
                    same += 1
                else:
                    assert sum(map(len, (part.pieces(int(token)) for token in ours))) >= len(ours)
        assert same > 3


def test_every_token_is_written_by_pieces_of_the_part(
    header: Header, part: VocabPart, cut: Path, tiny_target: Path
) -> None:
    with Model.load(tiny_target) as target, Model.load(cut) as draft:
        normal = [token for token, kind in enumerate(header.token_types) if kind == 1]
        for token in normal[:: len(normal) // 300]:
            written = b"".join(draft.piece(piece) for piece in part.pieces(token))
            assert written == target.piece(token)


def test_the_tokens_of_most_weight_are_in_it(header: Header) -> None:
    weight = np.zeros(len(header.tokens), dtype=np.float32)
    weight[[700, 901, 3000]] = (3.0, 2.0, 1.0)
    part = choose(header, weight, 2)
    assert (part.places[[700, 901]] >= 0).all()
    assert part.ids[part.places[700]] == 700
    assert (np.diff(part.ids) > 0).all()
    assert len(part.merges) < len(header.merges)


def test_another_tokenizer_is_refused(header: Header) -> None:
    changed = {**header.metadata, "tokenizer.ggml.model": "t5"}
    other = Header(header.path, header.file_bytes, header.version, changed, header.tensors, header.read)
    with pytest.raises(ModelError, match=r"tiny-target-q8_0.gguf: its tokenizer is t5\."):
        choose(other, np.ones(len(header.tokens), dtype=np.float32))


def test_sentencepiece_is_cut_by_scores(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c"]
    texts += ["ab", "bc", "▁a", "▁ab", "abc", "▁abc"]
    scores = [0.0] * 259 + [-10.0] * 4 + [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    path = tmp_path / "spm.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 10)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weight = np.zeros(len(texts), dtype=np.float32)
    weight[texts.index("▁abc")] = 1.0
    part = choose(read_header(path), weight)
    kept = {texts[token] for token in part.ids}
    assert {"▁abc", "ab", "▁ab", "▁", "a", "b", "c", "<0x41>", "<unk>"} <= kept, "ab is merged first, then ▁ with it"
    assert "bc" not in kept
    assert [texts[part.ids[piece]] for piece in part.pieces(texts.index("bc"))] == ["b", "c"]


def test_a_sentencepiece_target_takes_its_part(tmp_path: Path) -> None:
    """Its byte tokens and one-letter tokens write the same bytes; that makes none of them foreign."""
    gguf = pytest.importorskip("gguf")
    letters = [chr(code) for code in range(33, 127)]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters]
    words = [a + b for a in letters[32:64] for b in letters[32:64]]

    def written(name: str, tokens: list[str], trained: bool) -> Path:
        path = tmp_path / name
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259))
        writer.add_block_count(1)
        if trained:
            writer.add_string(TRAINED_FOR, "0" * 64)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    target = read_header(written("target.gguf", texts + words, trained=False))
    part = read_header(written("part.gguf", texts + words[::4], trained=True))
    found = match(target, part)
    assert found.fits, found.verdict
    other = read_header(written("other.gguf", texts + [f"{word}zz" for word in words[::4]], trained=True))
    assert match(target, other).verdict == "other.gguf cannot draft for target.gguf: it was trained for another model."
