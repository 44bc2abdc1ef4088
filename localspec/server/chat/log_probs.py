"""Log-probabilities in the two shapes of OpenAI's APIs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from localspec.engine.request import TokenLogProb
from localspec.llama.model import Model
from localspec.server.chat.shapes import ChatLogProbs, TextLogProbs, TokenLogProbs, TopLogProb


def chat_log_probs(found: Sequence[TokenLogProb], model: Model) -> ChatLogProbs:
    """The chat API's: an object a token, with its bytes."""
    return ChatLogProbs(content=[_with_top(one, model) for one in found], refusal=None)


class Offsets:
    """Where tokens begin in a text whose characters may be spread over several of them."""

    def __init__(self, at: int = 0) -> None:
        """`at`: characters of the text before the first token."""
        self.at = at
        """Characters that are whole by now."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, piece: bytes) -> int:
        """Takes the next token's bytes; the index of the character that the first of them belongs to."""
        first = len(self._decoder.decode(piece[:1]))  # 2 = what came before was the beginning of no character
        start = self.at + max(0, first - 1)
        self.at += first + len(self._decoder.decode(piece[1:]))
        return max(0, start)


def text_log_probs(found: Sequence[TokenLogProb], model: Model, offsets: Offsets, special: bool) -> TextLogProbs:
    """The completion API's: parallel lists.

    Args:
        found: of the tokens in question.
        model: spells them.
        offsets: of the text they belong to, taken on.
        special: whether control tokens are part of that text.
    """
    tops = [_by_text(one, model) for one in found]
    return TextLogProbs(
        tokens=[_text(one.token, model) for one in found],
        token_logprobs=[one.log_prob for one in found],
        top_logprobs=list(tops) if any(tops) else None,
        text_offset=[offsets.add(model.piece(one.token, special)) for one in found],
    )


def prompt_log_probs(first: int | None, found: Sequence[TokenLogProb], model: Model, text: str) -> TextLogProbs:
    """Those of an echoed prompt, in the same shape.

    Args:
        first: its first token, which has no probability; None = that one is not part of what is echoed.
        found: of all others.
        model: spells them.
        text: what is echoed.
    """
    tokens = [*([] if first is None else [first]), *(one.token for one in found)]
    offsets = Offsets(len(text) - len(model.detokenize(tokens, special=True)))  # a token may add a space of its own
    if first is not None:
        offsets.add(model.piece(first, special=True))
    told = text_log_probs(found, model, offsets, special=True)
    if first is not None:
        told.tokens.insert(0, _text(first, model))
        told.token_logprobs.insert(0, None)
        told.text_offset.insert(0, 0)
        if told.top_logprobs is not None:
            told.top_logprobs.insert(0, None)
    return told


def joined(one: TextLogProbs, other: TextLogProbs) -> TextLogProbs:
    """Two stretches of a text as one."""
    tops = [*(one.top_logprobs or [None] * len(one.tokens)), *(other.top_logprobs or [None] * len(other.tokens))]
    return TextLogProbs(
        tokens=one.tokens + other.tokens,
        token_logprobs=one.token_logprobs + other.token_logprobs,
        top_logprobs=tops if any(tops) else None,
        text_offset=one.text_offset + other.text_offset,
    )


def _by_text(one: TokenLogProb, model: Model) -> dict[str, float]:
    """The likely tokens with a name each: the emitted one alone has its text, so that a client may look for it; others
    have theirs unless it is taken, and then their id, as vLLM spells it."""
    found: dict[str, float] = {}
    emitted = _text(one.token, model)
    for token, value in one.top:
        text = _text(token, model)
        taken = text in found or (text == emitted and token != one.token)
        found[f"token_id:{token}" if taken else text] = value
    return found


def _with_top(one: TokenLogProb, model: Model) -> TokenLogProbs:
    top = [_plain(token, value, model) for token, value in one.top]
    return TokenLogProbs(**_plain(one.token, one.log_prob, model).model_dump(), top_logprobs=top)


def _plain(token: int, value: float, model: Model) -> TopLogProb:
    piece = list(model.piece(token, special=True))
    return TopLogProb(id=token, token=_text(token, model), logprob=value, bytes=piece)


def _text(token: int, model: Model) -> str:
    return model.piece(token, special=True).decode("utf-8", "replace")
