"""Whether a file can draft for a target, in words: from the two headers alone, before anything is loaded or fetched.

The rule is llama.cpp's for draft models (common/speculative.cpp), made strict: the kind of tokenizer, begin and end
tokens, sizes that differ by at most 128 (families pad differently), and the text of every token from id 5 on. What
differs without harm is a warning. A wrong pair would not change the text, it would only never be right.

A whole draft model with another tokenizer fits where that is wanted, over the tokens that both vocabularies have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from localspec.errors import ModelFileError, PairError
from localspec.gguf import DOWNLOAD_AGAIN, Header
from localspec.methods import FROM_FILES, HEADS, OF_ITS_OWN, ROWS
from localspec.models.facts.heads import DraftKind, check_head, draft_kind, keeps_guesses, keeps_state, nextn_layers
from localspec.types import Tokens

KINDS = {  # `tokenizer.ggml.model` -> the kind of tokenizer llama.cpp makes of it
    "llama": "SPM", "gpt2": "BPE", "gemma4": "BPE", "hybriddna": "BPE", "whitespace": "BPE", "bert": "WPM",
    "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2",
}  # fmt: skip

_BOS_EOS = {"SPM": (1, 2), "BPE": (11, 11), "WPM": (101, None), "UGM": (None, 1), "PLaMo-2": (1, 2)}
_ADDS = {"SPM": (True, False), "WPM": (True, False), "UGM": (False, True)}
_PRE_ADDS_BOS = frozenset((
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken",
    "chameleon",
))  # fmt: skip
_MARKS = ("eot", "fim_pre", "fim_suf", "fim_mid")
_PRE_WITHOUT_BOS = frozenset(("chatglm-bpe", "glm4", "glm5"))


@dataclass(frozen=True, slots=True)
class FileVocabulary:
    """The facts that decide whether two models speak of the same tokens."""

    kind: str  # "SPM", "BPE", ...; "" = the file has no tokenizer
    pre: str  # Pre-tokenizer; "" = not stated
    bos: int | None
    eos: int | None
    add_bos: bool  # whether a text starts with `bos`
    add_eos: bool  # whether a text ends with `eos`
    tokens: Sequence[bytes] = field(repr=False)
    types: Sequence[int] = field(default=(), repr=False)  # as llama.cpp has them; none, or in a damaged file too few
    merges: bytes = field(default=b"", repr=False)  # BPE merges, as the file writes them
    merge_count: int = 0
    marks: Mapping[str, int] = field(default_factory=dict, repr=False)  # control tokens named by purpose (`_MARKS`)

    @property
    def size(self) -> int:
        return len(self.tokens)

    def text(self, token: int | None) -> str:
        return "" if token is None else self.tokens[token].decode("utf-8", "replace")


def doubt_of(header: Header) -> str:
    """What a file does not say about its tokenizer and llama.cpp guesses, in a sentence; "" = nothing."""
    if KINDS.get(header.text("tokenizer.ggml.model")) != "BPE" or vocabulary(header).pre:
        return ""
    guessed = "The file does not say how its tokenizer splits text (tokenizer.ggml.pre), so llama.cpp guesses"
    return f"{guessed}: answers may be worse. Newer conversions say it."


def vocabulary(header: Header) -> FileVocabulary:
    model, pre = header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre")
    kind, tokens = KINDS.get(model, model), header.token_bytes
    bos, eos = _BOS_EOS.get(kind, (None, None)) if model != "gemma4" else (None, None)
    if kind == "BPE" and pre in _PRE_WITHOUT_BOS:
        bos = None
    usual = _ADDS.get(kind, (kind == "BPE" and pre in _PRE_ADDS_BOS, False))
    stated = [header.flag(f"tokenizer.ggml.{key}") for key in ("add_bos_token", "add_eos_token")]
    add_bos, add_eos = (one if said is None else said for said, one in zip(stated, usual, strict=True))
    marks = {name: _special(header, f"{name}_token_id", None, len(tokens)) for name in _MARKS}
    return FileVocabulary(
        kind=kind,
        pre="gemma4" if model == "gemma4" else pre,
        bos=_special(header, "bos_token_id", bos, len(tokens)),
        eos=_special(header, "eos_token_id", eos, len(tokens)),
        add_bos=add_bos or model == "gemma4" or (kind == "BPE" and pre == "gemma4"),
        add_eos=add_eos,
        tokens=tokens,
        types=header.token_types,
        merges=header.raw("tokenizer.ggml.merges"),
        merge_count=header.count("tokenizer.ggml.merges"),
        marks={name: token for name, token in marks.items() if token is not None},
    )


def _special(header: Header, key: str, default: int | None, size: int) -> int | None:
    """The id in the file; one beyond the vocabulary is ignored, as llama.cpp does."""
    value = header.metadata.get(f"tokenizer.ggml.{key}")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size:
        return value
    return default if default is not None and default < size else None


# Which tokens of two vocabularies say the same: all that a draft model with another tokenizer may guess.
#
# Text tokens are the same where they add the same bytes to a text, however each file writes them; control tokens where
# they have the same name or the same purpose (the end of an answer, the marks around a gap).

LEAST_SHARED = 0.1  # of the smaller vocabulary, that both must have; with less (the 256 bytes, say) little is guessed
READABLE = frozenset(("BPE", "SPM", "UGM", "WPM"))  # kinds of tokenizers whose tokens `piece` can read
_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6
_SPACE = "\u2581".encode()
_BYTE_TEXT = re.compile(rb"<0x[0-9a-fA-F]{2}.", re.DOTALL)
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
_LETTERS = {chr(byte): byte for byte in _VISIBLE} | {chr(256 + at): byte for at, byte in enumerate(_HIDDEN)}
"""GPT-2's way to write bytes: visible Latin-1 as it is, all others as the letters from U+0100 on."""
Ids: TypeAlias = dict[bytes, int]


