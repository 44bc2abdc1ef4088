"""Packages of Linux systems, .deb and .rpm, made by nfpm of the program's folder; installed, they need no Python."""

from __future__ import annotations

import email.utils
import gzip
import os
import platform
import subprocess
from pathlib import Path

from program import Program
from release import Refusal, Release

FORMATS = ("deb", "rpm")
RECIPES = Path(__file__).parent / "recipes" / "system"
ROOT = Path(__file__).parents[2]
SCRIPTS = {"bash": "localspec.bash", "zsh": "_localspec", "fish": "localspec.fish"}
"""By shell, its completion script in a package."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def package(form: str, release: Release, program: Program, out: Path) -> Path:
    """Makes the .deb or the .rpm of a release, for this machine's architecture, in `out`.

    Raises:
        Refusal: this is no Linux with glibc, or the release has no maintainer or no repository.
        subprocess.CalledProcessError: a tool failed.
    """
    libc, glibc = platform.libc_ver()
    if libc != "glibc":
        raise Refusal(f"A .{form} is made on Linux with glibc; this is {platform.system()}.")
    machine = platform.machine()
    architecture = _ARCHITECTURES.get(machine, machine)
    written = papers(release, glibc, architecture) | shell_files(program.commands / "python")
    stage = program.tree.with_name("papers")
    stage.mkdir(exist_ok=True)
    for name, content in written.items():
        (stage / name).write_bytes(content)
    name = {
        "deb": f"localspec_{release.version}_{architecture}.deb",
        "rpm": f"localspec-{release.version}-1.{machine}.rpm",
    }[form]
    options = ("--packager", form, "--config", "nfpm.yaml", "--target", str(out / name))
    subprocess.run([program.commands / "nfpm", "package", *options], check=True, cwd=stage, stdout=subprocess.DEVNULL)
    return out / name


def papers(release: Release, glibc: str, architecture: str) -> dict[str, bytes]:
    """What the packages have beside the program, and nfpm's list of it, by file name."""
    at = os.environ.get("SOURCE_DATE_EPOCH")
    facts = {
        "glibc": glibc,
        "architecture": architecture,
        "date": email.utils.formatdate(float(at) if at else None),
        "licence": "\n".join(
            f" {line}" if line else " ." for line in (ROOT / "LICENSE").read_text("utf-8").splitlines()
        ),
    }
    found = {path.name: release.fill(path.read_text("utf-8"), **facts).encode() for path in RECIPES.iterdir()}
    found["changelog.gz"] = gzip.compress(found.pop("changelog"), mtime=0)
    return found


def shell_files(python: Path) -> dict[str, bytes]:
    """The man page and the completion scripts by file name, made by this interpreter's localspec.

    Raises:
        subprocess.CalledProcessError: it cannot make one.
    """

    def said(*words: str | Path) -> bytes:  # -I: no checkout is found in place of the installed release
        return subprocess.run([python, "-I", *words], stdout=subprocess.PIPE, check=True).stdout

    found = {name: said("-m", "localspec", "completion", shell) for shell, name in SCRIPTS.items()}
    return found | {"localspec.1.gz": gzip.compress(said(Path(__file__).with_name("man_page.py")), mtime=0)}
