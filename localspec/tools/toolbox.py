"""The tools of one chat: which are switched on, which may be called without a question, and a call of one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from localspec import kept, paths
from localspec.chat.plain_text import one_line, plain_text
from localspec.chat.reply.tool import Tool, ToolCall, parse
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.tools.connections import Called, Connections, Offered, cut
from localspec.tools.servers import Server, dicts, merged, read, user_file

if TYPE_CHECKING:
    from collections.abc import Mapping

Consent = Literal["once", "chat", "always", "no"]
"""What a user says to a call: this one, all of this tool in this chat, all of this tool from now on, none."""
_KIND = "tools"  # of facts: a consent for always
_MOST_REFERENCES = 24  # in a schema that is checked here: two that have two in them each, and so on, take for ever
_ENDLESS = re.compile(r'"pattern": "|"patternProperties"|"\$dynamicRef"')  # regular expressions may, too
REFUSED = "The user does not allow this call."  # to the model


class Toolbox:
    """Of one chat. Thread-safe as far as its connections are; a chat has one answer at a time."""

    def __init__(self, connections: Connections, *, read_only: bool = False, unasked: bool = False) -> None:
        """`read_only`: a tool that its server calls read-only needs no consent; `unasked`: none does."""
        self.connections = connections
        self.off = set[str | tuple[str, str]]()
        """Servers that are switched off, by name, and tools, by their server's name and their own."""
        self.read_only, self._unasked = read_only, unasked
        self._in_chat = set[str]()
        self.listed: Mapping[str, Offered] = {}
        """The tools of all servers that are on, by the names that the model is told, those switched off as well."""

    def tools(self, cancelled: Callable[[], bool] = lambda: False) -> tuple[Tool, ...]:
        """What the model is told; starts the servers that are on. `notices` says what failed. Raises Cancelled."""
        self.listed = self.connections.offered({one for one in self.off if isinstance(one, str)}, cancelled)
        return self.told

    @property
    def told(self) -> tuple[Tool, ...]:
        """What the model was told last, without what was switched off since."""
        return tuple(one.tool for one in self.listed.values() if self._is_on(one))

    def _is_on(self, one: Offered) -> bool:
        return self.off.isdisjoint((one.server, (one.server, one.name)))

    def allows(self, one: Offered) -> bool:
        """Whether a call of a tool needs no question."""
        return self._unasked or (self.read_only and one.read_only) or self.is_free(one.key)

    def is_free(self, key: str) -> bool:
        """Whether the user has said that a tool is called without a question."""
        return key in self._in_chat or is_allowed(key)

    def ask_again(self, key: str) -> None:
        """Before the next call of a tool."""
        self._in_chat.discard(key)
        forbid(key)

    def take(self, one: Offered, consent: Consent) -> str:
        """Keeps what the user said, as far as it holds for later calls; why that failed for always, "" = it did not."""
        fault = allow(one.key, f"{one.server}: {one.name}") if consent == "always" else ""
        if consent == "chat" or fault:
            self._in_chat.add(one.key)
        return fault

    def prompts(self, cancelled: Callable[[], bool] = lambda: False) -> list[tuple[str, str]]:
        """Of the servers that are on, which it starts: `server:name`, and what it is."""
        self.tools(cancelled)
        return [(name, about) for name, about, _ in self._listed("prompts", "name")]

    def resources(self) -> list[tuple[str, str]]:
        """Of the servers that are on, as far as they were started: `server:uri`, and what it is."""
        return [(name, about) for name, about, _ in self._listed("resources", "uri")]

    def _listed(self, kind: str, part: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for server, running in self.connections.begun.items():
            for one in getattr(running, kind) if server not in self.off else ():
                if (name := f"{server}:{one[part]}").isprintable():
                    yield name, one_line(str(one.get("description") or one.get("title") or ""))[:200], one

    def prompt(self, cancelled: Callable[[], bool], words: str) -> str:
        """The text of a prompt; `words`: its `server:name`, and `key=value` for each argument. Raises LocalspecError:
        they do not fit, or its server fails; Cancelled."""
        self.tools(cancelled)
        known = {name: one for name, _, one in self._listed("prompts", "name")}
        name = max((one for one in known if f"{words} ".startswith(f"{one} ")), key=len, default="")
        if not name:
            raise UsageError(f"There is no prompt {words!r}; there are: {', '.join(known) or 'none'}.")
        given, server = _given(name, known[name], words[len(name) :]), name.partition(":")[0]
        return self.connections.text(server, "prompts/get", cancelled, name=known[name]["name"], arguments=given)

    def read(self, cancelled: Callable[[], bool], name: str) -> str:
        """The text of a resource, as `server:uri`. Raises LocalspecError: its server is off, or fails; Cancelled."""
        server, _, uri = name.partition(":")
        if server in self.off:
            raise UsageError(f"The server {server} is switched off.", "/tools switches it on.")
        return self.connections.text(server, "resources/read", cancelled, uri=uri)

    def notices(self) -> list[str]:
        """Sentences that were not said yet."""
        said, self.connections.notices = self.connections.notices, []
        return said

    def checked(self, call: ToolCall) -> tuple[Offered, dict[str, Any]] | str:
        """The tool of a call and its arguments; or why it cannot be made, for the model."""
        one = self.listed.get(call.name)
        if one is None or not self._is_on(one):
            return f"There is no tool {call.name!r}; there are: {', '.join(sorted(tool.name for tool in self.told))}."
        from jsonschema import Draft202012Validator, ValidationError
        from referencing import Registry

        try:
            arguments = parse(call.arguments)
        except (ValueError, RecursionError) as error:
            return f"The arguments are not JSON: {error}."
        if not isinstance(arguments, dict):
            return "The arguments are no JSON object."
        schema = json.dumps(one.tool.schema)
        if _ENDLESS.search(schema) or schema.count('"$ref"') > _MOST_REFERENCES:
            return one, arguments  # its server checks them
        try:  # the registry is empty: a schema fetches nothing
            Draft202012Validator(one.tool.schema, registry=Registry()).validate(arguments)
        except ValidationError as error:
            return f"The arguments do not fit the tool's schema, at {error.json_path}: {error.message}."
        except Exception:  # noqa: BLE001 - such as a schema that refers to nowhere
            return one, arguments  # the server knows its tool better than its schema does
        return one, arguments

    def call(self, one: Offered, arguments: dict[str, Any], cancelled: Callable[[], bool], most: int | None) -> Called:
        """What comes of a call, at most `most` characters, cut in the middle. Raises Cancelled."""
        try:
            if not self._is_on(one):  # while the user was asked
                raise UsageError(f"The tool {one.tool.name} is switched off.")
            called = self.connections.call(one.server, one.name, arguments, cancelled, one.key)
        except Cancelled:
            raise
        except LocalspecError as error:
            return Called(str(error), failed=True)
        return called if most is None else Called(cut(called.text, most), called.failed, called.seconds)


def _given(name: str, prompt: dict[str, Any], text: str) -> dict[str, str]:
    """Arguments as a user writes them: `key=value ...`; a value goes on to the next key. Raises UsageError."""
    wanted = {str(one.get("name")): one.get("required") is True for one in dicts(prompt.get("arguments"))}
    before, *found = re.split(rf"(?:^|\s)({'|'.join(map(re.escape, wanted))})=", text)
    given = {key: value.strip() for key, value in zip(found[::2], found[1::2], strict=True)}
    missing = [key for key, required in wanted.items() if required and not given.get(key)]
    if missing or before.strip():
        what = f"needs {', '.join(missing)}" if missing else f"takes no {before.strip()!r}"
        form = " ".join(f"{key}=..." if required else f"[{key}=...]" for key, required in wanted.items())
        raise UsageError(f"The prompt {name} {what}: /prompt {name} {form}".strip())
    return given


def allow(key: str, what: str) -> str:
    """Keeps a consent for always; why it could not be kept, "" = it was. `what`: for a person who reads the file."""
    return kept.facts().write(_KIND, key, {"allowed": what})


def is_allowed(key: str) -> bool:
    return kept.facts().read(_KIND, key, lambda data: bool(data["allowed"])) is True


def forbid(key: str) -> bool:
    """Takes a consent for always back; whether there was one."""
    return kept.facts().remove(_KIND, key)


@dataclass(frozen=True, slots=True)
class FolderFile:
    """`mcp.json` of the current folder, perhaps a stranger's: its servers start once the user has allowed them."""

    path: Path
    servers: list[Server]

    @classmethod
    def find(cls, notices: list[str]) -> FolderFile | None:
        """None = there is none, or it is the user's own; or it is broken, which is a notice more."""
        try:
            path, own = paths.real("mcp.json"), paths.real(user_file())
        except OSError:  # the folder was deleted
            return None
        try:
            found = read(path) if os.path.isfile(path) and path != own else []
        except UsageError as error:
            found = []
            notices.append(str(error))
        return cls(path, found) if found else None

    @property
    def key(self) -> str:
        """Of the user's consent."""
        return "\n".join([str(self.path), *(one.key for one in self.servers)])

    @property
    def is_allowed(self) -> bool:
        """Whether the user agreed to what would be started now, and where."""
        return is_allowed(self.key)

    @property
    def question(self) -> str:
        rows = "".join(f"\n  {one.name}: {one_line(one.words)}" for one in self.servers)
        return plain_text(f"Use the servers of {self.path}? They are programs that run with your rights.{rows}")

    def added(self, others: list[Server]) -> list[Server]:
        """To others, which go before, once the user agrees; that is kept."""
        allow(self.key, str(self.path))
        return merged(self.servers, others)