@dataclass(frozen=True, slots=True, eq=False)
class SharedVocabulary:
    """The tokens a target and a draft model have in common, one to one."""

    target_size: int
    draft_size: int
    target_ids: Tokens  # int32[n], ascending
    draft_ids: Tokens  # int32[n], the draft's ids of the same tokens
    controls: Mapping[int, int]  # those among them that are no text: the target's id -> the draft's
    byte_ids: Mapping[int, int]  # byte -> the draft's token of that byte alone, as far as it has one
    foreign: int = 0  # texts of the draft's tokens that no token of the target has

    def __len__(self) -> int:
        return len(self.target_ids)

    @property
    def enough(self) -> bool:
        """Whether guesses over these tokens alone are worth making."""
        return len(self) >= max(1.0, LEAST_SHARED * min(self.target_size, self.draft_size))


def share(target: FileVocabulary, draft: FileVocabulary) -> SharedVocabulary:
    """Compares two vocabularies token by token; of several tokens with the same bytes the first that is no bare byte
    counts, which is the one that models say. Each must have as many types as tokens, or none."""
    ours, theirs = _texts(target), _texts(draft)
    same = {token: theirs[text] for text, token in ours.items() if text in theirs}
    foreign, controls = len(theirs) - len(same), dict[int, int]()
    taken = set(same.values())
    for own, others in ((_names(target), _names(draft)), (_purposes(target), _purposes(draft))):
        for one, other in ((token, others[name]) for name, token in own.items() if name in others):
            if one not in same and one not in controls and other not in taken:  # one of the two reads it as control
                controls[one] = other
                taken.add(other)
    pairs = np.array(sorted((same | controls).items()), dtype=np.int32).reshape(-1, 2)
    bare = {text[0]: token for text, token in theirs.items() if len(text) == 1}
    ids = (np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1]))
    return SharedVocabulary(target.size, draft.size, *ids, controls, bare, foreign)


def _purposes(found: FileVocabulary) -> Mapping[Any, int]:
    """What control tokens are for. A file that names no end of a turn ends it with `eos`."""
    return found.marks if found.eos is None else {"eot": found.eos, **found.marks, "eos": found.eos}


