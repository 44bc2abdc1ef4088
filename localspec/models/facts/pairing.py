"""Whether a file can draft for a target, in words: from the two headers alone, before anything is loaded or fetched.

The rule is llama.cpp's for draft models (common/speculative.cpp), made strict: the kind of tokenizer, begin and end
tokens, sizes that differ by at most 128 (families pad differently), and the text of every token from id 5 on. What
differs without harm is a warning. A wrong pair would not change the text, it would only never be right.

A whole draft model with another tokenizer fits where that is wanted, over the tokens that both vocabularies have
(`shared_vocabulary`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from localspec.errors import ModelFileError, PairError
from localspec.gguf import Header
from localspec.gguf.reader import DOWNLOAD_AGAIN
from localspec.models.facts.heads import DraftKind, check_head, draft_kind, keeps_state
from localspec.models.facts.vocabulary import READABLE, SharedVocabulary, Vocabulary, share, vocabulary

MOST_SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5
"""Tokens before this one (unknown, begin, end, padding) may be written differently."""

TRAINED_FOR = "localspec.trained_for"
"""Key of a file's metadata: the sha256 of the target that `localspec train` made it for."""
_MOST_FOREIGN = 16
"""Texts of such a file's tokens that its target may lack: names of control tokens that one of the two reads as text."""

_WAY_OUT = "--cross-tokenizer lets it draft over the tokens that both have"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first fact in which target and draft differ."""

    fact: str
    """Such as "eos" or "token text"."""
    target: str
    draft: str
    token: int | None = None
    """The first differing token, where the fact is about one."""


@dataclass(frozen=True, slots=True)
class Match:
    """What there is to say about a pair."""

    fits: bool
    method: str
    """How the draft file would draft: "draft", "eagle3", "mtp", ...; see `heads.draft_kind`."""
    verdict: str
    """One sentence."""
    difference: Difference | None = None
    warnings: tuple[str, ...] = ()
    """Sentences about what differs and does no harm to the text."""
    masked: int = 0
    """Ids of the draft beyond the target's vocabulary, which it may not guess."""
    shared: SharedVocabulary | None = None
    """What both vocabularies have, where tokenizers differ and it was asked for."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data; `shared` is a number of tokens."""
        return asdict(replace(self, shared=None)) | {"shared": None if self.shared is None else len(self.shared)}


def check(target: Header, draft: Header, *, cross_tokenizer: bool = False) -> Match:
    """`match`, for those who need a pair that fits.

    Raises:
        PairError: it does not; the message names the first difference.
    """
    found = match(target, draft, cross_tokenizer=cross_tokenizer)
    if not found.fits:
        raise PairError(found.verdict, "`localspec suggest` names drafts that fit.")
    return found


def match(target: Header, draft: Header, *, cross_tokenizer: bool = False) -> Match:
    """Compares two headers.

    Args:
        target: of the model whose text is emitted.
        draft: of the one that should guess.
        cross_tokenizer: whether it may do so with another tokenizer.
    """
    kind = draft_kind(draft)
    subject = f"{draft.path.name} cannot draft for {target.path.name}"
    base = draft_kind(target)
    if base.is_head or not base.drafts:
        fact = Difference("kind of file", base.sentence, kind.sentence)
        return Match(False, kind.method, f"{target.path.name} cannot be a target: it is {base.sentence}.", fact)
    if not kind.drafts:
        fact = Difference("kind of file", "a language model", kind.sentence)
        return Match(False, kind.method, f"{subject}: it is {kind.sentence}.", fact)
    if kind.is_head and (fault := check_head(kind, target, draft)) is not None:
        fact = Difference(*fault)
        return Match(False, kind.method, f"{subject}: {_in_words(fact)}.", fact)
    ours, theirs = _sound_vocabulary(target), _sound_vocabulary(draft)
    if kind.is_head and not theirs.kind:
        note = "the head brings no tokenizer: that it was trained for this target is taken from its sizes alone"
        return Match(True, kind.method, _fitting(target, draft, kind), None, (note,))
    difference = next(differences(ours, theirs), None)
    if difference is not None:
        may_cross = not kind.is_head and {ours.kind, theirs.kind} <= READABLE
        if may_cross and draft.text(TRAINED_FOR):
            return _part(target, draft, kind, share(ours, theirs))
        if may_cross and cross_tokenizer:
            return _crossing(target, draft, kind, difference, share(ours, theirs))
        way_out = f"; {_WAY_OUT}" if may_cross else ""
        return Match(False, kind.method, f"{subject}: {_in_words(difference)}{way_out}.", difference)
    return Match(
        True,
        kind.method,
        _fitting(target, draft, kind),
        None,
        (*_harmless(ours, theirs), *_templates(target, draft, kind), *_states(target, draft)),
        max(0, theirs.size - ours.size),
    )


def _sound_vocabulary(header: Header) -> Vocabulary:
    """The tokenizer of a file.

    Raises:
        ModelFileError: its tokens and their types are not equally many, or the file has changed.
    """
    found = vocabulary(header)
    if found.types and len(found.types) != found.size:
        raise ModelFileError(
            f"{header.path} is corrupt: it has {found.size} tokens and {len(found.types)} types of tokens.",
            DOWNLOAD_AGAIN,
        )
    return found


