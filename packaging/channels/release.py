"""The facts of a release that its channels are made of: version, files, addresses and checksums."""

from __future__ import annotations

import base64
import email.message
import hashlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

PATTERNS = {
    "wheel": "localspec-{version}-*manylinux*_x86_64.whl",
    "libraries": "localspec_llama-*manylinux*_x86_64.whl",
    "linux-x86_64": "localspec-{version}-linux-x86_64",
    "macos-arm64": "localspec-{version}-macos-arm64",
    "windows-x86_64": "localspec-{version}-windows-x86_64.exe",
    "deb": "localspec_{version}_amd64.deb",
}
"""By kind of file, what a release calls it; the two wheels are those that the container installs."""
_MARKER = re.compile(r"@([A-Z0-9]+)(?: ([a-z0-9_-]+))?@")
"""A gap in a recipe: @VERSION@, or @SHA256 deb@ for a fact of one of the release's files."""


class Refusal(Exception):
    """What is wrong with the release, in one sentence."""


@dataclass(frozen=True, slots=True)
class Release:
    """The folder of a release's files, and what they say of themselves."""

    folder: Path
    version: str
    summary: str
    """Of the wheel's metadata."""
    repository: str = ""
    """The project's page; its releases are below it at releases/download/vVERSION."""
    maintainer: str = ""
    """NAME <ADDRESS>, as .deb and .rpm files have it."""

    def file(self, kind: str) -> Path:
        """The release's file of a kind (see `PATTERNS`).

        Raises:
            Refusal: it is missing, or there are several.
        """
        pattern = PATTERNS[kind].format(version=self.version)
        found = sorted(self.folder.glob(pattern))
        if not found:
            raise Refusal(f"{self.folder} has no {pattern}; build it first and put it there.")
        if len(found) > 1:
            raise Refusal(f"{self.folder} has {len(found)} files {pattern}; leave one.")
        return found[0]

    def fill(self, text: str, **more: str) -> str:
        """A recipe with every gap filled.

        Args:
            more: values for gaps that the release does not know, by name in lower case.

        Raises:
            Refusal: the release lacks a file or an address that the recipe asks for.
            KeyError: there is no such gap.
        """
        return _MARKER.sub(lambda gap: self._value(gap[1], gap[2], more), text)

    def _value(self, name: str, kind: str | None, more: dict[str, str]) -> str:
        if kind is not None:
            return self._of_file(name, self.file(kind))
        if name.lower() in more:
            return more[name.lower()]
        values = {
            "VERSION": self.version,
            "SUMMARY": self.summary,
            "REPOSITORY": self.repository,
            "OWNER": self.repository.rpartition("/")[0].rpartition("/")[2],
            "MAINTAINER": self.maintainer,
        }
        if not values[name]:
            option = "--maintainer" if name == "MAINTAINER" else "--repository"
            raise Refusal(f"The {name.lower()} is missing; give {option}.")
        return values[name]

    def _of_file(self, name: str, path: Path) -> str:
        if name == "NAME":
            return path.name
        if name == "URL":
            return self.fill(f"@REPOSITORY@/releases/download/v{self.version}/{path.name}")
        digest = hashlib.sha256(path.read_bytes())
        return {"SHA256": digest.hexdigest(), "SRI": f"sha256-{base64.b64encode(digest.digest()).decode()}"}[name]


def read(folder: Path, repository: str = "", maintainer: str = "") -> Release:
    """The release whose files lie in a folder; its version is that of localspec's wheels there.

    Raises:
        Refusal: there is no wheel, there are wheels of several versions, or an address is none.
    """
    wheels = sorted(folder.glob("localspec-*.whl"))
    if not wheels:
        raise Refusal(f"{folder} has no wheel of localspec; build one and put it there.")
    versions = sorted({wheel.name.split("-")[1] for wheel in wheels})
    if len(versions) > 1:
        raise Refusal(f"{folder} has wheels of several versions of localspec: {', '.join(versions)}; leave one.")
    if repository and not re.fullmatch(r"https://[^/\s]+/[^/\s]+/[^/\s]+", repository):
        raise Refusal(f"{repository!r} is no address of a repository; give one such as https://HOST/OWNER/NAME.")
    if maintainer and not re.fullmatch(r"[^<>\n]+ <[^<>\s]+@[^<>\s]+>", maintainer):
        raise Refusal(f"{maintainer!r} is no maintainer; give NAME <ADDRESS>.")
    return Release(folder, versions[0], _summary(wheels[0]), repository, maintainer)


def _summary(wheel: Path) -> str:
    try:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            metadata = email.message_from_bytes(archive.read(name))
    except (zipfile.BadZipFile, ValueError) as error:
        raise Refusal(f"{wheel} is no wheel ({error}); build it again.") from error
    return metadata["Summary"] or ""
