"""A server as an answerer: vLLM, llama-server, another localspec. A thread reads each answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

from localspec.engine.request import FinishReason
from localspec.errors import Cancelled, LocalspecError
from localspec.remote.answerer import (
    AnswerEnded,
    AnswerPart,
    Facts,
    LoadFailed,
    Loading,
    ModelReady,
    Prefilled,
    Question,
    Sink,
)
from localspec.remote.asking import Asking, Reply
from localspec.remote.server import Server


class ServedAnswerer:
    """Asks `URL/chat/completions` with `stream`; knows no tokens, origins or context."""

    checks_room = False

    def __init__(self, endpoint: str, model: str | None = None, key: str | None = None) -> None:
        """`endpoint`: with or without /v1 at its end. `model`: None = the first that the endpoint lists.

        Raises:
            UsageError: the address is none.
        """
        server = Server(endpoint, key)
        self._asking = Asking(server)
        self.base = server.base
        """The address, with /v1 at its end."""
        self.name = model or server.name
        self.facts: Facts | None = None
        self.piece: Callable[[int], bytes] | None = None
        self.model = model
        """As the endpoint calls it; None = it has not been asked yet."""
        self.models = self._asking.models
        """Lists the endpoint's models: waits for the network."""

    def start(self, sink: Sink) -> None:
        threading.Thread(target=self._find_model, args=(sink,), name="localspec-load", daemon=True).start()

    def choose(self, model: str, sink: Sink) -> None:
        """Lets this model of the endpoint answer from the next question on."""
        self.model = model
        self.facts = Facts(model, remote=True, can_think=True)
        sink.post_message(ModelReady(self.facts))

    def answer(self, question: Question, sink: Sink) -> Reply:
        reply = Reply(self._asking, question, self.model or "")
        sink.post_message(Prefilled(reply, 0, None))
        threading.Thread(target=_read, args=(reply, sink), name="localspec-read", daemon=True).start()
        return reply

    def count(self, question: Question) -> int | None:
        return None

    def forget_chat(self, chat: str) -> bool:
        return False

    def look(self, context: int) -> None:
        return None

    def close(self) -> None:
        self._asking.close()

    def _find_model(self, sink: Sink) -> None:
        sink.post_message(Loading(f"Asking {self.base}", 0.0))
        try:
            model = self.model or self.models()[0]
        except Cancelled:  # closed meanwhile
            return
        except LocalspecError as error:
            sink.post_message(LoadFailed(error))
        else:
            self.choose(model, sink)


def _read(reply: Reply, sink: Sink) -> None:
    """Posts an answer as it comes, to its end."""
    finish, error = FinishReason.ERROR, None
    try:
        reply.read(
            lambda text, thinking: sink.post_message(AnswerPart(reply, text, stats=reply.stats, thinking=thinking))
        )
        finish = reply.finish
    except Cancelled:
        finish = FinishReason.CANCELLED
    except LocalspecError as failure:
        error = failure
    sink.post_message(AnswerEnded(reply, finish, reply.stats, error))
