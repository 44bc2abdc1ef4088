"""Facts of the vocabularies that come with llama.cpp's source, and how they were taken from its files.

The files (`models/ggml-vocab-*.gguf`, 80 MB) are in the source distribution of llama-cpp-python.
The trials take them from there by pip and compare them with the extracts kept here, or take them from the folder that
LOCALSPEC_VOCABULARIES names. `python -m tests.models.vocabularies FOLDER` fetches them and writes the extracts anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from localspec.gguf import read_header
from localspec.models.facts.pairing import FIRST_COMPARED, Difference, FileVocabulary, differences, vocabulary

FOLDER = Path(__file__).parent
EXTRACTS, VERDICTS = FOLDER / "vocabularies.json", FOLDER / "verdicts.tsv"
_MEMBER = re.compile(r"[^/]+/vendor/llama\.cpp/models/(ggml-vocab-[\w.-]+\.gguf)")
FACTS = ("kind", "pre", "bos", "eos", "add_bos", "add_eos")


def files(folder: Path) -> dict[str, Path]:
    """The vocabulary files in a folder, by name."""
    return {path.stem.removeprefix("ggml-vocab-"): path for path in sorted(folder.glob("ggml-vocab-*.gguf"))}


def first_difference(one: FileVocabulary, other: FileVocabulary) -> int | None:
    """The first token from id 5 on whose text differs."""
    size = min(one.size, other.size)
    return next((token for token in range(FIRST_COMPARED, size) if one.tokens[token] != other.tokens[token]), None)


def extract(vocabularies: dict[str, FileVocabulary]) -> dict[str, Any]:
    """Small enough to keep: specials, a digest, and the tokens at which two of the vocabularies part."""
    pairs = product(vocabularies.values(), repeat=2)
    places = sorted({token for one, other in pairs if (token := first_difference(one, other)) is not None})
    return {
        name: {fact: getattr(found, fact) for fact in FACTS}
        | {
            "size": found.size,
            "sha256": digest(found),
            "tokens": {str(token): found.tokens[token].hex() for token in places if token < found.size},
        }
        for name, found in vocabularies.items()
    }


def digest(found: FileVocabulary) -> str:
    """Of all token texts with their lengths."""
    running = hashlib.sha256()
    for token in found.tokens:
        running.update(len(token).to_bytes(4, "little") + token)
    return running.hexdigest()


def from_extract(facts: dict[str, Any]) -> FileVocabulary:
    """A vocabulary that has the kept tokens where they were and nothing elsewhere: it parts from others as the real."""
    tokens = [b""] * facts["size"]
    for token, text in facts["tokens"].items():
        tokens[int(token)] = bytes.fromhex(text)
    return FileVocabulary(**{fact: facts[fact] for fact in FACTS}, tokens=tokens)


def verdict_line(target: str, draft: str, found: Difference | None) -> str:
    """A line of the table."""
    if found is None:
        return f"{target}\t{draft}\tfits"
    token = "" if found.token is None else str(found.token)
    return "\t".join((target, draft, found.fact, token, found.target, found.draft))


def table(vocabularies: dict[str, FileVocabulary]) -> list[str]:
    """The verdict on every pair of target and draft."""
    return [
        verdict_line(target, draft, next(differences(vocabularies[target], vocabularies[draft]), None))
        for target, draft in product(vocabularies, repeat=2)
    ]


def fetch(folder: Path) -> None:
    """Takes the files out of the source distribution of the installed version, which pip downloads.

    Raises:
        CalledProcessError: pip could not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        wanted = f"llama-cpp-python=={version('llama-cpp-python')}"
        options = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", place]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, wanted], check=True)
        (archive,) = Path(place).glob("*.tar.gz")
        with tarfile.open(archive) as source:
            for member in source:
                name, data = _MEMBER.fullmatch(member.name), source.extractfile(member)
                if name is not None and data is not None:
                    (folder / name[1]).write_bytes(data.read())


def write(folder: Path) -> None:
    """Writes the extracts and the verdicts."""
    found = {name: vocabulary(read_header(path)) for name, path in files(folder).items()}
    EXTRACTS.write_text(json.dumps(extract(found), indent=1) + "\n", encoding="utf-8")
    lines = [line.encode("unicode_escape").decode().replace("\\t", "\t") for line in table(found)]
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
    write(Path(sys.argv[1]))
