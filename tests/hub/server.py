"""A hub on this machine: real HTTP, the protocol as huggingface_hub speaks it, and every way it can go wrong.

Two servers: the hub itself (API, `resolve` with its redirect) and a content server on another port, as in life, so that
a token sent to the wrong place is seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    """What git calls a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@dataclass
class Repository:
    """A repository at one commit."""

    name: str
    files: dict[str, bytes]
    gated: bool = False
    branches: tuple[str, ...] = ("main",)
    downloads: int = 1
    tags: tuple[str, ...] = ("gguf",)

    @property
    def commit(self) -> str:
        """Changes with the content, as git's does."""
        content = "".join(f"{name}:{sha256(data)}" for name, data in sorted(self.files.items()))
        return hashlib.sha1(f"{self.name}:{content}".encode("utf-8", "surrogatepass")).hexdigest()


@dataclass
class Faults:
    """What goes wrong; all off at first. File faults concern the content server."""

    cut_every: int = 0
    """Cut the connection after so many bytes of a body."""
    cuts: int = 0
    """How often; -1 = always."""
    seconds_per_block: float = 0.0
    """Pause after each block of a body."""
    block: int = 256 << 10
    stall_after: int = 0
    """Send so many bytes, then nothing more, once."""
    wrong_byte: int = -1
    """Index of a byte of every body that is sent wrong."""
    ignore_range: bool = False
    short_by: int = 0
    """Announce and send so many bytes less than the file has."""
    statuses: dict[str, list[int]] = field(default_factory=dict)
    """Part of a path -> statuses to answer with before anything else."""
    revoked: set[str] = field(default_factory=set)
    """Tokens that the hub no longer knows."""
    on_body: Callable[[int], object] | None = None
    """Called with the position in the file before each block of a long body."""


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    server: str
    method: str
    path: str
    range: str
    token: str