def _names(found: FileVocabulary) -> Mapping[Any, int]:
    """Control tokens, and those a file's author added, by name."""
    names: Ids = {}
    for wanted in (_CONTROL, _USER_DEFINED):
        for token, kind in enumerate(found.types):
            if kind == wanted:
                names.setdefault(found.tokens[token], token)
    return names


def _texts(found: FileVocabulary) -> Ids:
    """Text tokens by the bytes they add."""
    texts: Ids = {}
    bare: Ids = {}
    by_letters = found.kind == "BPE" and found.pre != "gemma4"
    types = found.types if len(found.types) == found.size else [_NORMAL] * found.size
    for token, (kind, text) in enumerate(zip(types, found.tokens, strict=True) if found.kind in READABLE else ()):
        if kind == _NORMAL and by_letters:  # byte-level BPE writes bytes as letters; a text that uses others is none
            try:
                piece = bytes([_LETTERS[letter] for letter in text.decode()])
            except (KeyError, UnicodeDecodeError):
                continue
        elif kind == _NORMAL:
            piece = text.replace(_SPACE, b" ")
        elif kind == _BYTE:
            piece = bytes.fromhex(text[3:5].decode()) if _BYTE_TEXT.fullmatch(text) else b""
        else:
            piece = text if kind == _USER_DEFINED else b""
        if piece:
            (bare if kind == _BYTE else texts).setdefault(piece, token)
    return bare | texts


MOST_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5  # tokens before this one (unknown, begin, end, padding) may be written differently

TRAINED_FOR = "localspec.trained_for"  # key of a file: the sha256 of the target that `localspec train` made it for
_MOST_FOREIGN = 16  # texts of its tokens that its target may lack: control tokens that one of the two reads as text

_WAY_OUT = "--cross-tokenizer lets it draft over the tokens that both have"


@dataclass(frozen=True, slots=True)
class Difference:
    fact: str  # such as "eos" or "token text"
    target: str
    draft: str
    token: int | None = None  # the first differing token, where the fact is about one


@dataclass(frozen=True, slots=True)
class Match:
    fits: bool
    method: str  # how the draft file would draft: "draft", "eagle3", "mtp", ...; see `heads.draft_kind`
    verdict: str
    difference: Difference | None = None
    warnings: tuple[str, ...] = ()  # sentences about what differs and does no harm to the text
    masked: int = 0  # ids of the draft beyond the target's vocabulary, which it may not guess
    shared: SharedVocabulary | None = None  # what both vocabularies have, where tokenizers differ and it was asked for

    def as_dict(self) -> dict[str, Any]:
        """`shared` is a number of tokens."""
        return asdict(replace(self, shared=None)) | {"shared": None if self.shared is None else len(self.shared)}


def check(target: Header, draft: Header, *, cross_tokenizer: bool = False) -> Match:
    """`match`, for those who need a pair that fits. Raises PairError: it does not; names the first difference."""
    found = match(target, draft, cross_tokenizer=cross_tokenizer)
    if not found.fits:
        raise PairError(found.verdict, "`localspec suggest` names drafts that fit.")
    return found


