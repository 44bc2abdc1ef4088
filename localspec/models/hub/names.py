"""What people type for a model on the hub, and which file of a repository they mean by it.

`user/repo` · `user/repo:Q4_K_M` · `user/repo/folder/file.gguf` · `hf.co/user/repo:quant` · a page or file address of
the hub · any other http(s) address of a .gguf file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from posixpath import basename, dirname
from urllib.parse import unquote, urlsplit

from rich.filesize import decimal

from localspec.errors import ModelError, UsageError
from localspec.gguf import split_of
from localspec.methods import OF_ITS_OWN, TABLE

HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
DEFAULT_QUANTS = ("Q4_K_M", "Q4_K_XL", "Q5_K_M", "Q4_K_S", "Q8_0", "Q4_0")
"""Tried in this order when no quantisation was named (llama.cpp's own order is Q4_K_M, Q8_0, then the first file)."""
HEAD_QUANTS = ("Q8_0", "BF16", "F16")  # of a repository with heads alone: fewer bits guess worse

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q|TQ)\d(?:_[A-Z0-9]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?=$|[-._/ ])",
    re.IGNORECASE,
)
_UNFIT = re.compile(r"[\\:\x00-\x1f\x7f\ud800-\udfff]")
_SIDE_FILES = re.compile(r"(?:^|[-._/])(?:mmproj|imatrix|ggml-vocab)", re.IGNORECASE)
_WORDS = {row.name: row.gguf.word for row in TABLE if row.gguf is not None and row.gguf.word}
_DRAFTER_FILES = re.compile(rf"(?:^|[-_.])({'|'.join(_WORDS.values())})(?=$|[-_.])", re.IGNORECASE)
"""Words in the names of drafters that lie beside the model they were made for."""


