"""Exported chats, read: localspec's own JSON, ChatGPT's export as file, folder or zip; bad files are one sentence.

ChatGPT's data export: conversations whose messages are a mapping of nodes, with branches.

Texts, code and thoughts are taken; system messages, raw output of tools and images are left out, and what hangs below
them moves up. Answers that the export cuts into several nodes in a row become one.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, TypeVar

from localspec import paths
from localspec.chat.archive.chats import title_from
from localspec.chat.archive.message import ROLES, STATES, Attachment, Chat, Role, StoredMessage, WholeChat, placed
from localspec.chat.archive.passes import decode
from localspec.chat.export import FORMAT, VERSION
from localspec.chat.reply.tool import ToolCall
from localspec.chat.turn import MadeCall
from localspec.errors import UsageError

_LONGEST_NAME = 200
_CONVERSATIONS = re.compile(r"(^|/)conversations[^/]*\.json\Z", re.DOTALL)


def read_chatgpt(conversations: Sequence[Mapping[str, Any]], name: str) -> tuple[list[WholeChat], int]:
    """The chats, and how many messages were left out.
    Raises UsageError: a conversation is not what ChatGPT exports; says which.
    """
    chats: dict[str, WholeChat] = {}
    left_out = 0
    for number, conversation in enumerate(conversations, 1):
        mapping = conversation.get("mapping")
        if not isinstance(mapping, dict):
            raise UsageError(f"{name}: the mapping of conversation {number} is no object.")
        tree = _Tree(mapping)
        messages, without = tree.messages(_time(conversation.get("create_time"), 0.0))
        left_out += without
        if messages:
            names = (conversation.get("conversation_id"), conversation.get("id"), next(iter(mapping), ""))
            key = next((one for one in names if isinstance(one, str) and one), "nameless")
            created = _time(conversation.get("create_time"), messages[0].created)
            chat = Chat(
                id=0,
                key=f"chatgpt:{key}",
                title=_text(conversation.get("title")) or title_from(messages[0].content),
                created=created,
                used=_time(conversation.get("update_time"), created),
            )
            open_branch = tree.above(conversation.get("current_node"))
            chosen = frozenset(message.id for message in messages if message.key in open_branch)
            chats[key] = WholeChat(chat, messages, chosen)
    return list(chats.values()), left_out


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _time(value: Any, otherwise: float) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**40
    return float(value) if known else otherwise


def _joined(*texts: str) -> str:
    """Those that say something, as paragraphs."""
    return "\n\n".join(text for text in texts if text.strip())


class _Tree:
    """The nodes of one conversation, walked from its roots; those in a circle hang from none and are not met."""

    def __init__(self, mapping: Mapping[str, Any]) -> None:
        self._parents: dict[str, str | None] = {}  # one that is not there is none
        self._children: dict[str | None, list[str]] = defaultdict(list)  # in the order of the file
        self._data: dict[str, Mapping[str, Any]] = {}
        for key, given in mapping.items():
            node = given if isinstance(given, dict) else {}
            parent, message = node.get("parent"), node.get("message")
            known = isinstance(parent, str) and parent in mapping and parent != key
            self._parents[key] = parent if known else None
            self._children[self._parents[key]].append(key)
            self._data[key] = message if isinstance(message, dict) else {}

    def above(self, key: Any) -> set[str]:
        """Keys from a node up to its root: the branch that was open."""
        found: set[str] = set()
        while isinstance(key, str) and key in self._parents and key not in found:
            found.add(key)
            key = self._parents[key]
        return found

    def messages(self, created: float) -> tuple[list[StoredMessage], int]:
        """The messages, parents before children, and how many were left out; `created`: of those that do not say it."""
        found: dict[int, StoredMessage] = {}
        left_out = 0
        waiting: list[tuple[str, int | None, str]] = [(key, None, "") for key in reversed(self._children[None])]
        while waiting:
            key, parent, thoughts = waiting.pop()
            data = self._data[key]
            role, content, thought = _said(data)
            thoughts = _joined(thoughts, thought)
            if content:
                at = _time(data.get("create_time"), created)
                metadata = data.get("metadata")
                message = StoredMessage(
                    id=len(found),
                    key=key,
                    parent_id=parent,
                    role=role,
                    content=content,
                    created=at,
                    updated=at,
                    reasoning=thoughts if role == "assistant" else "",
                    model=_text(metadata.get("model_slug"))[:_LONGEST_NAME] if isinstance(metadata, dict) else "",
                )
                above = None if parent is None else found[parent]
                if above is not None and above.role == role == "assistant" and self._alone(key):  # it goes on
                    reasoning = _joined(above.reasoning, message.reasoning)
                    message = replace(above, content=f"{above.content}\n\n{content}", reasoning=reasoning)
                found[message.id] = message
                parent, thoughts = message.id, ""
            elif data and not thought:
                left_out += 1
            waiting += [(child, parent, thoughts) for child in reversed(self._children[key])]
        return list(found.values()), left_out

    def _alone(self, key: str) -> bool:
        """Whether a node and all above it up to the next text have no siblings."""
        above = self._parents[key]
        while above is not None and len(self._children[above]) == 1:
            if _said(self._data[above])[1]:
                return True
            above = self._parents[above]
        return False


def _said(data: Mapping[str, Any]) -> tuple[Role, str, str]:
    """(role, text, thought) of a node; a text of "" = there is none to be kept."""
    author, content = data.get("author"), data.get("content")
    said = author.get("role") if isinstance(author, dict) else None
    if said not in ("user", "assistant") or not isinstance(content, dict):
        return "system", "", ""
    role: Role = "user" if said == "user" else "assistant"
    kind = content.get("content_type")
    if kind == "thoughts":
        thoughts = content.get("thoughts")
        items = [item for item in thoughts if isinstance(item, dict)] if isinstance(thoughts, list) else []
        return role, "", _joined(*(_text(item.get("content")) or _text(item.get("summary")) for item in items))
    if kind == "code":
        code = _text(content.get("text"))
        language = _text(content.get("language"))
        named = language if language.isalnum() and language != "unknown" else ""
        return role, f"```{named}\n{code}\n```" if code.strip() else "", ""
    parts = content.get("parts")
    if kind in ("text", "multimodal_text") and isinstance(parts, list):  # of a spoken part its transcript
        texts = (_text(part.get("text") if isinstance(part, dict) else part) for part in parts)
        return role, _joined(*texts), ""
    return role, "", ""


MOST_BYTES = 1 << 30
"""Of one file, unpacked; a larger one is refused."""
_Kind = TypeVar("_Kind")
_Stored = TypeVar("_Stored", Chat, StoredMessage, MadeCall, ToolCall)


def read_file(path: Path) -> tuple[list[WholeChat], int]:
    """The chats of a file, folder or zip, and how many things in it were left out."""
    chats: list[WholeChat] = []
    left_out = 0
    for name, data in _documents(path):
        try:
            read = json.loads(data)
        except UnicodeDecodeError:
            raise UsageError(f"{name} is not UTF-8 text.") from None
        except RecursionError:
            raise UsageError(f"{name} is nested too deeply.") from None
        except ValueError as error:
            raise UsageError(f"{name} is not JSON: {error}.") from None
        if isinstance(read, dict) and read.get("format") == FORMAT:
            chats += read_own(read, name)
            continue
        if isinstance(read, dict) and "mapping" in read:
            read = [read]
        if not (isinstance(read, list) and all(isinstance(item, dict) and "mapping" in item for item in read)):
            raise UsageError(f"{name} is neither localspec's own export nor ChatGPT's.")
        found, without = read_chatgpt(read, name)
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
            return [(str(file), _bytes_of(open(file, "rb"), str(file))) for file in found]
        if paths.is_pipe(path):
            raise UsageError(f"{path} is a pipe, not a file.", "Write what comes out of it to a file first.")
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if _CONVERSATIONS.search(name)]
                if not names:
                    hint = "Give the zip that ChatGPT's export sends."
                    raise UsageError(f"{path} has no conversations.json in it.", hint)
                return [(f"{name} in {path}", _bytes_of(archive.open(name), name)) for name in sorted(names)]
        return [(str(path), _bytes_of(open(path, "rb"), str(path)))]
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"Cannot read {path}: {reason}.") from None


def _bytes_of(file: IO[bytes], name: str) -> bytes:
    with file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} has more than {MOST_BYTES >> 30} GiB; it is not imported.")
    return data


def read_own(data: Mapping[str, Any], name: str) -> list[WholeChat]:
    """The inverse of `export.to_json`.
    Raises UsageError: a newer version, or something is missing or of the wrong kind; says where.
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
        if isinstance(value, int) and not 0 <= value < 2**64:
            raise UsageError(f"{self.place}: {name} is {str(value)[:40]}; it must be between 0 and 2^64 - 1.")
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
_DECLARED: dict[Any, type] = {"str": str, "int": int, "float": float, "bool": bool, "Mapping[str, Any]": dict}


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
        if (text := inner.optional("passes", str)) is not None:
            passes[number] = _passes(text, inner.place)
    created = fields.take("created", float)
    tags = fields.take("tags", list, [])
    if not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"{fields.place}: tags must be a list of texts.")
    own: dict[str, Any] = {"id": 0, "messages": len(messages), "created": created, "tags": tuple(tags)}
    own |= {"used": fields.take("used", float, created)}
    own |= {"window_first": ids.get(fields.optional("window_first", str) or "")}
    return WholeChat(_filled(Chat, fields, own), messages, frozenset(chosen), passes)


