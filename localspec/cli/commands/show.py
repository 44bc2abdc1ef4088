"""`localspec show`: explains a model from its header, without loading it; or says how another engine serves it.

The other engines' own documentation, read in November 2026:

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

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.chat.plain_text import plain_text
from localspec.cli.places import add_memory_options, fit_settings, places
from localspec.errors import LocalspecError, ModelError, ModelFileError, UsageError
from localspec.methods import ROWS, TABLE

if TYPE_CHECKING:
    from localspec.gguf import Header
    from localspec.machine import Place
    from localspec.models.installed.catalog import Catalog, EndpointEntry, ModelEntry
    from localspec.models.memory.fit import FitSettings


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


def served_by(engine: str, method: str, target: Model, draft: Model | None) -> Serving:
    """The command that serves a target with its drafter.

    Args:
        method: how it drafts, as the catalogue calls it.
        draft: None = layers of the target's own file draft.

    Raises:
        UsageError: the engine's documentation has no such method.
    """
    name = NAMES[engine].get(method)
    if name is None:
        known = ", ".join(NAMES[engine])
        raise UsageError(f"{engine} documents no drafting by {method}.", f"Its documentation has: {known}.")
    tokens = _BLOCK if ROWS[method].one_pass else _CHAIN
    if engine == "llama-server":
        words = ["llama-server", *(("-m", target.file) if target.file else ("-hf", target.repository))]
        if draft is not None:
            words += ("-md", draft.file) if draft.file else ("-hfd", draft.repository)
        return Serving(shlex.join([*words, "--spec-type", name, "--spec-draft-n-max", str(tokens)]), ())
    makers: dict[str, Callable[[str, str, int, str, str], str]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "tensorrt-llm": _tensorrt_llm,
    }
    notes = tuple(
        f"{engine} reads checkpoints, not GGUF files: put the one that {model.called} was made from "
        f"in place of {placeholder}."
        for model, placeholder in ((target, _TARGET), (draft, _DRAFT))
        if model is not None and not model.checkpoint
    )
    words = [target.checkpoint or _TARGET, "" if draft is None else draft.checkpoint or _DRAFT]
    return Serving(makers[engine](name, method, tokens, *words), notes)


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


def _show_serving(name: str, engine: str, as_json: bool) -> int:
    """Prints the command, and on standard error what has to be put into it."""
    from localspec.models.installed.catalog import Catalog

    found = served_by(engine, *_parts(name, Catalog.load()))
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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME|FILE", help="pair, model, server's model, GGUF file or head")
    parser.add_argument("--json", action="store_true", help="everything as JSON, also the chat template's marks")
    parser.add_argument(
        "--as",
        dest="engine",
        choices=ENGINES,
        metavar="ENGINE",
        help=f"print the command that serves the same pair there instead: {', '.join(ENGINES)}",
    )
    add_memory_options(parser)


def run(options: argparse.Namespace) -> int:
    from localspec.gguf.split import read_parts
    from localspec.models.facts import checkpoint
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find
    from localspec.models.memory.fit import plan
    from localspec.runtime.placement import gpu_lines, serving

    if options.engine:
        return _show_serving(options.name, options.engine, options.json)
    catalog = Catalog.load()
    if options.name in catalog.endpoints:
        return _show_endpoint(catalog.endpoints[options.name], options.json)
    pair = catalog.pairs.get(options.name)
    try:
        paths = [path for path in find(options.name, catalog=catalog) if path is not None]
    except ModelFileError:
        raise  # it is here, and damaged
    except ModelError:
        if pair is None and options.name not in catalog.models:
            raise
        return _show_listed(options, catalog)
    if pair is None:
        del paths[1:]
    if checkpoint.is_checkpoint(paths[0]):
        return _show_checkpoint(paths[0], options.json)
    settings, there, why = serving(fit_settings(options), paths[0], paths[1] if paths[1:] else None, places())
    models = [read_parts(path) for path in paths]
    found = [Explained(parts, settings, there) for parts in models]
    if options.json:
        data = [asdict(one.facts) | {"exact": one.exact, "template_fault": one.template_fault} for one in found]
        print(json.dumps(data if pair else data[0]))
        return 0
    for index, (parts, one) in enumerate(zip(models, found, strict=True)):
        if index:
            print()
        where = [] if one.exact is None else gpu_lines(plan(parts, None, settings, there), why)
        rows = [("" if line else "GPU", words) for line, words in enumerate(where)]
        _print([*_rows(one), *rows, *([("exact", one.exact_words)] if one.exact is not None else [])])
    return 0


class Explained:
    """A model as `show` and `check` explain it."""

    def __init__(self, parts: Sequence[Header], settings: FitSettings, there: Sequence[Place]) -> None:
        """From headers of its files, how it would run, and what memory there is."""
        from localspec.chat.prompt.template import ChatTemplate
        from localspec.models.facts.facts import describe

        self.facts = describe(parts, settings, there)
        self.template_fault = ChatTemplate(parts[0].chat_template).fault
        """Why its chat template cannot be used; "" = it can, or there is none."""

    @cached_property
    def _said(self) -> tuple[dict[str, Any] | None, str]:
        from localspec.gguf.formats import ROLLS_BACK
        from localspec.llama.exact import choice
        from localspec.models.facts.facts import LANGUAGE_MODEL

        if self.facts.kind != LANGUAGE_MODEL:
            return None, "unknown"
        try:
            said = choice.of_file(Path(self.facts.file), int(self.facts.architecture in ROLLS_BACK))
        except LocalspecError as error:
            said = choice.Exactness(False, False, f"unknown: {error}")
        if said is None:
            words = "nothing is drafted, since its cache cannot be trimmed"
            return {"widths": True, "prefill": False, "reason": words}, words
        prompts = f"; not in prompts: {said.reason}" if said.reason else " and in prompts"
        words = f"yes, at every width{prompts}" if said.widths else f"no: {said.reason}"
        return {"widths": said.widths, "prefill": said.prefill, "reason": said.reason}, words

    @property
    def exact(self) -> dict[str, Any] | None:
        """Whether drafting for it changes no bit on the CPU, as far as that follows from its graph; None = it is no
        target."""
        return self._said[0]

    @property
    def exact_words(self) -> str:
        return self._said[1]


def _show_listed(options: argparse.Namespace, catalog: Catalog) -> int:
    """What the catalogue says about something that is not on this machine."""
    from localspec.cli.output import not_used

    pair = catalog.pairs.get(options.name)
    names = [options.name] if pair is None else [pair.target, pair.draft]
    entries = [catalog.models[name] for name in names]
    if options.json:
        print(json.dumps([asdict(entry) | {"installed": False} for entry in entries]))
        return 0
    for entry in entries:
        rows = [
            ("name", entry.name),
            ("from", entry.reference),
            ("role", entry.role),
            ("size", decimal(entry.bytes) if entry.bytes else ""),
            ("context", f"{entry.context:,} tokens" if entry.context else ""),
            ("licence", entry.licence),
            ("chat template", entry.template),
            ("sha256", entry.sha256),
            ("revision", entry.revision),
            ("says who", entry.source),
            ("checked", entry.verified or "not yet"),
            ("in doubt", entry.doubt),
        ]
        _print([(name, value) for name, value in rows if value])
        print()
    if pair is not None:
        method = pair.method + (" (localspec has no such drafter yet)" if not_used(pair.method) else "")
        _print([("pair", pair.name), ("method", method), ("why", pair.why), ("in doubt", pair.doubt or "-")])
        print()
    print(f"Not on this machine. localspec pull {options.name}")
    return 0


def _show_endpoint(entry: EndpointEntry, as_json: bool) -> int:
    """A model that a server answers with; the server is not asked, and its key is not read."""
    if as_json:
        print(json.dumps(asdict(entry)))
        return 0
    place = f"environment variable {entry.key_env}" if entry.key_env else f"keyring, service {entry.keyring}"
    rows = [("name", entry.name), ("what it is", "a model that a server answers with"), ("server", entry.endpoint)]
    rows += [("model", entry.model or "the first that it lists")]
    _print([*rows, ("key", place if entry.key_env or entry.keyring else "none")])
    return 0


def _trained_for(sha256: str) -> str:
    """A head's target in words."""
    from localspec.models.installed.installed import name_of

    return f"{name_of(sha256) or 'a model that is not known here'} (sha256 {sha256})"


