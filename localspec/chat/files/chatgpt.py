"""ChatGPT's data export: conversations whose messages are a mapping of nodes, with branches.

Texts, code and thoughts are taken; system messages, raw output of tools and images are left out, and what hangs below
them moves up. Answers that the export cuts into several nodes in a row become one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from localspec.chat.archive.chats import title_from
from localspec.chat.archive.intake import ForeignChat, ForeignMessage
from localspec.errors import UsageError

_LONGEST_NAME = 200


@dataclass
class _Node:
    """A node of the mapping."""

    key: str
    parent: str | None
    children: list[str] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=dict)


def read_chatgpt(conversations: Sequence[Mapping[str, Any]], name: str) -> tuple[list[ForeignChat], int]:
    """The chats, and how many messages were left out.

    Raises:
        UsageError: a conversation is not what ChatGPT exports; says which.
    """
    chats: dict[str, ForeignChat] = {}
    left_out = 0
    for number, conversation in enumerate(conversations, 1):
        mapping = conversation.get("mapping")
        if not isinstance(mapping, dict):
            raise UsageError(f"{name}: the mapping of conversation {number} is no object.")
        nodes = _nodes(mapping)
        reader = _Reader(nodes, _time(conversation.get("create_time"), 0.0))
        messages = reader.messages(_above(nodes, conversation.get("current_node")))
        left_out += reader.left_out
        if messages:
            key = _key(conversation, mapping)
            created = _time(conversation.get("create_time"), messages[0].created)
            chats[key] = ForeignChat(
                key=f"chatgpt:{key}",
                title=_text(conversation.get("title")) or title_from(messages[0].content),
                created=created,
                used=_time(conversation.get("update_time"), created),
                messages=messages,
            )
    return list(chats.values()), left_out


def _key(conversation: Mapping[str, Any], mapping: Mapping[str, Any]) -> str:
    """The conversation's own name, or else that of its first node."""
    for candidate in (conversation.get("conversation_id"), conversation.get("id"), next(iter(mapping), "")):
        if isinstance(candidate, str) and candidate:
            return candidate
    return "nameless"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any, otherwise: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**40:
        return otherwise
    return float(value) if math.isfinite(value) else otherwise


def _nodes(mapping: Mapping[str, Any]) -> dict[str, _Node]:
    """Nodes by key, children in the order of the file; a parent that is not there is none."""
    nodes: dict[str, _Node] = {}
    for key, data in mapping.items():
        given = data if isinstance(data, dict) else {}
        parent = given.get("parent")
        known = isinstance(parent, str) and parent in mapping and parent != key
        message = given.get("message")
        nodes[key] = _Node(key, parent if known else None, [], message if isinstance(message, dict) else {})
    for node in nodes.values():
        if node.parent is not None:
            nodes[node.parent].children.append(node.key)
    return nodes


def _above(nodes: Mapping[str, _Node], key: Any) -> set[str]:
    """Keys from a node up to its root: the branch that was open."""
    found: set[str] = set()
    while isinstance(key, str) and key in nodes and key not in found:
        found.add(key)
        key = nodes[key].parent
    return found


class _Reader:
    """Walks one conversation from its roots; nodes in a circle hang from none and are not met."""

    def __init__(self, nodes: Mapping[str, _Node], created: float) -> None:
        self._nodes = nodes
        self._created = created
        self.left_out = 0

    def messages(self, active: set[str]) -> list[ForeignMessage]:
        """Parents before children."""
        found: dict[str, ForeignMessage] = {}
        roots = [key for key, node in self._nodes.items() if node.parent is None]
        waiting: list[tuple[str, str | None, str]] = [(key, None, "") for key in reversed(roots)]
        while waiting:
            key, parent, thoughts = waiting.pop()
            node = self._nodes[key]
            role, content, thought = _said(node.data)
            thoughts = "\n\n".join(part for part in (thoughts, thought) if part)
            if content:
                message = ForeignMessage(
                    key=key,
                    parent=parent,
                    chosen=key in active,
                    role=role,
                    content=content,
                    created=_time(node.data.get("create_time"), self._created),
                    updated=_time(node.data.get("create_time"), self._created),
                    reasoning=thoughts if role == "assistant" else "",
                    model=_model(node.data),
                )
                parent, thoughts = self._put(found, message), ""
            elif node.data and not thought:
                self.left_out += 1
            waiting += [(child, parent, thoughts) for child in reversed(node.children)]
        return list(found.values())

    def _put(self, found: dict[str, ForeignMessage], message: ForeignMessage) -> str:
        """Adds a message, or its text to the answer it goes on; the key it is found by."""
        above = found.get(message.parent) if message.parent is not None else None
        if above is not None and above.role == message.role == "assistant" and self._alone(message.key):
            found[above.key] = replace(
                above,
                content=f"{above.content}\n\n{message.content}",
                reasoning="\n\n".join(part for part in (above.reasoning, message.reasoning) if part),
            )
            return above.key
        found[message.key] = message
        return message.key

    def _alone(self, key: str) -> bool:
        """Whether a node and all above it up to the next text have no siblings."""
        node = self._nodes.get(key)
        while node is not None and node.parent is not None:
            above = self._nodes[node.parent]
            if len(above.children) > 1:
                return False
            if _said(above.data)[1]:
                return True
            node = above
        return False


def _model(data: Mapping[str, Any]) -> str:
    metadata = data.get("metadata")
    return _text(metadata.get("model_slug"))[:_LONGEST_NAME] if isinstance(metadata, dict) else ""


def _said(data: Mapping[str, Any]) -> tuple[str, str, str]:
    """(role, text, thought) of a node; a text of "" = there is none to be kept."""
    author, content = data.get("author"), data.get("content")
    role = author.get("role") if isinstance(author, dict) else None
    if role not in ("user", "assistant") or not isinstance(content, dict):
        return "", "", ""
    kind = content.get("content_type")
    if kind == "thoughts":
        return role, "", _thoughts(content.get("thoughts"))
    if kind == "code":
        code = _text(content.get("text"))
        language = _text(content.get("language"))
        named = language if language.isalnum() and language != "unknown" else ""
        return role, f"```{named}\n{code}\n```" if code.strip() else "", ""
    if kind in ("text", "multimodal_text"):
        parts = content.get("parts")
        texts = [_part(part) for part in parts] if isinstance(parts, list) else []
        return role, "\n\n".join(text for text in texts if text.strip()), ""
    return role, "", ""


def _part(part: Any) -> str:
    """A part of a message: text, or of a spoken one its transcript."""
    if isinstance(part, dict):
        return _text(part.get("text"))
    return _text(part)


def _thoughts(thoughts: Any) -> str:
    if not isinstance(thoughts, list):
        return ""
    texts = [_text(item.get("content")) or _text(item.get("summary")) for item in thoughts if isinstance(item, dict)]
    return "\n\n".join(text for text in texts if text.strip())
