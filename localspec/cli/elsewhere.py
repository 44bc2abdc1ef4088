"""The command that serves a target with its drafter in another engine, by that engine's own documentation.

Read in November 2026:

- llama-server: the page on speculative decoding in llama.cpp's own docs, and the hub's, which has the commands for
  DFlash, MTP and EAGLE-3 (`-hf`, `-hfd`, `-m`, `-md`, `--spec-type`, `--spec-draft-n-max`).
- vLLM: docs.vllm.ai, features/speculative_decoding: the pages draft_model, parallel_draft_model (PARD), eagle and mtp
  (`--speculative-config` with `method`, `model`, `num_speculative_tokens`, `parallel_drafting`); `medusa` in the API
  page of vllm.config.speculative; `dflash` in the README of z-lab/dflash.
- SGLang: docs.sglang.io, advanced_features/speculative_decoding (`--speculative-algorithm`,
  `--speculative-draft-model-path`, `--speculative-num-steps`, `--speculative-eagle-topk`,
  `--speculative-num-draft-tokens`).
- TensorRT-LLM: nvidia.github.io/TensorRT-LLM, commands/trtllm-serve (`--extra_llm_api_options`) and the llm-api
  reference of each DecodingConfig (`decoding_type`, `max_draft_len`, `speculative_model`).

What stands in none of them is refused, not guessed.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError, ModelError, UsageError
from localspec.methods import ROWS, TABLE

if TYPE_CHECKING:
    from localspec.models.installed.catalog import Catalog, ModelEntry

ENGINES = ("vllm", "sglang", "llama-server", "tensorrt-llm")
NAMES: dict[str, dict[str, str]] = {
    engine: {row.name: row.elsewhere[engine] for row in TABLE if engine in row.elsewhere} for engine in ENGINES
}
"""What each engine calls a method of ours."""
_CHAIN, _BLOCK = 3, 7
"""Drafted tokens a pass: of drafters that guess one token after another, and of those that guess a block at once. The
hub's page on speculative decoding has them for MTP and DFlash."""
_TARGET, _DRAFT = "TARGET_CHECKPOINT", "DRAFT_CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Model:
    """A model, as other engines can find it."""

    called: str
    """For people: name, file or repository."""
    file: str = ""
    """GGUF file on this machine; "" = none."""
    repository: str = ""
    """`user/repo[:quant]` of the GGUF file on the hub."""
    checkpoint: str = ""
    """Repository of the checkpoint that the GGUF file was made from; "" = not stated."""


@dataclass(frozen=True, slots=True)
class Serving:
    """How to serve a pair in another engine."""

    command: str
    """For a shell."""
    notes: tuple[str, ...]
    """What to put in place of a word of the command, a sentence each."""


def serving(engine: str, method: str, target: Model, draft: Model | None) -> Serving:
    """The command that serves a target with its drafter.

    Args:
        engine: a key of `NAMES`.
        method: how it drafts, as the catalogue calls it.
        target: whose text is emitted.
        draft: None = layers of the target's own file draft.

    Raises:
        UsageError: the engine's documentation has no such method.
    """
    name = NAMES[engine].get(method)
    if name is None:
        known = ", ".join(NAMES[engine])
        raise UsageError(f"{engine} documents no drafting by {method}.", f"Its documentation has: {known}.")
    if engine == "llama-server":
        return Serving(_llama_server(name, method, target, draft), ())
    tokens = _BLOCK if ROWS[method].one_pass else _CHAIN
    makers: dict[str, Callable[[str, str, int, str, str], str]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "tensorrt-llm": _tensorrt_llm,
    }
    words = (target.checkpoint or _TARGET, "" if draft is None else draft.checkpoint or _DRAFT)
    notes = tuple(
        f"{engine} reads checkpoints, not GGUF files: put the one that {model.called} was made from "
        f"in place of {placeholder}."
        for model, placeholder in ((target, _TARGET), (draft, _DRAFT))
        if model is not None and not model.checkpoint
    )
    return Serving(makers[engine](name, method, tokens, *words), notes)


