"""A conversation in the words of one model: its prompt, with what the answer already says, and how to read the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from localspec.chat.prompt.prompt import MOST_TOKENS, continued
from localspec.chat.reply.reply import Parser, Verbatim
from localspec.chat.turn import Message

if TYPE_CHECKING:
    from localspec.runtime.engine import Engine


class Asked:
    """An answer that is wanted. Without a chat template the text goes on, for a limited number of tokens."""

    def __init__(
        self,
        engine: Engine,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        reasoning: str = "",
        prefix: str = "",
        thought_out: bool = False,
        raw: bool = False,
    ) -> None:
        """
        Args:
            engine: that answers.
            messages: the conversation.
            thinking: whether the model thinks before it answers, where its chat template can switch that.
            reasoning: what it has thought already.
            prefix: what the answer already says.
            thought_out: the thinking ends where it is, and the answer begins.
            raw: the text is wanted as the model says it, its marks included.
        """
        turn = engine.dialect.turn(messages)
        wanted: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
        completes = not engine.template.exists
        if completes:
            prompt = engine.tokenize(continued(turn.messages))
        else:
            prompt = engine.chat_tokens(turn.messages, **turn.variables, **wanted)
        self.prompt, reply = turn.resume(prompt, reasoning, prefix, thought_out)
        self.reply: Parser = Verbatim() if raw else reply
        """Reads what the model says."""
        self.preserved = frozenset[int]() if raw else turn.preserved
        """Control tokens that `reply` must see."""
        self.most = MOST_TOKENS if completes else None
        """Tokens of an answer of which nobody says how long it may be; None = as many as there is room for."""