def _show_checkpoint(path: Path, as_json: bool) -> int:
    """A head that is no GGUF file."""
    from localspec.models.facts import checkpoint

    kind, target = checkpoint.checkpoint_kind(path), checkpoint.trained_for(path)
    files = [{"file": str(file), "bytes": file.stat().st_size} for file in checkpoint.weights_of(path)]
    config = {key: value for key, value in checkpoint.config_of(path).items() if isinstance(value, str | int | float)}
    if as_json:
        print(json.dumps({"kind": kind.sentence, "method": kind.method, "made_for": target, "files": files, **config}))
        return 0
    rows = [("name", path.name), ("what it is", kind.sentence)]
    rows += [("file", f"{one['file']} ({decimal(int(str(one['bytes'])))})") for one in files]
    rows.append(("trained for", _trained_for(target) if target else "not stated"))
    _print([*rows, *((key, str(value)) for key, value in config.items() if key != "target_sha256")])
    return 0


def _print(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {plain_text(value)}")  # it quotes files


def _rows(one: Explained) -> list[tuple[str, str]]:
    facts = one.facts
    types = ", ".join(f"{name} {decimal(count)}" for name, count in facts.tensor_bytes.items())
    parts = f" in {facts.parts} parts" if facts.parts > 1 else ""
    trained = f"{facts.context:,} tokens in training" if facts.context else "not stated"
    rows = [
        ("name", facts.name),
        ("file", f"{facts.file} ({decimal(facts.bytes)}{parts}, GGUF version {facts.gguf_version})"),
        ("what it is", facts.kind),
        *([("trained for", _trained_for(facts.made_for))] if facts.made_for else []),
        *([("reads", facts.reads)] if facts.reads else []),
        ("architecture", f"{facts.architecture}, {facts.layers} layers, {_count(facts.parameters)} parameters"),
        ("quantisation", f"{facts.quantisation} (tensors: {types})" if types else facts.quantisation),
        *([("not packed", facts.unpacked)] if facts.unpacked else []),
        ("tokenizer", _tokenizer(facts.tokenizer)),
        *([("", facts.tokenizer["doubt"])] if facts.tokenizer["doubt"] else []),
        ("chat template", one.template_fault or _template(facts.template)),
        ("context", f"{trained}; {facts.default_context:,} by default here"),
        ("licence", facts.licence or "not stated"),
    ]
    label = "memory" + (" (estimated)" if facts.memory_guessed else "")
    for need in facts.memory:
        fits = "" if need.fits else "  does not fit now"
        text = f"{need.context:>9,} tokens: {decimal(need.total_bytes)}, of it cache {decimal(need.cache_bytes)}{fits}"
        rows.append((label, text))
        label = ""
    label = "drafting"
    reasons = dict.fromkeys((method.fits, method.why) for method in facts.methods)
    for fit, why in reasons:
        names = ", ".join(method.name for method in facts.methods if (method.fits, method.why) == (fit, why))
        rows.append((label, f"{'yes' if fit else 'no':4}{names}: {why}"))
        label = ""
    return rows


def _tokenizer(found: dict[str, Any]) -> str:
    if not found["kind"]:
        return "none"
    words = [f"{found['kind']}, {found['tokens']:,} tokens"]
    if found["pre_tokenizer"]:
        words.append(f"pre-tokenizer {found['pre_tokenizer']}")
    for name in ("bos", "eos"):
        token = found[name]
        words.append(f"{name} {token['id']} {token['text']!r}" if token else f"no {name}")
    return ", ".join(words) + (", texts start with bos" if found["add_bos"] else "")


def _template(found: dict[str, Any] | None) -> str:
    if found is None:
        return "none: for completing text, not for chats"
    marks = " ".join(found["marks"][:6])
    return f"{found['characters']:,} characters" + (f", marks {marks}" if marks else "")


def _count(number: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return str(number)