class LocalHub:
    """`with LocalHub() as hub:`; `hub.url` is the HF_ENDPOINT."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.moved: dict[str, str] = {}
        """Old name of a repository -> its new one."""
        self.blobs: dict[str, bytes] = {}
        self.accepted: set[str] = set()
        """Tokens whose account accepted the terms of gated repositories."""
        self.faults = Faults()
        self.seen: list[Seen] = []
        self.sent: Counter[str] = Counter()
        """Bytes of file bodies, by checksum."""
        self._servers = [_server(_Hub, self), _server(_Content, self)]
        self.url, self.content_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)
        self._threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in self._servers]

    def __enter__(self) -> LocalHub:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def add(self, name: str, files: dict[str, bytes], **more: Any) -> Repository:
        """Puts a repository on the hub."""
        repository = Repository(name, files, **more)
        self.repositories[name] = repository
        self.blobs.update({sha256(data): data for data in files.values()})
        return repository

    def bytes_sent(self) -> int:
        """Bytes of file bodies that the content server has sent."""
        return sum(self.sent.values())

    def reset(self) -> None:
        """Forgets what was seen and all faults."""
        self.seen, self.faults, self.sent = [], Faults(), Counter()


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    hub: LocalHub

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a client that is gone is what these tests are about
            super().handle_error(request, client_address)


def _server(handler: type[BaseHTTPRequestHandler], hub: LocalHub) -> _Quiet:
    server = _Quiet(("127.0.0.1", 0), handler)
    server.hub = hub
    return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Quiet
    kind = ""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    @property
    def hub(self) -> LocalHub:
        return self.server.hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        self.hub.seen.append(Seen(self.kind, self.command, self.path, self.headers.get("Range", ""), token))
        for part, statuses in self.hub.faults.statuses.items():
            if part in self.path and statuses:
                self.answer(statuses.pop(0), {"error": "trouble"})
                return
        self.serve(urlsplit(self.path).path, token)

    def serve(self, path: str, token: str) -> None:
        raise NotImplementedError

    def answer(self, status: int, data: Any = None, **headers: str) -> None:
        body = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value.encode("ascii", "replace").decode())
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, {"error": message}, X_Error_Code=code, X_Error_Message=message)


class _Hub(_Handler):
    """API and `resolve`."""

    kind = "hub"

    def serve(self, path: str, token: str) -> None:
        if token in self.hub.faults.revoked:
            self.answer(
                401, {"error": "Invalid credentials"}, X_Error_Message="Invalid credentials in Authorization header"
            )
            return
        if path == "/api/models":
            self.search()
            return
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = api or file
        if found is None:
            self.answer(404, {"error": "no such page"})
            return
        name = self.hub.moved.get(found[1])
        if name is not None:
            self.answer(307, None, Location=self.path.replace(found[1], name, 1))
            return
        repository = self.hub.repositories.get(found[1])
        if repository is None:
            # The real hub says 401 to strangers, so that private names stay secret.
            self.refuse(404 if token else 401, "RepoNotFound", "Repository not found")
            return
        revision = unquote(found[2] or "main")
        if revision not in (*repository.branches, repository.commit):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif api:
            self.info(repository)
        elif file:
            self.resolve(repository, unquote(file[3]), token)

    def info(self, repository: Repository) -> None:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": git_sha1(data),
                **({"lfs": {"sha256": sha256(data), "size": len(data), "pointerSize": 134}} if is_lfs(name) else {}),
            }
            for name, data in repository.files.items()
        ]
        self.answer(200, _card(repository) | {"siblings": siblings})

    def search(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        words = asked.get("search", [""])[0].lower().split()
        found = [card for card in self.hub.repositories.values() if all(word in card.name.lower() for word in words)]
        found.sort(key=lambda card: -card.downloads)
        self.answer(200, [_card(card) for card in found[: int(asked.get("limit", ["100"])[0])]])

    def resolve(self, repository: Repository, name: str, token: str) -> None:
        if repository.gated and token not in self.hub.accepted:
            self.refuse(403 if token else 401, "GatedRepo", f"Access to model {repository.name} is restricted.")
            return
        data = repository.files.get(name)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        if not is_lfs(name):
            etag = git_sha1(data)
            self.send_response(200)
            self.send_header("ETag", f'"{etag}"')
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            return
        self.answer(
            302,
            None,
            Location=f"{self.hub.content_url}/{sha256(data)}/{quote(name.rsplit('/', 1)[-1])}?signature=x",
            X_Repo_Commit=repository.commit,
            X_Linked_Size=str(len(data)),
            X_Linked_Etag=f'"{sha256(data)}"',
            ETag=f'"{sha256(data)}"',
        )


class _Content(_Handler):
    """Bodies of large files, and plain downloads at /CHECKSUM/NAME."""

    kind = "content"

    def serve(self, path: str, token: str) -> None:
        blob = path.split("/")[1]
        data = self.hub.blobs.get(blob)
        if data is None:
            self.answer(404, {"error": "no such object"})
            return
        faults = self.hub.faults
        start, stop, status = 0, len(data) - faults.short_by, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not faults.ignore_range:
            start, status = int(asked[1]), 206
            if start >= len(data):
                self.answer(416, None, Content_Range=f"bytes */{len(data)}")
                return
            stop = min(stop, int(asked[2]) + 1) if asked[2] else stop
        self.send_response(status)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{blob}"')
        self.send_header("Content-Length", str(stop - start))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        if self.command != "HEAD":
            self.body(blob, data, start, stop)

    def body(self, blob: str, data: bytes, start: int, stop: int) -> None:
        faults, at = self.hub.faults, start
        while at < stop:
            end = min(at + faults.block, stop)
            if faults.on_body is not None:
                faults.on_body(at)
            if faults.cut_every and faults.cuts and end - start > faults.cut_every:
                faults.cuts -= 1
                self.cut()
                return
            if faults.stall_after and end - start > faults.stall_after:
                faults.stall_after = 0
                time.sleep(4)
                self.cut()
                return
            block = data[at:end]
            if at <= faults.wrong_byte < end:
                wrong = faults.wrong_byte - at
                block = block[:wrong] + bytes([block[wrong] ^ 0xFF]) + block[wrong + 1 :]
            self.wfile.write(block)
            self.hub.sent[blob] += len(block)
            at = end
            if faults.seconds_per_block:
                time.sleep(faults.seconds_per_block)

    def cut(self) -> None:
        """As a lost connection looks: a reset, no proper end."""
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True


def is_lfs(name: str) -> bool:
    return name.endswith(".gguf")


def _card(repository: Repository) -> dict[str, Any]:
    return {
        "id": repository.name,
        "modelId": repository.name,
        "sha": repository.commit,
        "gated": "auto" if repository.gated else False,
        "private": False,
        "downloads": repository.downloads,
        "tags": list(repository.tags),
    }


def environment(hub_url: str, home: Path) -> dict[str, str]:
    """Environment of a program that uses this hub and nothing of the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "LOCALSPEC_", "XDG_"))}
    folders = {
        "HOME": home,
        "HF_HOME": home / "hf",
        "LOCALSPEC_DATA": home / "data",
        "LOCALSPEC_CACHE": home / "cache",
        "XDG_CONFIG_HOME": home / "config",
    }
    found = kept | {name: str(folder) for name, folder in folders.items()}
    return found | {"HF_ENDPOINT": hub_url, "HF_HUB_DISABLE_TELEMETRY": "1", "no_proxy": "*", "NO_PROXY": "*"}
