"""Exported chats, read: localspec's own JSON, ChatGPT's export as file, folder or zip; bad files are one sentence.

ChatGPT's data export: conversations whose messages are a mapping of nodes, with branches.

Texts, code and thoughts are taken; system messages, raw output of tools and images are left out, and what hangs below
them moves up. Answers that the export cuts into several nodes in a row become one.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from localspec import paths
from localspec.chat.archive.chats import title_from
from localspec.chat.archive.message import ROLES, STATES, Attachment, Chat, Role, StoredMessage, WholeChat
from localspec.chat.archive.passes import decode
from localspec.chat.export import FORMAT, VERSION
from localspec.errors import UsageError

_LONGEST_NAME = 200


@dataclass
class _Node:
    """A node of the mapping."""

    key: str
    parent: str | None
    children: list[str] = field(default_factory=list)
    data: Mapping[str, Any] = field(default_factory=dict)


def read_chatgpt(conversations: Sequence[Mapping[str, Any]], name: str) -> tuple[list[WholeChat], int]:
    """The chats, and how many messages were left out.

    Raises:
        UsageError: a conversation is not what ChatGPT exports; says which.
    """
    chats: dict[str, WholeChat] = {}
    left_out = 0
    for number, conversation in enumerate(conversations, 1):
        mapping = conversation.get("mapping")
        if not isinstance(mapping, dict):
            raise UsageError(f"{name}: the mapping of conversation {number} is no object.")
        nodes = _nodes(mapping)
        reader = _Reader(nodes, _time(conversation.get("create_time"), 0.0))
        open_branch = _above(nodes, conversation.get("current_node"))
        messages = reader.messages()
        left_out += reader.left_out
        if messages:
            key = _key(conversation, mapping)
            created = _time(conversation.get("create_time"), messages[0].created)
            chat = Chat(
                id=0,
                key=f"chatgpt:{key}",
                title=_text(conversation.get("title")) or title_from(messages[0].content),
                created=created,
                used=_time(conversation.get("update_time"), created),
            )
            chosen = frozenset(message.id for message in messages if message.key in open_branch)
            chats[key] = WholeChat(chat, messages, chosen)
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

    def messages(self) -> list[StoredMessage]:
        """Parents before children."""
        found: dict[int, StoredMessage] = {}
        roots = [key for key, node in self._nodes.items() if node.parent is None]
        waiting: list[tuple[str, int | None, str]] = [(key, None, "") for key in reversed(roots)]
        while waiting:
            key, parent, thoughts = waiting.pop()
            node = self._nodes[key]
            role, content, thought = _said(node.data)
            thoughts = "\n\n".join(part for part in (thoughts, thought) if part)
            if content:
                message = StoredMessage(
                    id=len(found),
                    key=key,
                    parent_id=parent,
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

    def _put(self, found: dict[int, StoredMessage], message: StoredMessage) -> int:
        """Adds a message, or its text to the answer it goes on; the id it is found by."""
        above = found.get(message.parent_id) if message.parent_id is not None else None
        if above is not None and above.role == message.role == "assistant" and self._alone(message.key):
            message = replace(
                above,
                content=f"{above.content}\n\n{message.content}",
                reasoning="\n\n".join(part for part in (above.reasoning, message.reasoning) if part),
            )
        found[message.id] = message
        return message.id

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


def _said(data: Mapping[str, Any]) -> tuple[Role, str, str]:
    """(role, text, thought) of a node; a text of "" = there is none to be kept."""
    author, content = data.get("author"), data.get("content")
    said = author.get("role") if isinstance(author, dict) else None
    if said not in ("user", "assistant") or not isinstance(content, dict):
        return "system", "", ""
    role: Role = "user" if said == "user" else "assistant"
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


MOST_BYTES = 1 << 30
"""Of one file, unpacked; a larger one is refused."""
_Kind = TypeVar("_Kind")
_Stored = TypeVar("_Stored", Chat, StoredMessage)


def read_file(path: Path) -> tuple[list[WholeChat], int]:
    """The chats of a file, folder or zip, and how many things in it were left out."""
    chats: list[WholeChat] = []
    left_out = 0
    for name, data in _documents(path):
        found, without = _read(_parsed(data, name), name)
        chats += found
        left_out += without
    return chats, left_out


def _documents(path: Path) -> list[tuple[str, bytes]]:
    """(name, contents) of the JSON files to read."""
    try:
        if path.is_dir():
            found = sorted(path.glob("conversations*.json"))
            if not found:
                raise UsageError(f"{path} has no conversations.json.", "Give the folder of an unpacked ChatGPT export.")
            return [(str(file), _bytes_of(file)) for file in found]
        if paths.is_pipe(path):
            raise UsageError(f"{path} is a pipe, not a file.", "Write what comes out of it to a file first.")
        if zipfile.is_zipfile(path):
            return _zipped(path)
        return [(str(path), _bytes_of(path))]
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"Cannot read {path}: {reason}.") from None


def _bytes_of(path: Path) -> bytes:
    with open(path, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    return _small_enough(data, str(path))


def _zipped(path: Path) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if _is_conversations(name)]
        if not names:
            raise UsageError(f"{path} has no conversations.json in it.", "Give the zip that ChatGPT's export sends.")
        found = []
        for name in sorted(names):
            with archive.open(name) as file:
                found.append((f"{name} in {path}", _small_enough(file.read(MOST_BYTES + 1), name)))
        return found


def _is_conversations(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith("conversations") and last.endswith(".json")


def _small_enough(data: bytes, name: str) -> bytes:
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} has more than {MOST_BYTES >> 30} GiB; it is not imported.")
    return data


def _parsed(data: bytes, name: str) -> Any:
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise UsageError(f"{name} is not UTF-8 text.") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply.") from None
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}.") from None


def _read(data: Any, name: str) -> tuple[list[WholeChat], int]:
    if isinstance(data, dict) and data.get("format") == FORMAT:
        return read_own(data, name), 0
    if isinstance(data, dict) and "mapping" in data:
        data = [data]
    if isinstance(data, list) and all(isinstance(item, dict) and "mapping" in item for item in data):
        return read_chatgpt(data, name)
    raise UsageError(f"{name} is neither localspec's own export nor ChatGPT's.")


def read_own(data: Mapping[str, Any], name: str) -> list[WholeChat]:
    """The inverse of `export.to_json`.

    Raises:
        UsageError: a newer version, or something is missing or of the wrong kind; says where.
    """
    fields = _Fields(data, name)
    version = fields.take("version", int)
    if version > VERSION:
        raise UsageError(f"{name} was written by a newer localspec (version {version}).", "Update localspec.")
    chats = fields.take("chats", list)
    found = [_chat(_Fields(item, f"{name}: chat {number}")) for number, item in enumerate(chats, 1)]
    if len({whole.chat.key for whole in found}) < len(found):
        raise UsageError(f"{name}: two chats have the same key.")
    return found


class _Fields:
    """An object of a file whose fields are taken one by one, each of the kind it must have."""

    def __init__(self, data: Any, place: str) -> None:
        if not isinstance(data, dict):
            raise UsageError(f"{place} is no object.")
        self._data, self.place = data, place

    def take(self, name: str, kind: type[_Kind], default: _Kind | None = None) -> _Kind:
        """A field; one that is missing has the default, or there must be one."""
        value = self._data.get(name, default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**63 else math.inf
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            found = "missing" if value is None else f"{str(value)[:40]!r}"
            raise UsageError(f"{self.place}: {name} is {found}; it must be {_KINDS[kind]}.")
        return value

    def optional(self, name: str, kind: type[_Kind]) -> _Kind | None:
        """A field that may be null or missing."""
        return None if self._data.get(name) is None else self.take(name, kind)


_KINDS: dict[type, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_DECLARED: dict[Any, type] = {"str": str, "float": float, "bool": bool, "Mapping[str, Any]": dict}


def _filled(kind: type[_Stored], fields: _Fields, own: dict[str, Any]) -> _Stored:
    """All that an object holds, field by field, but for what was read apart; what may be missing has its default."""
    for member in dataclasses.fields(kind):
        if member.name not in own:
            default = None if member.default is dataclasses.MISSING else member.default
            if member.default_factory is not dataclasses.MISSING:
                default = member.default_factory()
            own[member.name] = fields.take(member.name, _DECLARED[member.type], default)
    return kind(**own)


def _chat(fields: _Fields) -> WholeChat:
    ids: dict[str, int] = {}
    messages: list[StoredMessage] = []
    chosen: set[int] = set()
    passes: dict[int, bytes] = {}
    for number, item in enumerate(fields.take("messages", list), 1):
        inner = _Fields(item, f"{fields.place}, message {number}")
        messages.append(_message(inner, number, ids))
        if inner.take("chosen", bool, False):
            chosen.add(number)
        if (found := _passes(inner)) is not None:
            passes[number] = found
    created = fields.take("created", float)
    own: dict[str, Any] = {"id": 0, "messages": len(messages), "created": created, "tags": _texts(fields, "tags")}
    own |= {"used": fields.take("used", float, created)}
    own |= {"window_first": ids.get(fields.optional("window_first", str) or "")}
    return WholeChat(_filled(Chat, fields, own), messages, frozenset(chosen), passes)


def _message(fields: _Fields, number: int, ids: dict[str, int]) -> StoredMessage:
    """Message `number` of its chat.

    Args:
        ids: by key, of the messages before it; it is added.
    """
    key, parent = fields.take("key", str), fields.optional("parent", str)
    if key in ids:
        raise UsageError(f"{fields.place}: the key {key[:40]!r} is there twice.")
    if parent is not None and parent not in ids:
        raise UsageError(f"{fields.place}: its parent {parent[:40]!r} does not come before it.")
    ids[key] = number
    created = fields.take("created", float)
    state = _one_of(fields, "state", STATES, "done")
    seed = fields.optional("seed", int)
    if seed is not None and not 0 <= seed < 2**64:
        raise UsageError(f"{fields.place}: seed is {str(seed)[:40]}; it must be between 0 and 2^64 - 1.")
    own: dict[str, Any] = {"id": number, "chat_id": 0, "parent_id": None if parent is None else ids[parent]}
    own |= {"created": created, "updated": fields.take("updated", float, created), "seed": seed, "siblings": ()}
    own |= {"state": "stopped" if state == "streaming" else state, "role": _one_of(fields, "role", ROLES)}
    return _filled(StoredMessage, fields, own | {"attachments": _attachments(fields)})


def _one_of(fields: _Fields, name: str, allowed: Sequence[str], default: str | None = None) -> str:
    value = fields.take(name, str, default)
    if value not in allowed:
        raise UsageError(f"{fields.place}: {name} is {value[:40]!r}; it must be one of {', '.join(allowed)}.")
    return value


def _texts(fields: _Fields, name: str) -> tuple[str, ...]:
    values = fields.take(name, list, [])
    if not all(isinstance(value, str) for value in values):
        raise UsageError(f"{fields.place}: {name} must be a list of texts.")
    return tuple(values)


def _attachments(fields: _Fields) -> tuple[Attachment, ...]:
    found = []
    for number, item in enumerate(fields.take("attachments", list, []), 1):
        inner = _Fields(item, f"{fields.place}, attachment {number}")
        found.append(Attachment(inner.take("name", str), inner.take("content", str)))
    return tuple(found)


def _passes(fields: _Fields) -> bytes | None:
    text = fields.optional("passes", str)
    if text is None:
        return None
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{fields.place}: passes is not base64.") from None
    try:
        decode([data])
    except UsageError as error:
        raise UsageError(f"{fields.place}: {error}") from None
    return data
