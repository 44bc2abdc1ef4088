"""`localspec show`: explains a model from its header, or says how another engine serves it; `localspec check`: whether
a pair fits (tokenizers, memory) without loading it, or what a model alone is good for.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from localspec.cli.output import aligned, not_used, report
from localspec.cli.shared import add_memory_options, fit_settings, places
from localspec.errors import LocalspecError, ModelError, ModelFileError, PairError, UsageError
from localspec.gguf import ROLLS_BACK, Header, bytes_by_type, read_header, read_parts
from localspec.machine import Place, total_ram
from localspec.methods import COPYING, ROWS, TABLE
from localspec.models.hub.names import quant_of
from localspec.models.installed.catalog import Catalog, EndpointEntry, ModelEntry

if TYPE_CHECKING:
    from localspec.models.facts.pairing import Match
    from localspec.models.memory.fit import FitSettings, MemoryPlan

ENGINES = ("vllm", "sglang", "llama-server", "tensorrt-llm")
NAMES: dict[str, dict[str, str]] = {
    engine: {row.name: row.elsewhere[engine] for row in TABLE if engine in row.elsewhere} for engine in ENGINES
}
"""What each engine calls a method of ours."""
_CHAIN, _BLOCK = 3, 7
"""Drafted tokens a pass: of drafters that guess one token after another, and of those that guess a block at once. The
hub's page on speculative decoding has them for MTP and DFlash."""
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LANGUAGE_MODEL = "a language model"  # `kind` of what can be a target
_LAYER_INPUTS = frozenset((
    "llama", "qwen3", "qwen3moe", "qwen3next", "qwen35", "qwen35moe", "gemma4", "gpt-oss", "nemotron_h", "lfm2",
    "minimax-m2", "deepseek4",
))  # fmt: skip
"""Architectures whose hidden states llama.cpp hands out, which EAGLE-3 needs (those that set `t_layer_inp`)."""
_TARGET, _DRAFT = "TARGET_CHECKPOINT", "DRAFT_CHECKPOINT"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model, as other engines can find it."""

    called: str  # for people: name, file or repository
    file: str = ""  # GGUF file on this machine; "" = none
    repository: str = ""  # `user/repo[:quant]` of the GGUF file on the hub
    checkpoint: str = ""  # repository of the checkpoint that the GGUF file was made from; "" = not stated


def served_by(engine: str, method: str, target: ServedModel, draft: ServedModel | None) -> tuple[str, tuple[str, ...]]:
    """How another engine serves a target with its drafter: a command for a shell, and what to put in place of a word of
    it, a sentence each. Without `draft`, layers of the target's own file draft.

    A method (as the catalogue calls it) that the engine's documentation does not have is a UsageError.
    """
    name = NAMES[engine].get(method)
    if name is None:
        known = ", ".join(NAMES[engine])
        raise UsageError(f"{engine} documents no drafting by {method}.", f"Its documentation has: {known}.")
    one_pass = ROWS[method].one_pass
    tokens = _BLOCK if one_pass else _CHAIN
    if engine == "llama-server":
        words = ["llama-server", *(("-m", target.file) if target.file else ("-hf", target.repository))]
        if draft is not None:
            words += ("-md", draft.file) if draft.file else ("-hfd", draft.repository)
        return shlex.join([*words, "--spec-type", name, "--spec-draft-n-max", str(tokens)]), ()
    notes = tuple(
        f"{engine} reads checkpoints, not GGUF files: put the one that {model.called} was made from "
        f"in place of {placeholder}."
        for model, placeholder in ((target, _TARGET), (draft, _DRAFT))
        if model is not None and not model.checkpoint
    )
    source, guesser = target.checkpoint or _TARGET, "" if draft is None else draft.checkpoint or _DRAFT
    if engine == "sglang":
        words = ["python", "-m", "sglang.launch_server", "--model-path", source, "--speculative-algorithm", name]
        words += ["--speculative-draft-model-path", guesser] if guesser else []
        words += [] if one_pass else ["--speculative-num-steps", str(tokens), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(tokens + 1)]  # the token before counts
        return shlex.join(words), notes
    if engine == "vllm":
        settings: dict[str, object] = {"method": name, "num_speculative_tokens": tokens}
        settings |= {"model": guesser} if guesser else {}
        settings |= {"parallel_drafting": True} if method == "pard" else {}
        return shlex.join(["vllm", "serve", source, "--speculative-config", json.dumps(settings)]), notes
    settings = {"decoding_type": name, "max_draft_len": tokens} | ({"speculative_model": guesser} if guesser else {})
    made = shlex.join(["echo", json.dumps({"speculative_config": settings})])  # JSON is YAML
    served = shlex.join(["trtllm-serve", source, "--extra_llm_api_options", "speculative.yaml"])
    return f"{made} > speculative.yaml && {served}", notes


def _show_serving(name: str, engine: str, as_json: bool, catalog: Catalog) -> int:
    """Prints the command, and on standard error what has to be put into it."""
    from localspec.models.facts import heads
    from localspec.models.installed.installed import find

    pair = catalog.pairs.get(name)
    draft: ServedModel | None = None
    if pair is not None:
        target, draft, method = _listed(catalog.models[pair.target]), _listed(catalog.models[pair.draft]), pair.method
    else:
        try:
            path, draft_path = find(name, catalog=catalog)
        except ModelError as error:
            if name not in catalog.models:
                raise
            raise UsageError(
                f"{name} is not installed, so that nothing tells what drafts for it.", error.hint
            ) from None
        target, method = _of_file(path, name), "mtp"
        if draft_path is not None:
            method, draft = heads.draft_kind(read_header(draft_path)).method, _of_file(draft_path, draft_path.name)
        elif not heads.nextn_layers(read_header(path)):
            raise UsageError(f"Nothing is known that drafts for {name}.", "Name a pair: localspec list --catalog")
    command, notes = served_by(engine, method, target, draft)
    report(as_json, {"command": command, "notes": notes}, command)
    for note in () if as_json else notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _listed(entry: ModelEntry) -> ServedModel:
    """A model of the catalogue, by its file if that is on this machine."""
    from localspec.models.installed.installed import find_one

    try:
        return _of_file(find_one(entry.name), entry.repository or entry.name)
    except LocalspecError:
        quant = entry.quant or quant_of(entry.file)
        return ServedModel(entry.repository, "", f"{entry.repository}:{quant}" if quant else entry.repository)


def _of_file(path: Path, called: str) -> ServedModel:
    """A file on this machine. What `general.base_model` names may be a model it was trained from, so that it is no
    answer to which checkpoint it was made from."""
    header = read_header(path)
    source = header.text("general.source.huggingface.repository") or header.text("general.source.repo_url")
    return ServedModel(called, str(path), "", source.removeprefix("https://huggingface.co/"))


def add_options_show(parser: argparse.ArgumentParser) -> None:
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


def run_show(options: argparse.Namespace) -> int:
    from localspec.chat.prompt.template import ChatTemplate
    from localspec.models.facts import heads
    from localspec.models.installed.installed import find
    from localspec.models.memory.fit import plan
    from localspec.runtime.placement import gpu_lines

    catalog = Catalog.load()
    if options.engine:
        return _show_serving(options.name, options.engine, options.json, catalog)
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
    if heads.is_checkpoint(paths[0]):
        return _show_checkpoint(paths[0], options.json)
    settings, there, why = _serving(options, *paths[:2])
    data, lines = list[dict[str, Any]](), list[str]()
    for parts in [read_parts(path) for path in paths]:
        facts, fault = describe(parts, settings, there), ChatTemplate(parts[0].chat_template).fault
        exact, exact_words = _exactness(facts)
        data.append(facts | {"exact": exact, "template_fault": fault})
        rows = _rows(facts, fault)
        if exact is not None:
            where = gpu_lines(plan(parts, None, settings, there), why)
            rows += [("" if line else "GPU", words) for line, words in enumerate(where)] + [("exact", exact_words)]
        lines += [*([""] if lines else []), *aligned(rows)]
    report(options.json, data if pair else data[0], *lines)
    return 0


def describe(parts: Sequence[Header], settings: FitSettings, places: Sequence[Place]) -> dict[str, Any]:
    """From the headers of a model's files; the context of the settings adds a length to the table of memory."""
    from localspec.models.facts.heads import TARGET_SHA256, draft_kind, reads
    from localspec.models.facts.pairing import doubt_of, template_marks, vocabulary
    from localspec.models.facts.shape import default_context, shape_of, unpacked
    from localspec.models.memory.fit import plan

    header, shape = parts[0], shape_of(parts)
    whole, found = any(part.tensors for part in parts), draft_kind(header)
    alone = LANGUAGE_MODEL if whole else "a vocabulary, without weights"
    text, words = header.chat_template, vocabulary(header)
    left, unpacked_words = unpacked(parts)
    tokenizer: dict[str, Any] = {"kind": words.kind, "tokens": words.size, "pre_tokenizer": words.pre}
    tokenizer["merges"] = words.merge_count
    for name, token in (("bos", words.bos), ("eos", words.eos)):
        tokenizer[name] = None if token is None else {"id": token, "text": words.text(token)}
    tokenizer |= {"add_bos": words.add_bos, "add_eos": words.add_eos, "doubt": doubt_of(header)}
    longest, needs = max(0, header.context_length) or CONTEXTS[1], list[dict[str, Any]]()
    lengths = {length for length in CONTEXTS if longest <= 64 * length < 64 * longest} | {min(longest, 1 << 24)}
    lengths |= set() if settings.context is None else {settings.context}
    for length in sorted(lengths) if whole else ():
        made = plan(parts, None, replace(settings, context=length), places)
        cache = sum(share.cache for share in made.shares)
        needs.append({"context": length, "cache_bytes": cache, "total_bytes": made.total_bytes, "fits": made.fits})
    return {
        "name": header.name,
        "file": str(header.path),
        "bytes": sum(part.file_bytes for part in parts),
        "parts": len(parts),
        "gguf_version": header.version,
        "kind": alone if found.method == "draft" else found.sentence,  # what it is in a pair: see `heads.DraftKind`
        "made_for": header.text(TARGET_SHA256),  # sha256 of the file it was trained for, where it is a head and says so
        "reads": reads(header),  # what it takes from its target, where it is a head and says so
        "architecture": header.architecture,
        "parameters": sum(part.parameters for part in parts),
        "layers": shape.n_layers,
        "embedding": shape.embedding,
        "quantisation": header.quantisation,
        "tensor_bytes": bytes_by_type(parts),  # bytes per tensor type, most first
        "unpacked_bytes": left,  # of them, those of matrices that our kernels do not pack (`unpacked`)
        "unpacked": unpacked_words,  # the same in words, with what it costs; "" if all is packed
        "context": shape.train_context,  # tokens it was trained for; 0 = not stated
        "default_context": default_context(shape, total_bytes=total_ram(places)),  # of it alone here, unless it is set
        "licence": header.text("general.license"),
        "tokenizer": tokenizer,
        "template": None if text is None else {"characters": len(text), "marks": sorted(template_marks(text))},
        "memory": needs,  # at several context lengths, nothing but this model loaded
        "methods": _methods(parts) if whole else [],
        "memory_guessed": shape.guessed,
    }


