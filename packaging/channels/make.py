"""Makes channels of a release: `python packaging/channels/make.py CHANNEL... --files FOLDER --out FOLDER`.

FOLDER of --files holds what the release has so far: the wheels of localspec and localspec-llama, and for the channels
that download something, what they download. README.md says which channel needs what. Python alone runs this; the tools
of a channel are installed from PyPI into a folder that is removed afterwards.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from program import Program
from release import Refusal, Release, read
from system import FORMATS, package

RECIPES = Path(__file__).parent / "recipes"
FILLED = ("homebrew", "winget", "scoop", "container", "nix")
"""Channels that are a folder of recipes: every file of it is filled."""
CHANNELS = ("single-file", *FORMATS, *FILLED)


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="packaging/channels/make.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("channels", nargs="+", choices=CHANNELS, metavar="CHANNEL", help=", ".join(CHANNELS))
    parser.add_argument("--files", type=Path, required=True, metavar="FOLDER", help="the release's files")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    parser.add_argument("--repository", default="", metavar="URL", help="the project's page: https://HOST/OWNER/NAME")
    parser.add_argument("--maintainer", default="", metavar="TEXT", help="NAME <ADDRESS>, for deb and rpm")
    options = parser.parse_args(arguments)
    try:
        release = read(options.files.absolute(), options.repository.rstrip("/"), options.maintainer)
        if not set(FORMATS).isdisjoint(options.channels):
            release.fill("@REPOSITORY@ @MAINTAINER@")  # before minutes of building
        out = options.out.absolute()
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as work:
            program = Program(release, Path(work))
            for channel in options.channels:
                for path in make(channel, release, program, out):
                    print(path)
    except Refusal as error:
        sys.exit(f"packaging/channels: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"packaging/channels: {Path(error.cmd[0]).name} failed with exit code {error.returncode}; see above.")
    return 0


def make(channel: str, release: Release, program: Program, out: Path) -> Iterator[Path]:
    """Makes one channel; what it wrote.

    Raises:
        Refusal: the release lacks something that the channel needs.
        subprocess.CalledProcessError: a tool failed.
    """
    if channel == "single-file":
        yield program.single_file(out)
    elif channel in FORMATS:
        yield package(channel, release, program, out)
    else:
        filled = {
            path.name: release.fill(path.read_text(encoding="utf-8")) for path in sorted((RECIPES / channel).iterdir())
        }
        for name, text in filled.items():
            target = out / channel / release.fill(name.replace("PACKAGE", "@OWNER@.localspec"))
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
            yield target


if __name__ == "__main__":
    sys.exit(main())
