"""Exported chats, read: localspec's own JSON, ChatGPT's export as file, folder or zip; bad files are one sentence."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from localspec import paths
from localspec.chat.archive.intake import ForeignChat, ForeignMessage
from localspec.chat.archive.message import ROLES, STATES, Attachment
from localspec.chat.archive.passes import decode
from localspec.chat.files.chatgpt import read_chatgpt
from localspec.chat.files.export import FORMAT, VERSION
from localspec.errors import UsageError

MOST_BYTES = 1 << 30
"""Of one file, unpacked; a larger one is refused."""
_Kind = TypeVar("_Kind")
_Foreign = TypeVar("_Foreign", ForeignChat, ForeignMessage)


def read_file(path: Path) -> tuple[list[ForeignChat], int]:
    """The chats of a file, folder or zip, and how many things in it were left out.

    Raises:
        UsageError: it cannot be read, or is nothing that can be imported; says what is wrong with it.
    """
    chats: list[ForeignChat] = []
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


def _read(data: Any, name: str) -> tuple[list[ForeignChat], int]:
    if isinstance(data, dict) and data.get("format") == FORMAT:
        return read_own(data, name), 0
    if isinstance(data, dict) and "mapping" in data:
        data = [data]
    if isinstance(data, list) and all(isinstance(item, dict) and "mapping" in item for item in data):
        return read_chatgpt(data, name)
    raise UsageError(f"{name} is neither localspec's own export nor ChatGPT's.")


def read_own(data: Mapping[str, Any], name: str) -> list[ForeignChat]:
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
    if len({chat.key for chat in found}) < len(found):
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


def _filled(kind: type[_Foreign], fields: _Fields, own: dict[str, Any]) -> _Foreign:
    """What an object holds, field by field, but for what was read apart; what may be missing has its default."""
    for field in dataclasses.fields(kind):
        if field.name in own:
            continue
        declared, _, optional = str(field.type).partition(" | ")
        if optional:
            own[field.name] = fields.optional(field.name, _DECLARED[declared])
        else:
            default = None if field.default is dataclasses.MISSING else field.default
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            own[field.name] = fields.take(field.name, _DECLARED[declared], default)
    return kind(**own)


def _chat(fields: _Fields) -> ForeignChat:
    items = fields.take("messages", list)
    messages = [_message(_Fields(item, f"{fields.place}, message {at}")) for at, item in enumerate(items, 1)]
    keys: set[str] = set()
    for number, message in enumerate(messages, 1):
        place = f"{fields.place}, message {number}"
        if message.key in keys:
            raise UsageError(f"{place}: the key {message.key[:40]!r} is there twice.")
        if message.parent is not None and message.parent not in keys:
            raise UsageError(f"{place}: its parent {message.parent[:40]!r} does not come before it.")
        keys.add(message.key)
    own: dict[str, Any] = {
        "messages": messages,
        "created": fields.take("created", float),
        "tags": _texts(fields, "tags"),
    }
    return _filled(ForeignChat, fields, own | {"used": fields.take("used", float, own["created"])})


def _message(fields: _Fields) -> ForeignMessage:
    created = fields.take("created", float)
    state = _one_of(fields, "state", STATES, "done")
    seed = fields.optional("seed", int)
    if seed is not None and not 0 <= seed < 2**64:
        raise UsageError(f"{fields.place}: seed is {str(seed)[:40]}; it must be between 0 and 2^64 - 1.")
    own: dict[str, Any] = {"created": created, "updated": fields.take("updated", float, created), "seed": seed}
    own |= {"state": "stopped" if state == "streaming" else state, "role": _one_of(fields, "role", ROLES)}
    own |= {"attachments": _attachments(fields), "passes": _passes(fields)}
    return _filled(ForeignMessage, fields, own)


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
    _checked(decode, data, fields.place)
    return data


def _checked(read: Callable[[list[bytes]], object], data: bytes, place: str) -> None:
    try:
        read([data])
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
