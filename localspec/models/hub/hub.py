"""The Hugging Face hub, asked through huggingface_hub: what a repository holds, pieces of a file, search.

HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean to huggingface_hub. Every failure is a
`DownloadError` with one sentence and what to do about it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2 as httpx
from huggingface_hub import HfApi, constants, errors, get_session, get_token, hf_hub_url
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import build_hf_headers, disable_progress_bars, hf_raise_for_status

from localspec import __version__, paths
from localspec.errors import DownloadError, LocalspecError, UsageError, reason
from localspec.models.hub.names import RemoteFile, Url, check_file_name, is_plain_path

_KINDS = ("http", "https", "all")  # of HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, which clients heed


def check_proxies() -> None:
    """Raises UsageError: a variable holds a proxy that no client can be made with; its password is not repeated."""
    for kind, address in getproxies().items():
        if kind not in _KINDS or not address:
            continue
        try:
            httpx.HTTPTransport(False, trust_env=False, proxy=address if "://" in address else f"http://{address}")
            continue
        except ImportError:
            why, hint = "it needs the package socksio", "Try: pip install socksio"
        except (ValueError, httpx.InvalidURL):
            why = "it is no address of an HTTP or SOCKS5 proxy"
            hint = "It must look like http://HOST:PORT; without one, unset it."
        head, _, host = address.rpartition("@")
        shown = f"{head.partition('://')[0]}://...@{host}" if head else address
        raise UsageError(f"The proxy {shown!r} of {kind.upper()}_PROXY cannot be used: {why}.", hint)


def certificates() -> ssl.SSLContext:
    """The system's certificates, or those of SSL_CERT_FILE or SSL_CERT_DIR. Raises UsageError: they cannot be read."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        name = next((name for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if os.environ.get(name)), "")
        which = f"{name} ({os.environ[name]})" if name else "of the system"
        raise UsageError(f"The certificates {which} cannot be read: {reason(error)}.") from None


ReadRange = Callable[[int, int], bytes]  # (offset, length) -> bytes from there; fewer at the end of the file

_Result = TypeVar("_Result")
_RETRY_WAITS = (1.0, 3.0)  # seconds before a question is asked again
_CACHE_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")  # where the cache is
_SHA256, _COMMIT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")

logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # warnings would cut through our progress and sentences
if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
    disable_progress_bars()


@dataclass(frozen=True, slots=True)
class Listing:
    repository: str
    revision: str  # as asked; "main" if nothing was
    commit: str
    files: tuple[RemoteFile, ...]
    gated: bool = False
    made_from: tuple[str, ...] = ()  # repositories that these were quantised or fine-tuned from, as its tags say


@dataclass(frozen=True, slots=True)
class FoundRepository:
    repository: str
    downloads: int
    gated: bool
    url: str