def match(target: Header, draft: Header, *, cross_tokenizer: bool = False) -> Match:
    """Compares two headers. `cross_tokenizer`: whether the draft may have another tokenizer. Raises ModelFileError: a
    file has not as many types of tokens as tokens, or has changed."""
    kind, base = draft_kind(draft), draft_kind(target)

    def no(why: str, fact: Difference, shared: SharedVocabulary | None = None) -> Match:
        verdict = f"{draft.path.name} cannot draft for {target.path.name}: {why}."
        return Match(False, kind.method, verdict, fact, shared=shared)

    if base.is_head or not base.drafts:
        fact = Difference("kind of file", base.sentence, kind.sentence)
        return Match(False, kind.method, f"{target.path.name} cannot be a target: it is {base.sentence}.", fact)
    if not kind.drafts:
        return no(f"it is {kind.sentence}", Difference("kind of file", "a language model", kind.sentence))
    if kind.is_head and (fault := check_head(kind, target, draft)) is not None:
        return no(_in_words(Difference(*fault)), Difference(*fault))
    ours, theirs = vocabulary(target), vocabulary(draft)
    for header, found in ((target, ours), (draft, theirs)):
        if found.types and len(found.types) != found.size:
            text = f"{header.path} is corrupt: it has {found.size} tokens and {len(found.types)} types of tokens."
            raise ModelFileError(text, DOWNLOAD_AGAIN)
    fits = f"{draft.path.name} can draft for {target.path.name}, as {kind.sentence}"
    if kind.is_head and not theirs.kind:
        note = "the head brings no tokenizer: that it was trained for this target is taken from its sizes alone"
        return Match(True, kind.method, f"{fits}.", None, (note,))
    notes = [*_templates(target, draft, kind)]
    for name, header in (("target", target), ("draft", draft)):
        if keeps_state(header):
            layers = f"has recurrent layers ({header.architecture})"
            notes.append(f"the {name} {layers}, whose guesses cannot simply be taken back")
    difference = next(differences(ours, theirs), None)
    if difference is None:
        more = max(0, theirs.size - ours.size)
        return Match(True, kind.method, f"{fits}.", None, (*_harmless(ours, theirs), *notes), more)
    may_cross, words = not kind.is_head and {ours.kind, theirs.kind} <= READABLE, _in_words(difference)
    if may_cross and draft.text(TRAINED_FOR):
        shared = share(ours, theirs)
        if shared.foreign > _MOST_FOREIGN:
            fact = Difference("tokens", str(shared.target_size), str(shared.draft_size))
            return no("it was trained for another model", fact)
        return Match(True, kind.method, f"{fits} that has a part of its vocabulary.", shared=shared)
    if may_cross and cross_tokenizer:
        shared = share(ours, theirs)
        count = f"{len(shared)} of {shared.target_size} tokens shared"
        if not shared.enough:
            return no(f"tokenizers differ, with {count}: too few", difference, shared)
        note = f"tokenizers differ: {count}, only these are guessed, so it is right less often ({words})"
        return Match(True, kind.method, f"{fits}.", difference, (note, *notes), shared=shared)
    return no(words + (f"; {_WAY_OUT}" if may_cross else ""), difference)


def differences(target: FileVocabulary, draft: FileVocabulary) -> Iterator[Difference]:
    """What keeps a pair apart, in the order of the rule; of the token texts the first that differs only."""
    if target.kind != draft.kind or not target.kind:
        yield Difference("kind of tokenizer", target.kind or "none", draft.kind or "none")
    for name in ("add_bos", "bos", "add_eos", "eos"):
        ours, theirs = getattr(target, name), getattr(draft, name)
        if ours != theirs:
            ours, theirs = ("none" if one is None else str(one) for one in (ours, theirs))
            yield Difference(name, ours, theirs)
    if abs(target.size - draft.size) > MOST_SIZE_DIFFERENCE:
        yield Difference("size", str(target.size), str(draft.size))
    if target.tokens == draft.tokens:
        return
    for token in range(FIRST_COMPARED, min(target.size, draft.size)):
        if target.tokens[token] != draft.tokens[token]:
            yield Difference("token text", target.text(token), draft.text(token), token)
            return


def _in_words(difference: Difference) -> str:
    ours, theirs = difference.target, difference.draft
    if difference.fact == "kind of tokenizer":
        return f"their tokenizers are of different kinds ({ours}, {theirs})"
    if difference.fact == "size":
        allowed = f"{MOST_SIZE_DIFFERENCE} more or less are allowed"
        return f"the target has {ours} tokens, the draft model {theirs}; {allowed}"
    if difference.token is not None:
        return f"token {difference.token} is {ours!r} in the target and {theirs!r} in the draft model"
    return f"{difference.fact} is {ours} in the target and {theirs} in the draft model"


