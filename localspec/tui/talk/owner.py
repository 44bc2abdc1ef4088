"""How widgets of speculation reach what the app holds: the archive, the answerer, an engine if there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from localspec.errors import LocalspecError
from localspec.tui.talk.local import LocalAnswerer

if TYPE_CHECKING:
    from textual.dom import DOMNode

    from localspec.chat.archive.archive import Archive
    from localspec.runtime.any_engine import AnyEngine
    from localspec.tui.shell.app import ChatApp
    from localspec.tui.talk.answerer import Answerer


def app_of(node: DOMNode) -> ChatApp:
    """The chat app a widget or screen is in."""
    return cast("ChatApp", cast(Any, node).app)


def archive_of(node: DOMNode) -> Archive:
    """Where chats are kept."""
    return app_of(node).archive


def answerer_of(node: DOMNode) -> Answerer:
    """What answers now."""
    return app_of(node).answerer


def engine_of(node: DOMNode) -> AnyEngine | None:
    """The engine that answers; None = a remote one does, or it is not loaded."""
    answerer = answerer_of(node)
    return answerer.engine if isinstance(answerer, LocalAnswerer) else None


def forget_cache(node: DOMNode, chat: str) -> None:
    """Deletes the KV cache of a chat that was deleted, and its answers in the corpus; on a thread, as it takes time.

    Trouble is said.
    """
    from localspec.runtime.kept.chat_caches import CacheFolder
    from localspec.runtime.kept.corpus import erase

    app, engine = app_of(node), engine_of(node)

    def forget() -> None:
        try:
            if engine is None:
                CacheFolder().remove(chat)
                erase(chat)
            else:
                engine.forget_chat(chat)
        except LocalspecError as error:
            app.warn(str(error))

    app.run_worker(forget, thread=True)


def piece_of(answerer: Answerer) -> Callable[[int], bytes]:
    """The bytes of a token of the model that answers; nothing where that is unknown."""
    return answerer.piece or (lambda token: b"")