class Hub:
    """One hub, one cache folder; safe to use from several threads."""

    def __init__(
        self, *, endpoint: str | None = None, cache: Path | None = None, offline: bool = False, token: str | None = None
    ) -> None:
        """None = what the environment says."""
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        if cache is None and not any(os.environ.get(name) for name in _CACHE_VARIABLES):
            paths.home()  # without one the library would take a folder below where we are
        self.cache = paths.real(paths.typed(str(cache or constants.HF_HUB_CACHE)))
        self.offline = offline or constants.HF_HUB_OFFLINE
        self.token = token or (None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token())
        self._way_checked = False
        self._api = HfApi(endpoint=self.endpoint, token=self.token or False)

    @property
    def host(self) -> str:
        """And its port, if it has one."""
        return urlsplit(self.endpoint).netloc

    def headers_for(self, url: str) -> dict[str, str]:
        """Headers for an address; the token only where the hub itself answers."""
        token = (self.token if urlsplit(url).netloc == self.host else None) or False
        found: dict[str, Any] = build_hf_headers(token=token, library_name="localspec", library_version=__version__)
        return {str(key): str(value) for key, value in found.items()}

    def folder(self, repository: str) -> Path:
        """Where the Hugging Face cache keeps a repository."""
        return self.cache / repo_folder_name(repo_id=repository, repo_type="model")

    def listing(self, repository: str, revision: str = "") -> Listing:
        """What a repository holds, offline in the cache. Raises DownloadError: unreachable, unknown, no access."""
        asked = revision or "main"
        if not is_plain_path(asked):  # it names files of the cache, too
            raise UsageError(f"{asked!r} is not the name of a branch, tag or commit.")
        if self.offline:
            return self._cached_listing(repository, asked)
        how: dict[str, Any] = {"revision": revision or None, "files_metadata": True, "timeout": 30}
        info = self._ask(repository, lambda: self._api.model_info(repository, **how))
        files = []
        for sibling in info.siblings or []:
            if not sibling.rfilename.endswith(".gguf"):
                continue
            check_file_name(sibling.rfilename, repository)
            sha256 = str(sibling.lfs.sha256).lower() if sibling.lfs else ""
            url = hf_hub_url(repository, sibling.rfilename, revision=info.sha, endpoint=self.endpoint)
            blob = sha256 or sibling.blob_id or ""
            if not (_SHA256.fullmatch(blob) or _COMMIT.fullmatch(blob)):
                raise DownloadError(f"{self.host} gives {sibling.rfilename!r} of {repository} no checksum.")
            files.append(RemoteFile(sibling.rfilename, int(sibling.size or 0), url, sha256, blob))
        if not info.sha or not _COMMIT.fullmatch(info.sha):
            raise DownloadError(f"{self.host} does not say which commit of {repository} it shows.")
        tags = (tag.split(":") for tag in info.tags or () if tag.startswith("base_model:"))
        made_from = tuple(dict.fromkeys(parts[-1] for parts in tags))
        return Listing(repository, asked, info.sha, tuple(files), bool(info.gated), made_from)

    def _cached_listing(self, repository: str, revision: str) -> Listing:
        folder = self.folder(repository)
        reference = folder / "refs" / revision
        commit = reference.read_text().strip() if reference.is_file() else revision
        snapshot = folder / "snapshots" / commit
        if not snapshot.is_dir():
            text = f"{repository} at {revision} is not in the cache ({self.cache})."
            raise DownloadError(text, "Pull it once without --offline, with HF_HUB_OFFLINE unset.")
        files = []
        for path in filter(Path.exists, sorted(snapshot.rglob("*.gguf"))):  # no link without its blob
            blob = paths.real(path).name if path.is_symlink() else ""
            sha256 = blob if _SHA256.fullmatch(blob) else ""
            name = path.relative_to(snapshot).as_posix()
            files.append(RemoteFile(name, path.stat().st_size, "", sha256, blob))
        return Listing(repository, revision, commit, tuple(files))

    def remember(self, listing: Listing) -> None:
        """Notes in the cache which commit a branch was at, as huggingface_hub does, so that it is found offline."""
        if listing.revision != listing.commit:
            with suppress(OSError):  # a convenience; the cache may be read-only
                paths.write_whole(self.folder(listing.repository) / "refs" / listing.revision, listing.commit)

    def url_file(self, url: Url) -> RemoteFile:
        """The file at an address, at its present version. Raises DownloadError: unreachable, not found, or the server
        does not state the size."""
        if self.offline:
            raise DownloadError(f"{url} cannot be fetched offline.", "Leave out --offline.")

        def ask() -> RemoteFile:
            headers = self.headers_for(url.url) | {"Range": "bytes=0-3"}
            response = get_session().get(url.url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
            hf_raise_for_status(response)
            total = response.headers.get("Content-Range", "").rpartition("/")[2]
            if not total.isdigit():
                raise DownloadError(f"{url} cannot be read in pieces (no Range), so it could not be resumed.")
            # Many addresses end in model.gguf, and what is there may change: its place is named after all of that.
            version = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
            own = hashlib.sha256(f"{url.url}\n{version}\n{total}".encode()).hexdigest()[:16]
            return RemoteFile(url.file, int(total), url.url, version=version, blob=own)

        check_file_name(url.file, url.url)
        return self._ask(url.url, ask)

    def reader(self, file: RemoteFile, where: str) -> ReadRange:
        """Reads pieces of a file without fetching the rest; a reader raises DownloadError."""

        def read(offset: int, length: int) -> bytes:
            last = min(offset + length, file.size) - 1
            if last < offset:
                return b""
            headers = self.headers_for(file.url) | {"Range": f"bytes={offset}-{last}", "Accept-Encoding": "identity"}

            def ask() -> bytes:
                url, timeout = file.url, constants.HF_HUB_DOWNLOAD_TIMEOUT
                with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
                    hf_raise_for_status(response)
                    if response.status_code != 206:
                        raise DownloadError(f"{where}: the server does not serve pieces of {file.name}.")
                    data = response.read()
                if len(data) != last + 1 - offset:
                    raise httpx.RemoteProtocolError(f"{len(data)} bytes came instead of {last + 1 - offset}")
                return data

            return self._ask(where, ask, file.name)

        return read

    def search(self, words: Sequence[str], limit: int = 20) -> list[FoundRepository]:
        """GGUF repositories by words, most downloaded first. Raises DownloadError: unreachable, or offline."""
        if self.offline:
            raise DownloadError("There is no search offline.", "Leave out --offline and unset HF_HUB_OFFLINE.")

        def ask() -> list[FoundRepository]:
            # not HfApi.list_models: without a network that waits for half a minute, and says nothing meanwhile
            wanted = {"search": " ".join(words), "filter": "gguf", "sort": "downloads", "limit": str(limit)}
            url, timeout = f"{self.endpoint}/api/models", constants.HF_HUB_DOWNLOAD_TIMEOUT
            response = get_session().get(url, params=wanted, headers=self.headers_for(url), timeout=timeout)
            hf_raise_for_status(response)
            found = []
            for one in response.json()[:limit]:
                facts = (int(one.get("downloads") or 0), bool(one.get("gated")), f"{self.endpoint}/{one['id']}")
                found.append(FoundRepository(str(one["id"]), *facts))
            return found

        return self._ask("search", ask)

    def _ask(self, where: str, question: Callable[[], _Result], file: str = "") -> _Result:
        """Asks up to three times where waiting may help; failures become sentences."""
        if not self._way_checked:  # before the library meets proxies and certificates that cannot be used
            check_proxies()
            certificates()
            self._way_checked = True
        for wait in (*_RETRY_WAITS, None):
            try:
                return question()
            except LocalspecError:
                raise
            except (httpx.HTTPError, OSError, errors.HFValidationError) as error:
                if wait is None or not passing(error):
                    raise self.explain(error, where, file) from error
                time.sleep(wait)
        raise AssertionError("the last wait is None")

    def explain(self, error: BaseException, where: str, file: str = "") -> DownloadError:
        """A failure of httpx or huggingface_hub in plain words; `where` is a repository or an address."""
        if isinstance(error, errors.HFValidationError):
            return DownloadError(f"{where!r} is not the name of a repository.")
        if isinstance(error, errors.HfHubHTTPError):
            return self._explain_status(error, where, file)
        if isinstance(error, httpx.TimeoutException):
            seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
            return DownloadError(f"{where}: no answer within {seconds} s.", "Try again; what came so far is kept.")
        if isinstance(error, httpx.ConnectError):
            host = urlsplit(where).netloc.rpartition("@")[2] or self.host
            text = f"{host} cannot be reached: {reason(error)}."
            return DownloadError(text, "Check the network; pull --offline takes what is in the cache.")
        text = f"{where}: the connection failed: {reason(error)}."
        return DownloadError(text, "Try again; what came so far is kept.")

    def _explain_status(self, error: errors.HfHubHTTPError, where: str, file: str) -> DownloadError:
        status, page = error.response.status_code, f"{self.endpoint}/{where}"
        if status == 401 and "invalid" in str(error.response.headers.get("X-Error-Message", "")).lower():
            source = "in HF_TOKEN" if os.environ.get("HF_TOKEN") else "of `hf auth login`"
            text = f"{self.host} refuses the access token {source}: revoked, expired or mistyped."
            hint = f"Make a new one at {self.endpoint}/settings/tokens, or remove it for public models."
            return DownloadError(text, hint)
        if isinstance(error, errors.GatedRepoError):
            text = f"{where} is gated: it needs an account that accepted its terms."
            hint = f"Accept them at {page}, then set HF_TOKEN or run `hf auth login`."
            if self.token:
                text = f"{where} is gated, and your account has no access to it."
                hint = f"Accept its terms at {page} with the account of your token, then pull again."
            return DownloadError(text, hint)
        if isinstance(error, errors.RevisionNotFoundError):
            return DownloadError(f"{where} has no such revision.", f"Branches and tags are listed at {page}/tree/main.")
        if file and (isinstance(error, errors.RemoteEntryNotFoundError) or status in (404, 410)):
            return DownloadError(f"{where} has no file {file!r} (any more).", f"See {page} or leave out the file name.")
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 404):
            if "://" in where:
                return DownloadError(f"There is nothing at {where} (status {status}).")
            why = "its token may lack access" if self.token else "a private one needs HF_TOKEN or `hf auth login`"
            return DownloadError(f"{self.host} shows no repository {where!r}; {why}.", "Try: localspec search WORDS")
        if status == 429:
            return DownloadError(f"{self.host} refuses more requests for now (status 429).", "Wait some minutes.")
        if status >= 500:
            text = f"{where}: the server is in trouble (status {status})."
            return DownloadError(text, "Try again later; what came so far is kept.")
        said = f": {error.server_message.splitlines()[0]}" if error.server_message else ""
        return DownloadError(f"{where}: refused with status {status}{said}.")


def passing(error: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in (408, 429, 500, 502, 503, 504)
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)