def _methods(parts: Sequence[Header]) -> list[dict[str, Any]]:
    """Which ways to draft fit it, and why or why not."""
    from localspec.models.facts.heads import draft_kind, keeps_guesses, nextn_layers

    header = parts[0]
    kind = draft_kind(header)
    if not kind.drafts or kind.is_head:
        return [{"name": kind.method, "fits": False, "why": f"it is {kind.sentence}, not a target"}]
    if keeps_guesses(header):
        no = "its recurrent layers cannot take guesses back: nothing is drafted for it"
        drafts = (row.name for row in TABLE if row.needs in ("text", "tokenizer"))
        return [{"name": name, "fits": False, "why": no} for name in drafts]
    found, own = list[dict[str, Any]](), nextn_layers(parts)
    for row in TABLE:
        if row.needs == "grammar" or (row.needs == "cache" and header.architecture != "gemma4"):
            continue  # not spoken of with this model
        lacking = ""
        if row.needs == "own layers" and not own:
            lacking = "the file has no prediction layers"
        elif row.needs in ("inputs", "all inputs") and header.architecture not in _LAYER_INPUTS:
            lacking = f"llama.cpp hands out no hidden states of {header.architecture}"
        why = lacking or row.shown or f"carries {own} layer(s) of its own"
        found.append({"name": row.name, "fits": not lacking, "why": why})
    return found


