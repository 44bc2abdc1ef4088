"""The special tokens of a vocabulary: where they stand in a text, and tokens of prompts in which not all of them count;
texts that break DRY's repetitions, as tokens; how few tokens a text can have, told from its bytes.

llama.cpp reads control tokens in all of a text or in none of it, and user-defined ones always. A prompt has what its
template wrote, and what people wrote. So it is cut here at the control tokens that count, as llama.cpp would cut it,
and what is between them becomes tokens without control tokens.

For every special token that llama.cpp finds it walks the list of what it has found, from the start: its steps grow with
the square of their number, and megabytes take minutes. Code that takes texts from strangers asks `FewestTokens` first.
"""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from localspec.gguf import Header
from localspec.types import NO_TOKENS, Breakers, Prompt, Tokens

SPACE = " \t\n\v\f\r"  # what C's `isspace` takes for white space, and llama.cpp with it

_SPECIAL_TYPES = (2, 3, 4)
"""Of `tokenizer.ggml.token_type`: unknown, control, user-defined. llama.cpp makes others special by their purpose."""

_FILL_IN = ("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
_PURPOSES = ("bos", "eos", "eot", "sep", "nl", "pad", "mask", *_FILL_IN)  # of tokens that llama.cpp has functions for

_LEADS = ("\n", "\x01", "|")  # texts to put before another one for no space there: none begins a word

_SURROGATE = re.compile("[\ud800-\udfff]")


class SpecialToken(NamedTuple):
    """A token that llama.cpp looks for in texts before it splits them into words."""

    text: str
    token: int
    control: bool  # found only where special tokens are read as such; else it is user-defined
    strips_left: bool = False  # white space before it is left out
    strips_right: bool = False


def special_tokens(api: Any, vocab: Any, header: Header, ends: Iterable[int]) -> tuple[SpecialToken, ...]:
    """Those of a vocabulary, by number, but for those that are no UTF-8. `ends`: tokens that end an answer."""
    control = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_UNKNOWN
    special = control | api.LLAMA_TOKEN_ATTR_USER_DEFINED
    kind_of, text_of = api.llama_vocab_get_attr, api.llama_vocab_get_text
    left, right = api.LLAMA_TOKEN_ATTR_LSTRIP, api.LLAMA_TOKEN_ATTR_RSTRIP
    found, n_vocab, types = [], int(api.llama_vocab_n_tokens(vocab)), header.raw("tokenizer.ggml.token_type")
    candidates: Iterable[int] = range(n_vocab)
    if len(types) == 4 * n_vocab:  # a quarter of a million calls would take a tenth of a second
        declared = np.flatnonzero(np.isin(np.frombuffer(types, "<i4"), _SPECIAL_TYPES)).tolist()
        named = {int(getattr(api, f"llama_vocab_{purpose}")(vocab)) for purpose in _PURPOSES}
        candidates = sorted({*declared, *ends, *(token for token in named if token >= 0)})
    for token in candidates:
        kind = kind_of(vocab, token)
        if kind & special:
            with contextlib.suppress(UnicodeDecodeError):
                text = text_of(vocab, token).decode()
                found.append(SpecialToken(text, token, bool(kind & control), bool(kind & left), bool(kind & right)))
    return tuple(found)


def encodable(text: str) -> str:
    """The text as llama.cpp is given it, index by index: what UTF-8 cannot hold is a question mark."""
    return text if text.isascii() else _SURROGATE.sub("?", text)


class Spellings:
    """Some texts, and where they stand in others. Thread-safe."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._known = frozenset(filter(None, texts))
        lengths: dict[str, set[int]] = {}
        for text in self._known:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found) for first, found in lengths.items()}
        self._first = re.compile(f"[{''.join(map(re.escape, lengths))}]") if lengths else None

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of every place, also of places that share characters."""
        if self._first is None:
            return
        for match in self._first.finditer(text):
            start = match.start()
            for length in self._lengths[text[start]]:
                if text[start : start + length] in self._known:
                    yield start, start + length


class PromptTokenizer:
    """Thread-safe."""

    def __init__(self, specials: Sequence[SpecialToken], tokenize: Callable[..., Tokens], has_lead: bool) -> None:
        """`tokenize(text, special=...)`: int32[n] tokens of a text; control tokens are read as such where they are
        `special`. `has_lead`: it adds a space before a text."""
        self._specials = {special.text: special for special in specials if special.text.strip(SPACE + "\u2581")}
        self._spellings = Spellings(self._specials)
        self._control = np.array([special.token for special in specials if special.control], dtype=np.int32)
        self._tokenize, self._has_lead = tokenize, has_lead

    def tokens(self, prompt: Prompt) -> Tokens:
        """int32[n]: those of its text with all special tokens, but for the spellings that go across a break."""
        text, breaks = encodable(prompt.text), prompt.breaks
        counted, cuts = self._found(text, breaks) if breaks else ([], {})
        if not cuts:
            return self._tokenize(prompt.text, special=True)
        parts: list[Tokens] = []
        at, strip = 0, False
        for start, special in [*counted, (len(text), None)]:
            end = start
            while strip and at < end and text[at] in SPACE:
                at += 1
            while special is not None and special.strips_left and at < end and text[end - 1] in SPACE:
                end -= 1
            if at < end:
                inside = sorted(cut for cut in cuts if at < cut < end)
                plain = self._pieces(text, [at, *(cut for cut in inside if cuts[cut]), end])
                if inside and np.isin(np.concatenate(plain), self._control).any():  # the parts of a word make one
                    plain = self._pieces(text, [at, *inside, end])
                parts += plain
            if special is not None:
                parts.append(np.array([special.token], dtype=np.int32))
                at, strip = start + len(special.text), special.strips_right
        return np.concatenate(parts) if parts else NO_TOKENS

    def _found(self, text: str, breaks: Sequence[int]) -> tuple[list[tuple[int, SpecialToken]], dict[int, bool]]:
        """(place, token) of the control tokens that count, and a break in each spelling that does not. A break says
        whether the text must be cut there, because the token is found in every text."""
        places = [(len(text[start:end].encode()), start, end) for start, end in self._spellings.places(text)]
        taken = bytearray(len(text))
        counted: list[tuple[int, SpecialToken]] = []
        cuts: dict[int, bool] = {}
        for _, start, end in sorted(places, key=lambda place: (-place[0], place[1])):
            special = self._specials[text[start:end]]
            at = bisect_right(breaks, start)
            if at < bisect_left(breaks, end):
                cuts[breaks[at]] = cuts.get(breaks[at], False) or not special.control
            elif not any(taken[start:end]):
                taken[start:end] = b"\1" * (end - start)
                if special.control:
                    counted.append((start, special))
        return sorted(counted), cuts

    def _pieces(self, text: str, edges: Sequence[int]) -> list[Tokens]:
        """Tokens of each piece of a text between two edges, none but the first with a space before it."""
        first, *rest = [text[start:end] for start, end in pairwise(edges)]
        return [self._tokenize(first, special=False), *(self._continued(piece) for piece in rest)]

    def _continued(self, text: str) -> Tokens:
        if self._has_lead:
            for lead in _LEADS:
                alone, both = self._tokenize(lead, special=False), self._tokenize(lead + text, special=False)
                if np.array_equal(both[: len(alone)], alone):
                    return both[len(alone) :]
        return self._tokenize(text, special=False)


_LONGEST_TAIL = 20  # tokens after the first one that are looked at, as in llama.cpp


def breakers(pieces: Sequence[bytes], texts: Sequence[str], tokenize: Callable[[str], Tokens]) -> Breakers:
    """Every way to begin one of the texts, none of them empty: a token that holds it, or that ends with its beginning,
    and then the rest. `pieces`: what each token stands for; `tokenize` makes no special ones."""
    found: set[tuple[int, ...]] = set()
    for text in texts:
        data = text.encode("utf-8", "replace")
        found |= {(token,) for token, piece in enumerate(pieces) if data in piece}
        for cut in range(1, len(data)):
            heads = [token for token, piece in enumerate(pieces) if piece.endswith(data[:cut]) and data not in piece]
            tail = tokenize(data[cut:].decode("utf-8", "replace"))[:_LONGEST_TAIL].tolist() if heads else []
            found |= {(head, *tail) for head in heads}
    sequences = sorted(found)
    firsts, tails = [one[0] for one in sequences], [token for one in sequences for token in one[1:]]
    offsets = np.cumsum([0, *(len(one) - 1 for one in sequences)])
    return Breakers(*(np.array(part, dtype=np.int32) for part in (firsts, offsets, tails)))


_NOTHING = b"\xff"  # no byte of UTF-8: what stands around it does not become a special token


class FewestTokens:
    """Thread-safe."""

    def __init__(self, texts: Sequence[bytes], control: Sequence[bytes], user_defined: Sequence[bytes]) -> None:
        """`texts` of all tokens, as the vocabulary writes them, which is never shorter than what they stand for;
        `control` and `user_defined` of the special ones, found where special tokens are read as such, and in every
        text."""
        self._longest = max(map(len, texts), default=1)
        self._everywhere = _longest_first(user_defined)
        self._marked = _longest_first([*control, *user_defined])

    def __call__(self, text: str, most: int, *, special: bool) -> int:
        """A text has this many tokens or more: none is longer than the longest, and no two special ones are one. What
        is beyond `most` is not counted. `special`: special tokens are read as such."""
        data = text.encode("utf-8", "replace")
        by_length = -(-len(data) // self._longest)
        specials = self._marked if special else self._everywhere
        if by_length > most or not specials or len(data) <= most * len(specials[-1]):
            return by_length
        found = 0
        for one in specials:
            if count := data.count(one):
                found += count
                if found > most:
                    break
                data = data.replace(one, _NOTHING)
        return max(by_length, found)


def _longest_first(texts: Sequence[bytes]) -> list[bytes]:
    """In the order in which llama.cpp looks for them: what is part of a longer one is not found there."""
    return sorted(filter(None, texts), key=len, reverse=True)