def _message(fields: _Fields, number: int, ids: dict[str, int]) -> StoredMessage:
    """Message `number` of its chat. `ids`: by key, of the messages before it; it is added."""
    key, parent = fields.take("key", str), fields.optional("parent", str)
    if key in ids:
        raise UsageError(f"{fields.place}: the key {key[:40]!r} is there twice.")
    if parent is not None and parent not in ids:
        raise UsageError(f"{fields.place}: its parent {parent[:40]!r} does not come before it.")
    ids[key] = number
    created = fields.take("created", float)
    state = _one_of(fields, "state", STATES, "done")
    own: dict[str, Any] = {"id": number, "chat_id": 0, "parent_id": None if parent is None else ids[parent]}
    own |= {"seed": fields.optional("seed", int), "siblings": ()}
    own |= {"created": created, "updated": fields.take("updated", float, created)}
    own |= {"state": "stopped" if state == "streaming" else state, "role": _one_of(fields, "role", ROLES)}
    attachments = []
    for at, item in enumerate(fields.take("attachments", list, []), 1):
        inner = _Fields(item, f"{fields.place}, attachment {at}")
        attachments.append(Attachment(inner.take("name", str), inner.take("content", str)))
    own |= {"attachments": tuple(attachments), "content": fields.take("content", str)}
    own |= {"reasoning": fields.take("reasoning", str, "")}
    made = []
    for at, item in enumerate(fields.take("calls", list, []) if own["role"] == "assistant" else (), 1):
        inner = _Fields(item, f"{fields.place}, call {at}")
        called = _Fields(inner.take("call", dict), inner.place)
        made.append(_filled(MadeCall, inner, {"call": _filled(ToolCall, called, {})}))
    return _filled(StoredMessage, fields, own | {"calls": placed(made, own["content"], own["reasoning"])})


def _one_of(fields: _Fields, name: str, allowed: Sequence[str], default: str | None = None) -> str:
    value = fields.take(name, str, default)
    if value not in allowed:
        raise UsageError(f"{fields.place}: {name} is {value[:40]!r}; it must be one of {', '.join(allowed)}.")
    return value


def _passes(text: str, place: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
        decode([data])
    except ValueError:
        raise UsageError(f"{place}: passes is not base64.") from None
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return data
