"""Log-probabilities in the two shapes of OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engine.request import TokenLogProb
from localspec.llama.model import Model
from localspec.server.shapes import ChatLogProbs, TextLogProbs, TokenLogProbs, TopLogProb


def chat_log_probs(found: Sequence[TokenLogProb], model: Model) -> ChatLogProbs:
    """The chat API's: an object a token, with its bytes."""
    return ChatLogProbs(content=[_with_top(one, model) for one in found], refusal=None)


def text_log_probs(found: Sequence[TokenLogProb], model: Model, offset: int) -> TextLogProbs:
    """The completion API's: parallel lists.

    Args:
        found: of the tokens in question.
        model: spells them.
        offset: characters of text before the first of them.
    """
    texts = [_text(one.token, model) for one in found]
    offsets = []
    for text in texts:
        offsets.append(max(0, offset))
        offset += len(text)
    tops = [_by_text(one, model) for one in found]
    return TextLogProbs(
        tokens=texts,
        token_logprobs=[one.log_prob for one in found],
        top_logprobs=list(tops) if any(tops) else None,
        text_offset=offsets,
    )


def prompt_log_probs(first: int | None, found: Sequence[TokenLogProb], model: Model, text: str) -> TextLogProbs:
    """Those of an echoed prompt, in the same shape.

    Args:
        first: its first token, which has no probability; None = that one is not part of what is echoed.
        found: of all others.
        model: spells them.
        text: what is echoed.
    """
    spelled = sum(len(_text(one.token, model)) for one in found)
    told = text_log_probs(found, model, len(text) - spelled)
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
