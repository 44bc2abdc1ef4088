"""Facts of the vocabularies that come with llama.cpp's source, and how they were taken from its files.

The files (`models/ggml-vocab-*.gguf`, 80 MB) are in the source distribution of llama-cpp-python:
`pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36`, then unpack it and set LOCALSPEC_VOCABULARIES to
its folder vendor/llama.cpp/models. `python -m tests.models.vocabularies` writes vocabularies.json and verdicts.tsv.
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import product
from pathlib import Path
from typing import Any

from localspec.gguf import Header, read_header
from localspec.models.pairing import FIRST_COMPARED, Difference, differences
from localspec.models.vocabulary import Vocabulary, vocabulary

FOLDER = Path(__file__).parent
EXTRACTS, VERDICTS = FOLDER / "vocabularies.json", FOLDER / "verdicts.tsv"
FACTS = ("kind", "pre", "bos", "eos", "add_bos", "add_eos")


def files() -> dict[str, Path]:
    """The vocabulary files by name; empty unless LOCALSPEC_VOCABULARIES names their folder."""
    folder = os.environ.get("LOCALSPEC_VOCABULARIES")
    found = sorted(Path(folder).glob("ggml-vocab-*.gguf")) if folder else []
    return {path.stem.removeprefix("ggml-vocab-"): path for path in found}


def headers() -> dict[str, Header]:
    return {name: read_header(path) for name, path in files().items()}


def first_difference(one: Vocabulary, other: Vocabulary) -> int | None:
    """The first token from id 5 on whose text differs."""
    size = min(one.size, other.size)
    return next((token for token in range(FIRST_COMPARED, size) if one.tokens[token] != other.tokens[token]), None)


def extract(vocabularies: dict[str, Vocabulary]) -> dict[str, Any]:
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


def digest(found: Vocabulary) -> str:
    """Of all token texts with their lengths."""
    running = hashlib.sha256()
    for token in found.tokens:
        running.update(len(token).to_bytes(4, "little") + token)
    return running.hexdigest()


def from_extract(facts: dict[str, Any]) -> Vocabulary:
    """A vocabulary that has the kept tokens where they were and nothing elsewhere: it parts from others as the real."""
    tokens = [b""] * facts["size"]
    for token, text in facts["tokens"].items():
        tokens[int(token)] = bytes.fromhex(text)
    return Vocabulary(**{fact: facts[fact] for fact in FACTS}, tokens=tokens)


def verdict_line(target: str, draft: str, found: Difference | None) -> str:
    """A line of the table."""
    if found is None:
        return f"{target}\t{draft}\tfits"
    token = "" if found.token is None else str(found.token)
    return "\t".join((target, draft, found.fact, token, found.target, found.draft))


def table(vocabularies: dict[str, Vocabulary]) -> list[str]:
    """The verdict on every pair of target and draft."""
    return [
        verdict_line(target, draft, next(differences(vocabularies[target], vocabularies[draft]), None))
        for target, draft in product(vocabularies, repeat=2)
    ]


if __name__ == "__main__":
    found = {name: vocabulary(header) for name, header in headers().items()}
    EXTRACTS.write_text(json.dumps(extract(found), indent=1) + "\n", encoding="utf-8")
    lines = [line.encode("unicode_escape").decode().replace("\\t", "\t") for line in table(found)]
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
