"""`localspec show`: explains a model from its header, without loading it; or says how another engine serves it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.chat.plain_text import plain_text
from localspec.cli.elsewhere import ENGINES, show_serving
from localspec.cli.places import add_memory_options, fit_settings, places
from localspec.errors import LocalspecError, ModelError, ModelFileError

if TYPE_CHECKING:
    from localspec.models.facts.facts import Facts
    from localspec.models.installed.catalog import Catalog, EndpointEntry, ModelEntry


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
    from localspec.models.facts.facts import describe
    from localspec.models.installed.catalog import Catalog
    from localspec.models.installed.installed import find
    from localspec.models.memory.fit import plan
    from localspec.runtime.placement import gpu_lines, serving

    if options.engine:
        return show_serving(options.name, options.engine, options.json)
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
        paths = paths[:1]
    if checkpoint.is_checkpoint(paths[0]):
        return _show_checkpoint(paths[0], options.json)
    draft = Path(paths[1]) if paths[1:] else None
    settings, there, why = serving(fit_settings(options), Path(paths[0]), draft, places())
    found = [describe(read_parts(Path(path)), settings, there) for path in paths]
    exact = [exactness_of(facts) for facts in found]
    if options.json:
        data = [
            {"exact": said and said[0], "template_fault": _fault(facts)}
            for facts, said in zip(found, exact, strict=True)
        ]
        all_facts = [facts.as_dict() | more for facts, more in zip(found, data, strict=True)]
        print(json.dumps(all_facts if pair else all_facts[0]))
        return 0
    for index, (facts, said) in enumerate(zip(found, exact, strict=True)):
        if index:
            print()
        where = [] if said is None else gpu_lines(plan(read_parts(Path(facts.file)), None, settings, there), why)
        rows = [("" if line else "GPU", words) for line, words in enumerate(where)]
        _print([*_rows(facts), *rows, *([("exact", said[1])] if said is not None else [])])
    return 0


def exactness_of(facts: Facts) -> tuple[dict[str, Any], str] | None:
    """Whether drafting for it changes no bit on the CPU, as far as that follows from its graph: as data and in words.
    None = it is no target.
    """
    from localspec.gguf.formats import ROLLS_BACK
    from localspec.llama.exact import exactness
    from localspec.models.facts.facts import LANGUAGE_MODEL

    if facts.kind != LANGUAGE_MODEL:
        return None
    try:
        said = exactness.of_file(Path(facts.file), int(facts.architecture in ROLLS_BACK))
    except LocalspecError as error:
        said = exactness.Exactness(False, False, f"unknown: {error}")
    if said is None:
        words = "nothing is drafted, since its cache cannot be trimmed"
        return {"widths": True, "prefill": False, "reason": words}, words
    prompts = f"; not in prompts: {said.reason}" if said.reason else " and in prompts"
    words = f"yes, at every width{prompts}" if said.widths else f"no: {said.reason}"
    return {"widths": said.widths, "prefill": said.prefill, "reason": said.reason}, words


def _show_listed(options: argparse.Namespace, catalog: Catalog) -> int:
    """What the catalogue says about something that is not on this machine."""
    pair = catalog.pairs.get(options.name)
    names = [options.name] if pair is None else [pair.target, pair.draft]
    entries = [catalog.models[name] for name in names]
    if options.json:
        from dataclasses import asdict

        print(json.dumps([asdict(entry) | {"installed": False} for entry in entries]))
        return 0
    for entry in entries:
        _print(_listed_rows(entry))
        print()
    if pair is not None:
        method = pair.method + _not_yet(pair.method)
        _print([("pair", pair.name), ("method", method), ("why", pair.why), ("in doubt", pair.doubt or "-")])
        print()
    print(f"Not on this machine. localspec pull {options.name}")
    return 0


def _show_endpoint(entry: EndpointEntry, as_json: bool) -> int:
    """A model that a server answers with; the server is not asked, and its key is not read."""
    if as_json:
        from dataclasses import asdict

        print(json.dumps(asdict(entry)))
        return 0
    place = f"environment variable {entry.key_env}" if entry.key_env else f"keyring, service {entry.keyring}"
    rows = [("name", entry.name), ("what it is", "a model that a server answers with"), ("server", entry.endpoint)]
    rows += [("model", entry.model or "the first that it lists")]
    _print([*rows, ("key", place if entry.key_env or entry.keyring else "none")])
    return 0


def _listed_rows(entry: ModelEntry) -> list[tuple[str, str]]:
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
    return [(name, value) for name, value in rows if value]


def trained_for(sha256: str) -> str:
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
    rows.append(("trained for", trained_for(target) if target else "not stated"))
    _print([*rows, *((key, str(value)) for key, value in config.items() if key != "target_sha256")])
    return 0


def _print(rows: list[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:{width}}  {plain_text(value)}")  # it quotes files


def _rows(facts: Facts) -> list[tuple[str, str]]:
    types = ", ".join(f"{name} {decimal(count)}" for name, count in facts.tensor_bytes.items())
    parts = f" in {facts.parts} parts" if facts.parts > 1 else ""
    trained = f"{facts.context:,} tokens in training" if facts.context else "not stated"
    rows = [
        ("name", facts.name),
        ("file", f"{facts.file} ({decimal(facts.bytes)}{parts}, GGUF version {facts.gguf_version})"),
        ("what it is", facts.kind),
        *([("trained for", trained_for(facts.made_for))] if facts.made_for else []),
        *([("reads", facts.reads)] if facts.reads else []),
        ("architecture", f"{facts.architecture}, {facts.layers} layers, {_count(facts.parameters)} parameters"),
        ("quantisation", f"{facts.quantisation} (tensors: {types})" if types else facts.quantisation),
        *([("not packed", facts.unpacked)] if facts.unpacked else []),
        ("tokenizer", _tokenizer(facts.tokenizer)),
        *([("", facts.tokenizer["doubt"])] if facts.tokenizer["doubt"] else []),
        ("chat template", _fault(facts) or _template(facts.template)),
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


def _not_yet(method: str) -> str:
    from localspec.cli.output import not_used

    return " (localspec has no such drafter yet)" if not_used(method) else ""


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


def _fault(facts: Facts) -> str:
    """Why its chat template cannot be used; "" = it can, or there is none."""
    from localspec.chat.prompt.template import ChatTemplate
    from localspec.gguf import read_header

    return ChatTemplate(read_header(facts.file).chat_template).fault


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