def _part(target: Header, draft: Header, kind: DraftKind, shared: SharedVocabulary) -> Match:
    """The verdict on a draft model of `localspec train`, whose vocabulary is a part of its target's."""
    if shared.foreign > _MOST_FOREIGN:
        fact = Difference("tokens", str(shared.target_size), str(shared.draft_size))
        verdict = f"{draft.path.name} cannot draft for {target.path.name}: it was trained for another model."
        return Match(False, kind.method, verdict, fact)
    verdict = f"{_fitting(target, draft, kind)[:-1]} that has a part of its vocabulary."
    return Match(True, kind.method, verdict, None, (), shared=shared)


def _crossing(
    target: Header, draft: Header, kind: DraftKind, difference: Difference, shared: SharedVocabulary
) -> Match:
    """The verdict on a draft model with another tokenizer."""
    count = f"{len(shared)} of {shared.target_size} tokens shared"
    if not shared.enough:
        verdict = f"{draft.path.name} cannot draft for {target.path.name}: tokenizers differ, with {count}: too few."
        return Match(False, kind.method, verdict, difference, shared=shared)
    note = f"tokenizers differ: {count}, only these are guessed, so it is right less often ({_in_words(difference)})"
    warnings = (note, *_templates(target, draft, kind), *_states(target, draft))
    return Match(True, kind.method, _fitting(target, draft, kind), difference, warnings, shared=shared)


def differences(target: Vocabulary, draft: Vocabulary) -> Iterator[Difference]:
    """What keeps a pair apart, in the order of the rule; of the token texts the first that differs only."""
    if target.kind != draft.kind or not target.kind:
        yield Difference("kind of tokenizer", target.kind or "none", draft.kind or "none")
    for name in ("add_bos", "bos", "add_eos", "eos"):
        ours, theirs = getattr(target, name), getattr(draft, name)
        if ours != theirs:
            yield Difference(name, _id(ours), _id(theirs))
    if abs(target.size - draft.size) > MOST_SIZE_DIFFERENCE:
        yield Difference("size", str(target.size), str(draft.size))
    if target.tokens == draft.tokens:
        return
    for token in range(FIRST_COMPARED, min(target.size, draft.size)):
        if target.tokens[token] != draft.tokens[token]:
            yield Difference("token text", target.text(token), draft.text(token), token)
            return


def _id(value: int | None) -> str:
    return "none" if value is None else str(value)


def _in_words(difference: Difference) -> str:
    ours, theirs = difference.target, difference.draft
    if difference.fact == "kind of tokenizer":
        return f"their tokenizers are of different kinds ({ours}, {theirs})"
    if difference.fact == "size":
        return (
            f"the target has {ours} tokens, the draft model {theirs}; {MOST_SIZE_DIFFERENCE} more or less are allowed"
        )
    if difference.token is not None:
        return f"token {difference.token} is {ours!r} in the target and {theirs!r} in the draft model"
    return f"{difference.fact} is {ours} in the target and {theirs} in the draft model"


def _fitting(target: Header, draft: Header, kind: DraftKind) -> str:
    return f"{draft.path.name} can draft for {target.path.name}, as {kind.sentence}."


def _harmless(target: Vocabulary, draft: Vocabulary) -> Iterator[str]:
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
    if target.types and draft.types and target.types != draft.types:
        pairs = enumerate(zip(target.types, draft.types, strict=False))
        found = next(((token, *kinds) for token, kinds in pairs if kinds[0] != kinds[1]), None)
        if found is not None:
            token, ours, theirs = found
            yield f"token {token} {target.text(token)!r} has type {ours} in the target and {theirs} in the draft"


def _templates(target: Header, draft: Header, kind: DraftKind) -> Iterator[str]:
    """The draft reads the prompt the target's template makes; a draft trained on another format guesses worse."""
    ours, theirs = target.chat_template, draft.chat_template
    if kind.is_head or ours == theirs:
        return
    if ours is None:
        yield "the target has no chat template, the draft has one: chats need a target with one"
    elif theirs is None:
        yield "the draft has no chat template (a base model?): it reads the target's chat format, which it may not know"
    elif _essence(ours) != _essence(theirs):
        only = ", ".join(sorted(template_marks(ours) ^ template_marks(theirs))[:4])
        if only:
            yield f"chat templates use different marks ({only}): the draft reads the target's and may guess worse"
        else:
            yield "chat templates differ in details; both models read the prompt as the target's writes it"


def _states(target: Header, draft: Header) -> Iterator[str]:
    for name, header in (("target", target), ("draft", draft)):
        if keeps_state(header):
            yield f"the {name} has recurrent layers ({header.architecture}), whose guesses cannot simply be taken back"


def _essence(template: str) -> str:
    """A Jinja template without comments and white space."""
    return re.sub(r"\s+", "", re.sub(r"\{#.*?#\}", "", template, flags=re.DOTALL))


def template_marks(template: str) -> frozenset[str]:
    """The control tokens a template writes, such as <|im_start|>."""
    return frozenset(re.findall(r"<\|?[\w./▁|\uff5c-]{2,40}\|?>|\[/?[A-Z_]{3,20}\]", template))
