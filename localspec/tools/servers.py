"""The file of servers, which other programs have too: {"mcpServers": {name: {command, args, env} | {url, headers}}}."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.errors import UsageError, reason

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_KEY = r"[\w.-]*(?:token|key|secret|passw|auth)[\w.-]*"
_SECRET = re.compile(rf"(?i)((?:^|[\0\s?&=]){_KEY}[=:]|(?:^|\0)-{_KEY}\0(?!--)|://(?=[^/\0]*@))(?![^\0]*\$\{{)[^\0]+")
"""In words with \0 between them: the value of an option or a variable, or after the user in an address."""


@dataclass(frozen=True, slots=True)
class Server:
    """A program to be started, or an address. What `env` and `headers` hold may be secret: it stands in no text."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str = ""

    @property
    def key(self) -> str:
        """Changes with what is started, or asked: a consent holds for it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def words(self) -> str:
        """What is started, or the address; names of what is given to it, and of the user's variables that it gets."""
        given = (*self.env.values(), *self.headers.values(), self.command, *self.args, self.url, self.cwd)
        read = [found[1] for one in given for found in _VARIABLE.finditer(one)]
        parts = (("in", [self.cwd]), ("with", [*self.env, *self.headers]), ("it gets your", read))
        more = (f"; {word} {', '.join(names)}" for word, names in parts if any(names))
        return "".join((self.url or " ".join((self.command, *self.args)), *more))

    def masked(self) -> Server:
        """With *** for what looks like a key in its arguments and its address."""
        *args, url = _SECRET.sub(r"\1***", "\0".join((*self.args, self.url))).split("\0")
        return replace(self, args=tuple(args), url=url)

    def filled(self) -> Server:
        """With values for `${NAME}` and `${NAME:-default}`. Raises UsageError: the environment lacks one."""

        def value(found: re.Match[str]) -> str:
            if (given := os.environ.get(found[1], found[2])) is None:
                raise UsageError(f"The server {self.name} wants the variable {found[1]}, which is not set.")
            return given

        def fill(part: Any) -> Any:
            if isinstance(part, Mapping):
                return {key: fill(one) for key, one in part.items()}
            return _VARIABLE.sub(value, part) if isinstance(part, str) else tuple(map(fill, part))

        return Server(**fill(asdict(self)))


def user_file() -> Path:
    return paths.config_dir() / "mcp.json"


def of_user() -> list[Server]:
    """Those of the user's file. Raises as `read`."""
    return read(user_file()) if user_file().exists() else []


def merged(*groups: Iterable[Server]) -> list[Server]:
    """All; of two with one name the later."""
    return list({one.name: one for group in groups for one in group}.values())


def read(path: Path) -> list[Server]:
    """Servers of a file, but for those that it calls disabled. Raises UsageError: it, or an entry, cannot be read."""
    entries = _read(path)["mcpServers"].items()
    on = ((name, one) for name, one in entries if not isinstance(one, dict) or one.get("disabled") is not True)
    return [_server(path, name, entry) for name, entry in on]


def add(path: Path, server: Server) -> None:
    """Raises UsageError: the name is there, or the server is none."""
    whole = _read(path) if path.exists() else {"mcpServers": {}}
    if server.name in whole["mcpServers"]:
        raise UsageError(f"{path} has a server {server.name} already.", f"`localspec mcp remove {server.name}` first.")
    parts = asdict(server) | {"args": list(server.args), "name": ""}
    entry = {key: value for key, value in parts.items() if value}
    _server(path, server.name, entry)
    whole["mcpServers"][server.name] = entry
    _write(path, whole)


def remove(path: Path, name: str) -> None:
    """Raises UsageError: there is no such server."""
    whole = _read(path) if path.exists() else {"mcpServers": {}}
    if name not in whole["mcpServers"]:
        known = ", ".join(whole["mcpServers"]) or "none"
        raise UsageError(f"{path} has no server {name!r}; it has {known}.")
    del whole["mcpServers"][name]
    _write(path, whole)


_FORM = 'It must look like {"mcpServers": {"name": {"command": "..."}}}.'


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(paths.read_own(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}.", _FORM) from None
    if not isinstance(found, dict) or not isinstance(found.get("mcpServers"), dict):
        raise UsageError(f"{path} has no mcpServers.", _FORM)
    return found


def _write(path: Path, whole: dict[str, Any]) -> None:
    """For the user alone: it may hold keys."""
    try:
        path = paths.real(path)  # a link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        with paths.replacing(path, str(os.getpid())) as beside:
            beside.touch(0o600)
            beside.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {reason(error)}.") from None


def _server(path: Path, name: str, entry: Any) -> Server:
    where = f"{path}, server {name!r}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{where}: a name has 1 to 64 letters, digits, '_', '-' and '.'.")
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: it must be an object with command or url.")
    kinds = {"command": str, "args": list, "env": dict, "url": str, "headers": dict, "cwd": str}
    given = {key: entry[key] for key in kinds if entry.get(key)}
    for key, value in given.items():
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        if not isinstance(value, kinds[key]) or not all(isinstance(one, str) for one in inner):
            words = {str: "a text", list: "a list of texts", dict: "an object of texts"}[kinds[key]]
            raise UsageError(f"{where}: {key} must be {words}.")  # the value may be secret
    if ("command" in given) == ("url" in given):
        raise UsageError(f"{where}: it must have either a command or a url.")
    if not re.match(r"https?://[^/]|\$\{", given.get("url", "${")):
        raise UsageError(f"{where}: url is {given['url']!r}; it must begin with http:// or https:// and a host.")
    given["args"] = tuple(given.get("args", ()))
    return Server(name, **given)


def dicts(listed: Any) -> list[dict[str, Any]]:
    """The objects of what a server should give as a list of them."""
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
