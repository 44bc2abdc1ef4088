"""The tokenizer of the pair: byte-level BPE, 4,096 entries, 32 of them special."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
PRE_TOKENIZER = "qwen2"  # llama.cpp's name of the pattern below; digits stand alone
PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS: tuple[str, ...] = (
    "<|bos|>", "<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_result>", "</tool_result>",
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|mask|>",
    *(f"<|spare_{index}|>" for index in range(15)),
)  # fmt: skip
BOS, END, PAD = 0, 1, 2
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}


def learn(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from texts."""
    tokenizer = around(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the tokenizer has {tokenizer.get_vocab_size()} entries, not {VOCABULARY}")
    return tokenizer


def assemble(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """The tokenizer of a known vocabulary and its merges, as a GGUF holds them."""
    tokenizer = around(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def around(model: models.BPE) -> Tokenizer:
    """Pre-tokenisation and decoding around a BPE model."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Load a tokenizer.json."""
    return Tokenizer.from_file(str(path))