def _llama_server(name: str, method: str, target: Model, draft: Model | None) -> str:
    words = ["llama-server", *(("-m", target.file) if target.file else ("-hf", target.repository))]
    if draft is not None:
        words += ("-md", draft.file) if draft.file else ("-hfd", draft.repository)
    tokens = _BLOCK if ROWS[method].one_pass else _CHAIN
    return shlex.join([*words, "--spec-type", name, "--spec-draft-n-max", str(tokens)])


def _vllm(name: str, method: str, tokens: int, target: str, draft: str) -> str:
    settings: dict[str, object] = {"method": name, "num_speculative_tokens": tokens}
    settings |= {"model": draft} if draft else {}
    settings |= {"parallel_drafting": True} if method == "pard" else {}
    return shlex.join(["vllm", "serve", target, "--speculative-config", json.dumps(settings)])


def _sglang(name: str, method: str, tokens: int, target: str, draft: str) -> str:
    words = ["python", "-m", "sglang.launch_server", "--model-path", target, "--speculative-algorithm", name]
    words += ["--speculative-draft-model-path", draft] if draft else []
    if ROWS[method].one_pass:
        return shlex.join([*words, "--speculative-num-draft-tokens", str(tokens + 1)])  # the token before counts
    chain = ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
    return shlex.join([*words, *chain, "--speculative-num-draft-tokens", str(tokens + 1)])


def _tensorrt_llm(name: str, _: str, tokens: int, target: str, draft: str) -> str:
    settings: dict[str, object] = {"decoding_type": name, "max_draft_len": tokens}
    settings |= {"speculative_model": draft} if draft else {}
    file = "speculative.yaml"
    made = shlex.join(["echo", json.dumps({"speculative_config": settings})])  # JSON is YAML
    return f"{made} > {file} && {shlex.join(['trtllm-serve', target, '--extra_llm_api_options', file])}"


def show_serving(name: str, engine: str, as_json: bool) -> int:
    """Prints the command, and on standard error what has to be put into it.

    Args:
        name: pair, model or GGUF file.
        engine: a key of `NAMES`.
        as_json: the command and the notes as one JSON object.
    """
    from localspec.models.installed.catalog import Catalog

    found = serving(engine, *_parts(name, Catalog.load()))
    if as_json:
        print(json.dumps({"command": found.command, "notes": found.notes}))
        return 0
    print(found.command)
    for note in found.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _parts(name: str, catalog: Catalog) -> tuple[str, Model, Model | None]:
    """Method, target and draft (None = the target drafts for itself)."""
    from localspec.gguf import read_header
    from localspec.models.facts.heads import draft_kind, nextn_layers
    from localspec.models.installed.installed import find

    pair = catalog.pairs.get(name)
    if pair is not None:
        return pair.method, _listed(catalog.models[pair.target]), _listed(catalog.models[pair.draft])
    try:
        target, draft = find(name, catalog=catalog)
    except ModelError as error:
        if name not in catalog.models:
            raise
        raise UsageError(f"{name} is not installed, so that nothing tells what drafts for it.", error.hint) from None
    if draft is not None:
        return draft_kind(read_header(draft)).method, _of_file(target, name), _of_file(draft, draft.name)
    if nextn_layers(read_header(target)):
        return "mtp", _of_file(target, name), None
    raise UsageError(f"Nothing is known that drafts for {name}.", "Name a pair: localspec list --catalog")


def _listed(entry: ModelEntry) -> Model:
    """A model of the catalogue, by its file if that is on this machine."""
    from localspec.models.hub.names import quant_of
    from localspec.models.installed.installed import find_one

    try:
        return _of_file(find_one(entry.name), entry.repository or entry.name)
    except LocalspecError:
        quant = entry.quant or quant_of(entry.file)
        return Model(entry.repository, "", f"{entry.repository}:{quant}" if quant else entry.repository)


def _of_file(path: Path, called: str) -> Model:
    """A file on this machine. What `general.base_model` names may be a model it was trained from, so that it is no
    answer to which checkpoint it was made from."""
    from localspec.gguf import read_header

    header = read_header(path)
    source = header.text("general.source.huggingface.repository") or header.text("general.source.repo_url")
    return Model(called, str(path), "", source.removeprefix("https://huggingface.co/"))