@dataclass(frozen=True, slots=True)
class RepositoryName:
    repository: str
    quant: str = ""  # as typed; "" = the default rule chooses
    file: str = ""  # path inside the repository; "" = chosen by quant
    revision: str = ""  # branch, tag or commit, where the address carries one

    def __str__(self) -> str:
        return self.repository + (f"/{self.file}" if self.file else f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class Url:
    """A .gguf file at an http(s) address outside the hub."""

    url: str

    @property
    def file(self) -> str:
        """Last part of the path, such as model.gguf."""
        return basename(unquote(urlsplit(self.url).path))

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class RemoteFile:
    name: str  # path inside the repository, or the last part of a URL
    size: int
    url: str
    sha256: str = ""  # Lower-case hex; "" = the server does not say
    blob: str = ""  # its name in the cache: sha256, or git's sha1 of a small file; elsewhere one for this version
    version: str = ""  # ETag or date of a plain address, as for If-Range; "" = the server does not say


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """One model of a repository: a file, or all parts of a split one in order."""

    quant: str  # upper case, such as "Q4_K_M"; "" if the name does not say
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def stem(self) -> str:
        """File name without the part number and .gguf."""
        return split_of(self.files[0].name).stem


def is_server(address: str) -> bool:
    """Whether an address is that of a server: http or https, a host, and no user, query or fragment."""
    try:
        parts = urlsplit(address)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return sound and "@" not in parts.netloc and not (parts.query or parts.fragment)


def parse(text: str, hub_hosts: Sequence[str] = ()) -> RepositoryName | Url | None:
    """What `text` names on the net; None if it is not of such a form. `hub_hosts` (with port), such as that of
    HF_ENDPOINT, speak for the hub, too. Raises UsageError: an address that leads to no .gguf file, or a file path that
    leaves its repository."""
    text = text.strip()
    scheme, separator, rest = text.partition("://")
    if separator and scheme in ("http", "https"):
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise UsageError(f"{text} is not an address: {error}.") from None
        if parts.netloc.lower() in (*HUB_HOSTS, *hub_hosts):
            return _hub_address(text, unquote(parts.path))
        if not re.search(r".\.gguf$", Url(text).file):
            raise UsageError(f"{text} does not end in .gguf.", "Give the address of the file itself.")
        return Url(text)
    if separator and scheme == "hf":
        text = rest
    for host in HUB_HOSTS:
        if text.lower().startswith(host + "/"):
            return _hub_address(text, text[len(host) :])
    repository, _, quant = text.partition(":")
    if _REPOSITORY.fullmatch(repository):
        if repository.endswith(".gguf"):
            return None  # a file in a folder
        if quant.endswith(".gguf"):
            return RepositoryName(repository, file=check_file_name(quant, text))
        return RepositoryName(repository, quant)
    user_repo, file = "/".join(text.split("/")[:2]), "/".join(text.split("/")[2:])
    if file.endswith(".gguf") and _REPOSITORY.fullmatch(user_repo):
        return RepositoryName(user_repo, file=check_file_name(file, text))
    return None


def _hub_address(text: str, path: str) -> RepositoryName:
    """`/user/repo`, `/user/repo:quant`, `/user/repo/blob|resolve|raw/REVISION/FILE`, `/user/repo/tree/REVISION`."""
    pieces = [piece for piece in path.split("/") if piece]
    if pieces[:1] == ["models"]:
        del pieces[0]
    repository, _, quant = "/".join(pieces[:2]).partition(":")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(f"{text} is not the address of a model repository.")
    if len(pieces) == 2:
        return RepositoryName(repository, quant)
    if pieces[2] in ("blob", "resolve", "raw") and len(pieces) > 4 and pieces[-1].endswith(".gguf"):
        return RepositoryName(repository, file=check_file_name("/".join(pieces[4:]), text), revision=pieces[3])
    if pieces[2] == "tree" and len(pieces) == 4:
        return RepositoryName(repository, revision=pieces[3])
    if pieces[-1].endswith(".gguf"):
        return RepositoryName(repository, file=check_file_name("/".join(pieces[2:]), text))
    raise UsageError(f"{text} does not lead to a .gguf file.", f"Try: localspec pull {repository}")


def check_file_name(file: str, where: str) -> str:
    """The path. Raises UsageError: absolute, or with `..`, backslashes, a drive or control characters."""
    if not is_plain_path(file):
        raise UsageError(f"{where!r} holds the file name {file!r}, which is not a plain path.")
    return file


def is_plain_path(text: str) -> bool:
    """Whether a path stays in the folder it is put into, on any system, and can be written there."""
    pieces = text.split("/")
    return not any(piece in ("", ".", "..") for piece in pieces) and not _UNFIT.search(text)


def quant_of(name: str) -> str:
    """Quantisation in a file's name, upper case; "" if there is none."""
    found = _QUANT.findall(split_of(name).stem)
    return found[-1].upper() if found else ""


def base_name(name: str) -> str:
    """What a file or repository calls the model, without folder, quantisation and ending, lower case."""
    last = basename(name).partition(":")[0].removesuffix(".gguf")
    last = re.sub(r"-gguf$", "", last, flags=re.IGNORECASE)
    if quant := quant_of(last):
        last = re.sub(rf"[-._]?{re.escape(quant)}$", "", last, flags=re.IGNORECASE)
    return re.sub(r"-gguf$", "", last, flags=re.IGNORECASE).lower()


def family(choice: RepositoryModel) -> str:
    """A choice's file name without its quantisation: the same for all quantisations of one model."""
    return _QUANT.sub("", basename(choice.stem)).lower()


def choices(files: Iterable[RemoteFile]) -> list[RepositoryModel]:
    """The models among a repository's files, sorted by size; projectors, importance matrices and vocabularies are none,
    a split model with a part missing is left out, and so are drafters, unless the repository has nothing else."""
    found = _whole(files)
    return [choice for choice in found if not drafter_method(choice.stem)] or found


def drafters(files: Iterable[RemoteFile]) -> list[RepositoryModel]:
    """What lies beside the models among a repository's files and is a drafter by its name, sorted by size."""
    found = _whole(files)
    named = [choice for choice in found if drafter_method(choice.stem)]
    return named if len(named) < len(found) else []


def drafter_method(stem: str) -> str:
    """The method by which the name of a file, without .gguf, or else its folder's calls it a drafter; "" = none."""
    found = _DRAFTER_FILES.search(basename(stem)) or _DRAFTER_FILES.fullmatch(basename(dirname(stem)))
    if found is None:
        return ""
    return next(name for name, word in _WORDS.items() if re.fullmatch(word, found[1], re.IGNORECASE))


def folder_of(choice: RepositoryModel) -> str:
    """The folder of its files in the repository, "" = the top; of drafters in a folder for such, the one above."""
    folder = dirname(choice.stem)
    return dirname(folder) if _DRAFTER_FILES.fullmatch(basename(folder)) else folder


def _whole(files: Iterable[RemoteFile]) -> list[RepositoryModel]:
    """Models and drafters that are complete, sorted by size."""
    groups: dict[str, dict[int, RemoteFile]] = {}
    counts: dict[str, int] = {}
    for file in files:
        if file.name.endswith(".gguf") and not _SIDE_FILES.search(file.name):
            base, part, counts[base] = split_of(file.name)
            groups.setdefault(base, {})[part] = file
    whole = [
        RepositoryModel(quant_of(base), tuple(parts[number] for number in sorted(parts)))
        for base, parts in groups.items()
        if sorted(parts) == list(range(1, counts[base] + 1))
    ]
    return sorted(whole, key=lambda choice: (choice.size, choice.stem))


def choose(name: RepositoryName, files: Sequence[RemoteFile]) -> RepositoryModel:
    """The model that `name` means. Raises ModelError: none or several fit; the hint lists what there is."""
    found = choices(files)
    if not found:
        hint = f"Try: localspec search {name.repository.split('/')[1]} GGUF"
        raise ModelError(f"{name.repository} holds no complete GGUF model.", hint)
    offer = ", ".join(f"{choice.quant or choice.stem} ({decimal(choice.size)})" for choice in found)
    if name.file:
        fits = [choice for choice in _whole(files) if any(file.name == name.file for file in choice.files)]
        if not fits:
            raise ModelError(f"{name.repository} has no file {name.file!r} (any more).", f"It has: {offer}.")
    elif name.quant:
        wanted = name.quant.upper()
        fits = [choice for choice in found if choice.quant == wanted]
        fits = fits or [choice for choice in found if choice.quant.removeprefix("UD-") == wanted.removeprefix("UD-")]
        fits = fits or [choice for choice in found if choice.stem.upper().endswith(wanted)]
        if not fits:
            raise ModelError(f"{name.repository} has no quantisation {name.quant!r}.", f"It has: {offer}.")
    else:
        heads = all(drafter_method(choice.stem) not in ("", OF_ITS_OWN) for choice in found)
        order = (*(HEAD_QUANTS if heads else ()), *DEFAULT_QUANTS, found[0].quant)
        by_order = ([choice for choice in found if choice.quant == quant] for quant in order)
        fits = next(group for group in by_order if group)
    if len(fits) > 1:
        several = [choice.files[0].name for choice in fits]
        hint = f"Name one: {name.repository}/{several[0]}"
        raise ModelError(f"{name} means several files: {', '.join(several)}.", hint)
    return fits[0]