def _harmless(target: FileVocabulary, draft: FileVocabulary) -> Iterator[str]:
    for token in range(min(FIRST_COMPARED, target.size, draft.size)):
        if target.tokens[token] != draft.tokens[token]:
            yield f"token {token} is {target.text(token)!r} in the target and {draft.text(token)!r} in the draft"
    more = target.size - draft.size
    if more > 0:
        yield f"the target's last {more} tokens are unknown to the draft: a text that holds one is not drafted"
    elif more < 0:
        yield f"the draft's last {-more} tokens are unknown to the target and are never guessed"
    unread = "the draft never tokenises, so only the target's count"
    if target.pre != draft.pre:
        yield f"pre-tokenizers differ ({target.pre or 'none'}, {draft.pre or 'none'}); {unread}s"
    if target.merges != draft.merges:
        yield f"merges differ ({target.merge_count}, {draft.merge_count}); {unread}"
    kinds = () if target.types == draft.types else zip(target.types, draft.types, strict=False)  # either may be empty
    for token, (ours, theirs) in enumerate(kinds):
        if ours != theirs:
            yield f"token {token} {target.text(token)!r} has type {ours} in the target and {theirs} in the draft"
            return


def _templates(target: Header, draft: Header, kind: DraftKind) -> Iterator[str]:
    """The draft reads the prompt the target's template makes; a draft trained on another format guesses worse."""
    ours, theirs = target.chat_template, draft.chat_template
    if kind.is_head or ours == theirs:
        return
    if ours is None:
        yield "the target has no chat template, the draft has one: chats need a target with one"
    elif theirs is None:
        yield "the draft has no chat template (a base model?): it reads the target's chat format, which it may not know"
    elif len({re.sub(r"\{#.*?#\}|\s+", "", text, flags=re.DOTALL) for text in (ours, theirs)}) > 1:
        if only := ", ".join(sorted(template_marks(ours) ^ template_marks(theirs))[:4]):
            yield f"chat templates use different marks ({only}): the draft reads the target's and may guess worse"
        else:
            yield "chat templates differ in details; both models read the prompt as the target's writes it"


def template_marks(template: str) -> frozenset[str]:
    return frozenset(re.findall(r"<\|?[\w./▁|\uff5c-]{2,40}\|?>|\[/?[A-Z_]{3,20}\]", template))


def rank(method: str, mixture: bool = False) -> int:
    """The place of a way to draft among all, 0 the most promising. In a mixture of experts each row of a pass reads
    some of its own, so short drafts come first."""
    if mixture and method in ROWS and ROWS[method].family:
        return -1
    order = (*HEADS, "draft")
    return order.index(method) if method in order else len(order)


def refusal(target: Sequence[Header], draft: Header, whole: bool = False) -> str:
    """Why a file cannot be the drafter of a model: a clause; "" = it can. `whole`: it may be a whole model; else only
    a head."""
    kind, model = draft_kind(draft), target[0]
    if not kind.drafts:
        return f"it is {kind.sentence}"
    if kind.method == "draft" and not whole:
        return "it is a whole model, no head"
    if kind.method not in FROM_FILES:
        return f"it is {kind.sentence}, which localspec cannot draft with yet"
    if fault := misfit(target, draft):
        return fault
    found = match(model, draft)
    subject = f"{draft.path.name} cannot draft for {model.path.name}: "
    return "" if found.fits else found.verdict.removeprefix(subject).rstrip(".")


def irreversible(model: Header) -> str:
    """Why no guess of a drafter can be taken back from a model's cache: a clause; "" = it can."""
    if not keeps_guesses(model):
        return ""
    return f"the model keeps a recurrent state ({model.architecture}), from which guesses cannot be taken back"


def misfit(target: Sequence[Header], draft: Header) -> str:
    """The first fact by which a head that is part of one family of models is another's: a clause; "" = none."""
    method, model = draft_kind(draft).method, target[0]
    family = draft.architecture.removesuffix("-assistant")
    if method in ROWS and ROWS[method].family and family != model.architecture:
        return f"architecture is {model.architecture} in the target and {family} in the head"
    theirs = draft.n_layers - draft.number("nextn_predict_layers")
    ours = {model.n_layers - count for count in (nextn_layers(target), model.number("nextn_predict_layers"))}
    if method != OF_ITS_OWN or theirs in ours:  # a model whose MTP layers were taken out may still count them
        return ""
    return f"number of layers is {max(ours)} in the target and {theirs} in the head"