def _serving(
    options: argparse.Namespace, target: Path, draft: Path | None = None
) -> tuple[FitSettings, list[Place], str]:
    """See `placement.serving`; where devices were named, these."""
    from localspec.runtime.placement import named, serving

    if options.device is not None:
        return fit_settings(options), named(options.device), ""
    return serving(fit_settings(options), target, draft, places())


def _exactness(facts: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Whether drafting changes no bit on the CPU, as far as the graph tells, and in words; None = no target."""
    from localspec.llama.exact import choice

    if facts["kind"] != LANGUAGE_MODEL:
        return None, "unknown"
    try:
        said = choice.of_file(Path(facts["file"]), int(facts["architecture"] in ROLLS_BACK))
    except LocalspecError as error:
        said = choice.Exactness(False, False, f"unknown: {error}")
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
    entries, lines = [catalog.models[name] for name in names], list[str]()
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
        lines += [*aligned([row for row in rows if row[1]]), ""]
    if pair is not None:
        method = pair.method + (" (localspec has no such drafter yet)" if not_used(pair.method) else "")
        rows = [("pair", pair.name), ("method", method), ("why", pair.why), ("in doubt", pair.doubt or "-")]
        lines += [*aligned(rows), ""]
    lines.append(f"Not on this machine. localspec pull {options.name}")
    report(options.json, [asdict(entry) | {"installed": False} for entry in entries], *lines)
    return 0


def _show_endpoint(entry: EndpointEntry, as_json: bool) -> int:
    """A model that a server answers with; the server is not asked, and its key is not read."""
    place = f"environment variable {entry.key_env}" if entry.key_env else f"keyring, service {entry.keyring}"
    rows = [("name", entry.name), ("what it is", "a model that a server answers with"), ("server", entry.endpoint)]
    rows += [("model", entry.model or "the first that it lists")]
    rows += [("key", place if entry.key_env or entry.keyring else "none")]
    report(as_json, asdict(entry), *aligned(rows))
    return 0


def _trained_for(sha256: str) -> str:
    from localspec.models.installed.installed import name_of

    return f"{name_of(sha256) or 'a model that is not known here'} (sha256 {sha256})"


def _show_checkpoint(path: Path, as_json: bool) -> int:
    """A head that is no GGUF file."""
    from localspec.models.facts import heads

    kind, target = heads.checkpoint_kind(path), heads.trained_for(path)
    files = [{"file": str(file), "bytes": file.stat().st_size} for file in heads.weights_of(path)]
    config = {key: value for key, value in heads.config_of(path).items() if isinstance(value, str | int | float)}
    rows = [("name", path.name), ("what it is", kind.sentence)]
    rows += [("file", f"{one['file']} ({decimal(int(str(one['bytes'])))})") for one in files]
    rows.append(("trained for", _trained_for(target) if target else "not stated"))
    rows += [(key, str(value)) for key, value in config.items() if key != "target_sha256"]
    data = {"kind": kind.sentence, "method": kind.method, "made_for": target, "files": files, **config}
    report(as_json, data, *aligned(rows))
    return 0


def _rows(facts: dict[str, Any], template_fault: str) -> list[tuple[str, str]]:
    types = ", ".join(f"{name} {decimal(count)}" for name, count in facts["tensor_bytes"].items())
    parts = f" in {facts['parts']} parts" if facts["parts"] > 1 else ""
    trained = f"{facts['context']:,} tokens in training" if facts["context"] else "not stated"
    template = "none: for completing text, not for chats"
    if facts["template"] is not None:
        marks = " ".join(facts["template"]["marks"][:6])
        template = f"{facts['template']['characters']:,} characters{f', marks {marks}' if marks else ''}"
    rows = [
        ("name", facts["name"]),
        ("file", f"{facts['file']} ({decimal(facts['bytes'])}{parts}, GGUF version {facts['gguf_version']})"),
        ("what it is", facts["kind"]),
        *([("trained for", _trained_for(facts["made_for"]))] if facts["made_for"] else []),
        *([("reads", facts["reads"])] if facts["reads"] else []),
        (
            "architecture",
            f"{facts['architecture']}, {facts['layers']} layers, {_count(facts['parameters'])} parameters",
        ),
        ("quantisation", f"{facts['quantisation']} (tensors: {types})" if types else facts["quantisation"]),
        *([("not packed", facts["unpacked"])] if facts["unpacked"] else []),
        ("tokenizer", _tokenizer(facts["tokenizer"])),
        *([("", facts["tokenizer"]["doubt"])] if facts["tokenizer"]["doubt"] else []),
        ("chat template", template_fault or template),
        ("context", f"{trained}; {facts['default_context']:,} by default here"),
        ("licence", facts["licence"] or "not stated"),
    ]
    label = "memory" + (" (estimated)" if facts["memory_guessed"] else "")
    for need in facts["memory"]:
        fits = "" if need["fits"] else "  does not fit now"
        sizes = f"{decimal(need['total_bytes'])}, of it cache {decimal(need['cache_bytes'])}"
        rows.append((label, f"{need['context']:>9,} tokens: {sizes}{fits}"))
        label = ""
    label = "drafting"
    names: dict[tuple[bool, str], list[str]] = {}
    for method in facts["methods"]:
        names.setdefault((method["fits"], method["why"]), []).append(method["name"])
    for (fit, why), several in names.items():
        rows.append((label, f"{'yes' if fit else 'no':4}{', '.join(several)}: {why}"))
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


def _count(number: int) -> str:
    units = ((10**9, "B"), (10**6, "M"), (10**3, "k"))
    return next((f"{number / unit:.1f} {name}" for unit, name in units if number >= unit), str(number))


def add_options_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", metavar="PAIR|TARGET", help="pair, or model or GGUF file; alone, it is judged by itself"
    )
    parser.add_argument("draft", nargs="?", metavar="DRAFT", help="model or GGUF file of the draft, or a head")
    parser.add_argument("--fit", action="store_true", help="choose context, cache type and GPU layers that fit")
    parser.add_argument(
        "--cross-tokenizer", action="store_true", help="judge a draft with another tokenizer by the tokens both have"
    )
    parser.add_argument("--json", action="store_true", help="the verdict as JSON")
    add_memory_options(parser)


def run_check(options: argparse.Namespace) -> int:
    from localspec.drafters.heads import head
    from localspec.models.facts import heads, pairing
    from localspec.models.installed.installed import find, find_one
    from localspec.models.memory import fit

    target, draft = find(options.target)
    pair = Catalog.load().pairs.get(options.target)
    if options.draft is not None:
        draft = find_one(options.draft)
    elif pair is not None:
        draft = find_one(pair.draft)  # a head, too, which `find` leaves out
    if draft is None:
        return _check_alone(options, target)
    parts, drafts, shared = read_parts(target), None, None
    if heads.is_checkpoint(draft):
        match, settings, there, why = _of_published(parts[0], draft), fit_settings(options), places(), ""
    else:
        drafts = read_parts(draft)
        match = pairing.match(parts[0], drafts[0], cross_tokenizer=options.cross_tokenizer)
        shared = match.shared if match.fits else pairing.match(parts[0], drafts[0], cross_tokenizer=True).shared
        settings, there, why = _serving(options, target, draft)
    if drafts is None or head.is_head(draft):
        settings, drafts = replace(settings, heads=head.shapes(parts[0], [draft])), None
    plan = (fit.choose if options.fit else fit.plan)(parts, drafts, settings, there)
    unused, count = not_used(match.method) if match.fits else "", ""
    if shared is not None and not options.cross_tokenizer:  # else the verdict or its first warning has it
        count = f"{len(shared)} of the target's {shared.target_size} tokens are shared"
    found = {"match": replace(match, shared=shared).as_dict(), "memory": plan.as_dict(), "unused": unused}
    notes = (f"  note: {note}" for note in (unused, count, *match.warnings) if note)
    report(options.json, found, match.verdict, *notes, *_memory_lines(plan, why))
    return 0 if match.fits and plan.fits else 1


def _of_published(target: Header, path: Path) -> Match:
    """Whether the own reader of the method of a head that is no GGUF file takes it for this target."""
    from localspec.drafters.heads import head
    from localspec.models.facts.pairing import Match

    kind = head.kind_of(path)
    try:
        name = head.find(path, target).name
    except PairError as error:
        return Match(False, kind.method, str(error))
    return Match(True, name, f"{path.name} can draft for {target.path.name}, as {kind.sentence}.")


def _memory_lines(plan: MemoryPlan, unused: str) -> list[str]:
    """A memory plan: which GPU has what, a line per model and device, and a verdict."""
    from localspec.runtime.placement import gpu_lines

    lines = [
        f"{share.model} on {share.place}: {decimal(share.total)} (weights {decimal(share.weights)}, "
        f"cache {decimal(share.cache)}, computing {decimal(share.compute)})"
        for share in plan.shares
        if share.total
    ]
    return [*gpu_lines(plan, unused), *lines, f"{plan.sentence()} {plan.doubt}".rstrip()]


def _check_alone(options: argparse.Namespace, path: Path) -> int:
    """What a model is, whether it loads and fits, what drafts for it, and whether exactly; a head is a UsageError."""
    from localspec.chat.prompt.template import ChatTemplate
    from localspec.drafters.heads.head import kind_of
    from localspec.llama.model import Model, check_text_model
    from localspec.models.hub.pull import candidates, suggest
    from localspec.models.memory import fit

    kind = kind_of(path)
    if kind.is_head:
        raise UsageError(
            f"{path.name} is {kind.sentence}, and drafts for the target it was trained for.",
            f"Name that before it: localspec check TARGET {options.target}",
        )
    check_text_model(path)
    parts = read_parts(path)
    settings, there, why = _serving(options, path)
    plan = (fit.choose if options.fit else fit.plan)(parts, None, settings, there)
    facts, fault, refusal = describe(parts, settings, there), ChatTemplate(parts[0].chat_template).fault, ""
    doubt = facts["tokenizer"]["doubt"]
    try:
        Model.load(path, kernels="plain", weights=False).close()
    except ModelError as error:
        refusal = str(error)
    exact, exact_words = (None, "unknown") if refusal else _exactness(facts)
    drafts = suggest(parts, {options.target, path.name}, Catalog.load(), candidates(path), options.target)
    methods = [method["name"] for method in facts["methods"] if method["fits"]]
    data: dict[str, Any] = {"file": facts["file"], "kind": facts["kind"], "architecture": facts["architecture"]}
    data |= {"loads": not refusal, "refusal": refusal, "template": facts["template"] is not None}
    data |= {"template_fault": fault, "tokenizer_doubt": doubt, "methods": methods}
    data |= {"drafts": [asdict(one) for one in drafts], "exact": exact or {}, "memory": plan.as_dict()}
    chats = "" if facts["template"] else "; it has no chat template, so it completes text"
    known = [f"{one.draft} ({one.method}, {'here' if one.installed else 'on the hub'})" for one in drafts]
    report(
        options.json,
        data,
        f"{path.name} is {facts['kind']}: {facts['architecture']}, {facts['quantisation']}{chats}.",
        f"loads: {f'no: {refusal}' if refusal else 'yes'}",
        *(f"note: {note}" for note in (fault, doubt) if note),
        f"exact: {exact_words}",
        f"drafted from the text alone: {', '.join(name for name in methods if name in COPYING) or 'no'}",
        *(f"drafted by {one}" for one in known or ["a model or head: none is known"]),
        *_memory_lines(plan, why),
    )
    return 0 if plan.fits and not refusal else 1
