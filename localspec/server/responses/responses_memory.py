"""Answers of `/v1/responses` that later requests may refer to: in memory, as many as fit, the oldest go first."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from localspec.server.chat.chat_fields import ChatMessage
from localspec.server.http.errors import ApiError
from localspec.server.responses.responses_shapes import ResponseObject

MOST_ANSWERS = 1024
MOST_BYTES = 64 << 20
_OVERHEAD = 2048
"""Bytes of an answer besides its text, about."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """One answer."""

    response: ResponseObject
    conversation: tuple[ChatMessage, ...]
    """All messages up to and with the answer, without instructions."""


class ResponseMemory:
    """Belongs to the event loop."""

    def __init__(self, most_answers: int = MOST_ANSWERS, most_bytes: int = MOST_BYTES) -> None:
        self._most_answers, self._most_bytes = most_answers, most_bytes
        self._kept: OrderedDict[str, tuple[Remembered, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, answer: Remembered) -> None:
        """Remembers an answer, and forgets those used longest ago for which there is no room any more."""
        size = _OVERHEAD + sum(map(_size, answer.conversation))
        self._kept[answer.response.id] = answer, size
        self._bytes += size
        while len(self._kept) > self._most_answers or self._bytes > self._most_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed

    def find(self, key: str, param: str) -> Remembered:
        """An answer by its id.

        Args:
            key: the id.
            param: the field it was given in, for the error.

        Raises:
            ApiError: it is not, or no longer, remembered.
        """
        found = self._kept.get(key)
        if found is None:
            status, kind = (404, "not_found_error") if param == "response_id" else (400, "invalid_request_error")
            what = f"There is no response {key[:80]!r} here. They are kept in memory, and the oldest are forgotten."
            raise ApiError(status, kind, what, param=param, code="previous_response_not_found")
        self._kept.move_to_end(key)
        return found[0]

    def forget(self, key: str) -> None:
        """Drops an answer.

        Raises:
            ApiError: 404, it is not remembered.
        """
        self.find(key, "response_id")
        self._bytes -= self._kept.pop(key)[1]


def _size(message: ChatMessage) -> int:
    """Characters of a message, about."""
    calls = sum(len(call.function.arguments) for call in message.tool_calls or ())
    return len(str(message.content)) + len(message.reasoning_content or "") + calls
